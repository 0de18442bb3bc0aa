//! Room on an SSD that is set aside for its being full: a file that is removed then.
//!
//! The mark of a move may need a block of its own: where an inode has no room for it, and the disk has none, nothing could
//! leave the SSD, and so nothing would ever make room there.

use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};
use rustix::fs::{AtFlags, FallocateFlags, FileType, fallocate, renameat, statat};

use super::tree::{LEFTOVERS, Tree, fresh};

/// The file that is removed.
const FILE: &str = "room.spare";
/// Its size in bytes, enough for the marks of all files that are moved at once.
const BYTES: u64 = 256 << 10;
/// It is made where so many times its size are free.
const FREE_TIMES: u64 = 4;

/// Sets the room aside, unless it is already, or the disk has little. What else has its name makes way.
///
/// # Errors
/// Those of the file system; one that allocates only what is written keeps none. [`Error::Invalid`] if something else has the
/// name, and cannot make way.
pub(crate) fn keep(tree: &Tree) -> Result<()> {
    if is_kept(&tree.private) {
        return Ok(());
    }
    make_way(&tree.private)?;
    let totals = tree.totals()?;
    let free_bytes = totals.f_bavail.saturating_mul(totals.f_frsize);
    if free_bytes / FREE_TIMES < BYTES {
        return Ok(());
    }
    let file = tree.private.file(FILE, Use::Write)?;
    let made = fallocate(&file, FallocateFlags::empty(), 0, BYTES);
    Ok(made.inspect_err(|_| drop(tree.private.remove(FILE)))?)
}

/// Clears the name of what is no file of ours: bytes that have no other name are kept where people find them.
fn make_way(private: &PrivateDir) -> Result<()> {
    let foreign = match private.file(FILE, Use::Read) {
        Ok(_) => return Ok(()),
        Err(error) if error.errno() == libc::ENOENT => return Ok(()),
        Err(foreign @ Error::Invalid { .. }) => foreign,
        Err(error) => return Err(error),
    };
    let found = statat(private, FILE, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let moved = if found.st_nlink > 1 && !is_directory {
        private.remove(FILE).map(|()| "it was removed; its other names are left".to_owned())
    } else {
        private.sub(LEFTOVERS).and_then(|leftovers| {
            let name = fresh(FILE, 0);
            renameat(private, FILE, &leftovers, &name)?;
            Ok(format!("it is {} now", leftovers.path().join(&name).display()))
        })
    };
    match moved {
        Ok(now) => {
            tracing::warn!("{foreign}; {now}: Halocline needs its name for room on a full SSD");
            Ok(())
        }
        Err(error) => Err(Error::invalid(
            format!("{foreign} ({error})"),
            "move it away: until then nothing can leave this SSD once it is full",
        )),
    }
}

/// Makes a step of what will free more than it takes: on a full disk it has the room that is set aside.
///
/// # Errors
/// Those of the step.
pub(super) fn freeing_step<T, E: Into<Error>>(
    tree: &Tree,
    what: &'static str,
    mut act: impl FnMut() -> Result<T, E>,
) -> Result<T> {
    match tree.step(what, &mut act) {
        Err(error) if error.errno() == libc::ENOSPC && give_up(tree) => tree.step(what, act),
        done => done,
    }
    .map_err(|error| match error {
        Error::Io(_) if error.errno() == libc::ENOSPC => Error::Refused {
            message: format!(
                "{} is full, and moves off it need some blocks: free some there",
                tree.path.display()
            ),
            errno: libc::ENOSPC,
        },
        error => error,
    })
}

/// Gives the room up; returns whether there is any now. Another step may have given it up a moment ago.
fn give_up(tree: &Tree) -> bool {
    let was_kept = is_kept(&tree.private) && tree.private.remove(FILE).is_ok();
    was_kept || tree.totals().is_ok_and(|now| now.f_bavail > 0)
}

fn is_kept(private: &PrivateDir) -> bool {
    let file = private.file(FILE, Use::Read);
    file.is_ok_and(|file| file.metadata().is_ok_and(|of| of.len() >= BYTES))
}
