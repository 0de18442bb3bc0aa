//! What the names that a directory lists lead to. What must hold: a name is passed over only if it is gone; whoever decides by
//! a whole tree what is left over must not decide by a part of it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::statx::stat_at;
use rustix::fs::readlinkat;
use rustix::io::Errno;

/// Attributes of what a name leads to, which may be a link; `None` if it was removed since it was listed.
///
/// # Errors
/// If they cannot be read.
pub(super) fn stat_of(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>> {
    match stat_at(dir, name) {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        stat => stat.map(Some),
    }
}

/// The target of a link; `None` if it was removed since it was listed, or is no link.
///
/// # Errors
/// If it cannot be read.
pub(super) fn target_of(dir: impl AsFd, name: &str) -> Result<Option<Vec<u8>>> {
    match readlinkat(dir, name, Vec::new()) {
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        target => Ok(Some(target?.into_bytes())),
    }
}
