//! Open files by path: what has no other is reopened or linked so.

use std::os::fd::{AsFd, AsRawFd};

/// A path by which a descriptor can be reopened.
pub(crate) fn proc_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}
