//! The mark of a striped file that is being made shorter: its local files may hold bytes beyond its size.
//!
//! What must hold: a truncate that is interrupted, whatever of it was done, has happened or has not. So the file is marked, its
//! size is set by one system call, and only then are the local files cut, one server after the other. Whoever makes a
//! marked file longer cuts them first: no byte that was cut off is ever seen again.

use std::fs::File;
use std::io;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// Other versions leave it alone.
const ATTRIBUTE: &str = "user.halocline.cut";

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
        match rustix::fs::fgetxattr(self.0, ATTRIBUTE, &mut [0_u8; 0]) {
            Ok(_) | Err(Errno::RANGE) => Ok(true),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes it, if that is possible: one that stays costs a look at the local files, and nothing else.
    pub(super) fn clear(&self) {
        match rustix::fs::fremovexattr(self.0, ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => tracing::debug!("{ATTRIBUTE} stays: {error}"),
        }
    }
}
