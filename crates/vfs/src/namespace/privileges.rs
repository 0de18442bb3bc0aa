//! Rights that a program gets when it is run from a file.

use std::ffi::OsStr;
use std::fs::File;

use super::statx::stat_descriptor;
use super::xattr::is_set;

/// Whether an open file has set-id bits or capabilities, which a change of its contents must take away; also if that
/// cannot be seen. A set-group-id bit without group execution means mandatory locking.
#[must_use]
pub fn has_privileges(file: &File) -> bool {
    let Ok(stat) = stat_descriptor(file) else { return true };
    let (bits, mode) = (libc::S_ISGID | libc::S_IXGRP, stat.raw.st_mode);
    mode & libc::S_ISUID != 0
        || mode & bits == bits
        || is_set(file, OsStr::new("security.capability"))
}
