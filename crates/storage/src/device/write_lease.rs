//! Whether an open file is the only one of its inode, mappings included: the kernel tells by giving
//! a write lease or not.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `fcntl(2)`: which signal notifies the holder of a lease.
const F_SETSIG: i32 = 10;

/// Whether `file` is the only open file of its inode. Where the file system gives no leases nobody
/// knows, and the answer is no.
pub fn is_exclusive(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: these calls take plain numbers. Should somebody open the file while the lease is
    // held, they wait for the next line but one, and the signal is one that nobody heeds.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_other_open_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        assert!(is_exclusive(&file));
        let reader = File::open(&path).unwrap();
        assert!(!is_exclusive(&file) && !is_exclusive(&reader));
        drop(file);
        assert!(is_exclusive(&reader));
        assert!(is_exclusive(&reader), "the lease was given back");
    }
}
