//! Room on an SSD that is set aside for its being full: a file that is removed then.
//!
//! The mark of a move may need a block of its own: where an inode has no room for it, and the disk has none, nothing could
//! leave the SSD, and so nothing would ever make room there.

use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};
use rustix::fs::{FallocateFlags, fallocate};

use super::tree::Tree;

/// The file that is removed.
const FILE: &str = "room.spare";
/// Its size in bytes, enough for the marks of all files that are moved at once.
const BYTES: u64 = 256 << 10;
/// It is made where so many times its size are free.
const FREE_TIMES: u64 = 4;

/// Sets the room aside, unless it is already, or the disk has little.
///
/// # Errors
/// Those of the file system; one that allocates only what is written keeps none.
pub(crate) fn keep(tree: &Tree) -> Result<()> {
    let totals = tree.totals()?;
    let free_bytes = totals.f_bavail.saturating_mul(totals.f_frsize);
    if free_bytes / FREE_TIMES < BYTES || is_kept(&tree.private) {
        return Ok(());
    }
    let file = tree.private.file(FILE, Use::Write)?;
    let made = fallocate(&file, FallocateFlags::empty(), 0, BYTES);
    Ok(made.inspect_err(|_| drop(tree.private.remove(FILE)))?)
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
