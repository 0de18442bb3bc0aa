//! Leases of files (`fcntl(2)`, `F_SETLEASE`) that nobody gives up.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::skipping;

/// `fcntl(2)`: which signal notifies the holder of a lease.
const F_SETSIG: i32 = 10;

/// Takes a lease of this process, which ignores that it is to be given up; it ends when the file is closed. `None`, with
/// the reason, where the file system has no leases.
///
/// # Panics
/// If the file cannot be opened, or is open elsewhere.
#[track_caller]
pub fn leased(path: &Path, kind: i32) -> Option<File> {
    let file = File::open(path).unwrap();
    // SAFETY: these calls take plain numbers, and the signal is one that is ignored.
    let taken = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0
    };
    if taken {
        return Some(file);
    }
    let error = io::Error::last_os_error();
    let is_known = error.raw_os_error() != Some(libc::EINVAL);
    assert!(!is_known, "{}: no lease: {error}", path.display());
    skipping::skip(format!("{}: no leases there: {error}", path.display()));
    None
}
