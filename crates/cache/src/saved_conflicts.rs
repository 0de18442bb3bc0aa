//! What is saved of conflicts: within the cache's size (I5), and told once.
//!
//! The bytes lie on the cache's device until somebody looks at them, and anybody who may change the origin
//! makes more. So they are counted before they are saved, the limit of the cache is less by them, and from a
//! part of it on nothing more is saved: what is dirty then stays where it is.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use halocline_api::control::Skipped;
use halocline_meta::table::ExtentTable;
use halocline_meta::{BLOCK, Extent};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use parking_lot::Mutex;

/// Conflicts that a command is told of one by one; of others it is told how many there are.
const UNTOLD_MAX: usize = 1000;

/// What one extent takes in a conflict's description, at most, as dirty and as damaged.
const DESCRIPTION_BYTES_MAX: u64 = 160;

/// What is saved of conflicts.
#[derive(Debug, Default)]
pub(crate) struct SavedConflicts {
    /// Held while one is saved: when their directory changed, as of the last time that we did that, or counted.
    seen: Mutex<Option<SystemTime>>,
    untold: Mutex<Untold>,
}

/// Conflicts that no command was told of yet.
#[derive(Debug, Default)]
struct Untold {
    listed: Vec<Skipped>,
    /// How many there are besides.
    more: u64,
}

impl SavedConflicts {
    /// Counts what earlier sessions saved in `dir`.
    pub(crate) fn count(&self, dir: &Path, dmt: &ExtentTable) -> Result<()> {
        let mut seen = self.seen.lock();
        match PrivateDir::open(dir) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            opened => {
                *seen = changed_at(dir);
                dmt.set_saved(allocated_bytes(&opened?)?);
                Ok(())
            }
        }
    }

    /// Lets `save` save `dirty` in `dir` if there is room for that.
    pub(crate) fn within_room<T>(
        &self,
        (dir, dmt): (&PrivateDir, &ExtentTable),
        (path, dirty): (&Path, &[Extent]),
        save: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let bytes = bytes_on_disk(path, dirty);
        let mut seen = self.seen.lock();
        if !dmt.save(bytes) {
            // Somebody may have removed some since.
            if changed_at(dir.path()) == *seen {
                return Err(no_room(dir, dmt, bytes));
            }
            *seen = changed_at(dir.path());
            dmt.set_saved(allocated_bytes(dir)?);
            if !dmt.save(bytes) {
                return Err(no_room(dir, dmt, bytes));
            }
        }
        let saved = save();
        *seen = changed_at(dir.path());
        if saved.is_err() {
            dmt.set_saved(allocated_bytes(dir)?);
        }
        saved
    }

    /// One was saved.
    pub(crate) fn note(&self, conflict: Skipped) {
        let mut untold = self.untold.lock();
        if untold.listed.len() < UNTOLD_MAX {
            untold.listed.push(conflict);
        } else {
            untold.more += 1;
        }
    }

    /// Those that no command was told of yet, for one that tells of them; `dir` is where they are saved.
    pub(crate) fn take(&self, dir: &Path) -> Vec<Skipped> {
        let Untold { mut listed, more } = std::mem::take(&mut *self.untold.lock());
        if more > 0 {
            let reason = format!("so many more conflicts are saved here: {more}");
            listed.push(Skipped { path: dir.to_owned(), reason });
        }
        listed
    }
}

/// What saving `dirty` of the file at `path` takes on disk, at most: the bytes, where the file system finds
/// them, and their description.
fn bytes_on_disk(path: &Path, dirty: &[Extent]) -> u64 {
    let data: u64 = dirty.iter().map(|extent| extent.range.widen_to(BLOCK).len()).sum();
    let extents = dirty.len() as u64 * DESCRIPTION_BYTES_MAX;
    let name = path.as_os_str().len() as u64;
    data + BLOCK + (extents + 4 * name + BLOCK).next_multiple_of(BLOCK)
}

/// Bytes of blocks of all that lies in `dir`.
fn allocated_bytes(dir: &PrivateDir) -> Result<u64> {
    let mut bytes = 0;
    for name in dir.names()? {
        let path = dir.path().join(name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => bytes += found.map_err(Error::at(&path, "look at"))?.blocks() * 512,
        }
    }
    Ok(bytes)
}

fn changed_at(dir: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(dir).and_then(|found| found.modified()).ok()
}

/// No [`Error::is_full`]: it is neither the origin nor the cache's device that has no room.
fn no_room(dir: &PrivateDir, dmt: &ExtentTable, bytes: u64) -> Error {
    let (dir, max) = (dir.path().display(), dmt.saved_max());
    Error::Io(io::Error::other(format!(
        "the origin's file was changed behind the mount, and what only the cache has of it ({bytes} bytes on \
         disk) does not fit into {dir}, which may take {max} bytes of the cache's size: it stays on the cache; \
         deal with what is saved there and remove it, or mount with a larger --size, then flush"
    )))
}
