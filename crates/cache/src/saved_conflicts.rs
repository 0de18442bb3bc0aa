//! Bytes saved from conflicts: they count towards the cache's size (I5), and each conflict is reported once.
//!
//! Saved bytes stay on the cache's device until somebody looks at them, and anybody who may change the origin
//! can cause more. So they are counted before they are saved, and reduce the limit of the cache. Beyond a
//! share of that limit nothing more is saved: dirty bytes then stay where they are.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use halocline_api::control::Skipped;
use halocline_meta::table::ExtentTable;
use halocline_meta::{BLOCK, Extent, FileId};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use parking_lot::Mutex;

/// Conflicts that are reported to a command one by one; of others only the number is reported.
const UNREPORTED_MAX: usize = 1000;

/// The most bytes that one extent takes in a conflict's description, listed as dirty and as damaged.
const DESCRIPTION_BYTES_MAX: u64 = 160;

/// The account of the bytes saved from conflicts.
#[derive(Debug, Default)]
pub(crate) struct SavedConflicts {
    /// When their directory changed, as of our last save or count. Held while one is saved.
    seen: Mutex<Option<SystemTime>>,
    /// Files whose conflict did not fit when that was last tried. Their records say so, durably.
    refused: Mutex<HashSet<FileId>>,
    unreported: Mutex<UnreportedConflicts>,
}

/// Conflicts that were not reported to a command yet.
#[derive(Debug, Default)]
struct UnreportedConflicts {
    listed: Vec<Skipped>,
    /// The number of further ones.
    more: u64,
}

impl SavedConflicts {
    /// Counts what earlier sessions saved in `dir`, and again after somebody changed something there: conflicts that
    /// were refused may fit now.
    pub(crate) fn count(&self, dir: &Path, dmt: &ExtentTable) -> Result<()> {
        self.count_changed(&mut self.seen.lock(), dir, dmt)
    }

    fn count_changed(
        &self,
        seen: &mut Option<SystemTime>,
        dir: &Path,
        dmt: &ExtentTable,
    ) -> Result<()> {
        let now = changed_at(dir);
        if now == *seen {
            return Ok(());
        }
        let bytes = match PrivateDir::open(dir) {
            Err(error) if error.errno() == libc::ENOENT => 0,
            opened => allocated_bytes(&opened?)?,
        };
        dmt.space().set_saved(bytes);
        *seen = now;
        self.refused.lock().clear();
        Ok(())
    }

    /// Lets `save` save the `dirty` extents of file `id` in `dir` if there is room for that. Otherwise `refuse` must
    /// record durably that this file is a conflict. If it cannot, the extents are saved nevertheless, because the next
    /// session could take the change for ours and overwrite it (I9).
    pub(crate) fn within_room<T>(
        &self,
        (dir, dmt): (&PrivateDir, &ExtentTable),
        (id, path, dirty): (FileId, &Path, &[Extent]),
        refuse: impl FnOnce() -> Result<()>,
        save: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let bytes = bytes_on_disk(path, dirty);
        let mut seen = self.seen.lock();
        if !dmt.space().save(bytes) {
            self.count_changed(&mut seen, dir.path(), dmt)?;
            if !dmt.space().save(bytes) {
                if self.is_refused(id) || refuse().is_ok() {
                    self.refused.lock().insert(id);
                    return Err(no_room(dir, dmt, bytes));
                }
                dmt.space().save_anyway(bytes);
            }
        }
        let saved = save();
        *seen = changed_at(dir.path());
        match saved {
            Ok(_) => drop(self.refused.lock().remove(&id)),
            Err(_) => dmt.space().set_saved(allocated_bytes(dir)?),
        }
        saved
    }

    /// Whether the conflict of a file did not fit, so that flushing the file is pointless.
    pub(crate) fn is_refused(&self, id: FileId) -> bool {
        self.refused.lock().contains(&id)
    }

    /// The sum of `bytes_of` over all such files; files for which it returns `None` are forgotten.
    pub(crate) fn refused_bytes(&self, bytes_of: impl Fn(FileId) -> Option<u64>) -> u64 {
        let mut sum = 0;
        self.refused.lock().retain(|id| {
            let bytes = bytes_of(*id);
            sum += bytes.unwrap_or(0);
            bytes.is_some()
        });
        sum
    }

    /// Notes a saved conflict.
    pub(crate) fn note(&self, conflict: Skipped) {
        let mut unreported = self.unreported.lock();
        if unreported.listed.len() < UNREPORTED_MAX {
            unreported.listed.push(conflict);
        } else {
            unreported.more += 1;
        }
    }

    /// The conflicts not reported yet, for a command that reports them; they are saved in `dir`.
    pub(crate) fn take(&self, dir: &Path) -> Vec<Skipped> {
        let UnreportedConflicts { mut listed, more } = std::mem::take(&mut *self.unreported.lock());
        if more > 0 {
            let reason = format!("so many more conflicts are saved here: {more}");
            listed.push(Skipped { path: dir.to_owned(), reason });
        }
        listed
    }
}

/// The most bytes on disk that saving `dirty` of the file at `path` takes: the bytes themselves, the file system's
/// map of them, and their description.
fn bytes_on_disk(path: &Path, dirty: &[Extent]) -> u64 {
    let data: u64 = dirty.iter().map(|extent| extent.range.widen_to(BLOCK).len()).sum();
    let extents = dirty.len() as u64 * DESCRIPTION_BYTES_MAX;
    let name = path.as_os_str().len() as u64;
    data + BLOCK + (extents + 4 * name + BLOCK).next_multiple_of(BLOCK)
}

/// Bytes of the blocks of everything in `dir`.
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

/// Must not satisfy [`Error::is_full`]: neither the origin nor the cache's device is full.
fn no_room(dir: &PrivateDir, dmt: &ExtentTable, bytes: u64) -> Error {
    let (dir, max) = (dir.path().display(), dmt.space().saved_max());
    Error::Io(io::Error::other(format!(
        "the origin's file was changed behind the mount, and what only the cache has of it ({bytes} bytes on \
         disk) does not fit into {dir}, which may take {max} bytes of the cache's size: it stays on the cache; \
         deal with what is saved there and remove it, or mount with a larger --size, then flush"
    )))
}
