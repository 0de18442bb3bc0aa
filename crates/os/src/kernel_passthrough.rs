//! Requirements of kernel passthrough, and from which size it pays.

use std::io;

/// Smaller files are read from the kernel's page cache after one request: handing them over costs more than that.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Why the kernel accepts no files, with the remedy.
pub fn explain(error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => "mount as root (CAP_SYS_ADMIN in the first user namespace)",
        Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => {
            "it needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH"
        }
        Some(libc::ELOOP) => "the file system below is itself stacked on another",
        _ => "the mount process serves the files instead",
    };
    format!("{error}: {remedy}")
}
