//! Whether an open file is the only one of its inode, including mappings: the kernel reveals this by granting a write
//! lease or not.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// `fcntl(2)`: which signal notifies the holder of a lease.
const F_SETSIG: i32 = 10;

/// How many checks this process has begun, and how many have ended.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Whether `file` is the only open file of its inode. If the file system does not support leases, this is unknown, and
/// the answer is no.
pub fn is_exclusive(file: &File) -> bool {
    let fd = file.as_raw_fd();
    BEGUN.fetch_add(1, Ordering::SeqCst);
    // SAFETY: these calls take plain numbers. If someone opens the file while the lease is held, they wait until it is
    // released two lines below, and the signal is one that is ignored.
    let is_exclusive = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    };
    ENDED.fetch_add(1, Ordering::SeqCst);
    is_exclusive
}

/// What an open that does not wait knows of the checks of its own process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnChecks {
    ended: u64,
}

impl OwnChecks {
    pub(crate) fn now() -> Self {
        Self { ended: ENDED.load(Ordering::SeqCst) }
    }

    /// Whether a check may have held a lease at some moment since.
    pub(crate) fn may_have_held_one(self) -> bool {
        BEGUN.load(Ordering::SeqCst) > self.ended
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
