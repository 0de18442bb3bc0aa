//! The mark of a striped file that was made shorter: its local files may hold bytes beyond its size, or will after a power loss.
//!
//! What must hold: a truncate that is interrupted, whatever of it was done, has happened or has not. So the file is marked, its
//! size is set by one system call, and only when both are durable are the local files cut, one server after the other. Whoever makes a
//! marked file longer cuts them first, durably: no byte that was cut off is ever seen again.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Other versions leave it alone.
const ATTRIBUTE: &str = "user.halocline.cut";

/// Whether the namespace file at `path` has the mark.
///
/// # Errors
/// As of `getxattr(2)`.
pub(super) fn is_marked(path: &Path) -> io::Result<bool> {
    is_there(rustix::fs::getxattr(path, ATTRIBUTE, &mut [0_u8; 0]))
}

fn is_there(found: rustix::io::Result<usize>) -> io::Result<bool> {
    match found {
        Ok(_) | Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The mark of one namespace file.
#[derive(Debug)]
pub(super) struct CutMark<'f>(pub(super) &'f File);

impl CutMark<'_> {
    /// Sets it.
    ///
    /// # Errors
    /// As of `fsetxattr(2)`: where the file system is full, there may be no room for it.
    pub(super) fn set(&self) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(self.0, ATTRIBUTE, b"1", XattrFlags::empty())?)
    }

    /// Whether it is set.
    ///
    /// # Errors
    /// As of `fgetxattr(2)`.
    pub(super) fn is_set(&self) -> io::Result<bool> {
        is_there(rustix::fs::fgetxattr(self.0, ATTRIBUTE, &mut [0_u8; 0]))
    }

    /// Removes it, if that is possible: one that stays costs a look at the local files, and nothing else.
    pub(super) fn clear(&self) {
        match rustix::fs::fremovexattr(self.0, ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => tracing::debug!("{ATTRIBUTE} stays: {error}"),
        }
    }
}
