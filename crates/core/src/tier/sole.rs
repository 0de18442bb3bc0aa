//! Whether a file that the kernel served is still mapped.
//!
//! A mapping that is made through kernel passthrough holds the file below and not our handle: it
//! outlives the handle's last close, unseen. What programs store there goes to the inode on the
//! SSD, and would be lost if the file had moved; and what they read through us meanwhile would be
//! cached twice. So a file that the kernel has served stays where it is, and goes on being served
//! so, until nobody else has it open. The kernel tells that by giving a write lease or not.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inode::Inode;

impl Inode {
    /// Whether somebody may have the file mapped, as far as that is seen without closing our own
    /// open files; `file` is one of them.
    pub(super) fn may_be_mapped(&self, file: &File) -> bool {
        if !self.was_passed.load(Ordering::Acquire) {
            return false;
        }
        let mapped = !is_sole(file);
        if !mapped {
            self.was_passed.store(false, Ordering::Release);
        }
        mapped
    }

    /// Whether somebody has the file mapped. The caller holds `place` exclusively; open handles let
    /// go of their files but for `file`, which is open for reading only.
    pub(super) fn is_mapped(&self, file: &Arc<File>) -> bool {
        if self.was_passed.load(Ordering::Acquire) {
            for handle in self.handles() {
                handle.let_go(file);
            }
        }
        self.may_be_mapped(file)
    }
}

/// `fcntl(2)`: which signal tells the holder of a lease.
const F_SETSIG: i32 = 10;

/// Whether `file` is the only open file of its inode. Where the file system gives no leases nobody
/// knows, and the answer is no.
fn is_sole(file: &File) -> bool {
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
        assert!(is_sole(&file));
        let reader = File::open(&path).unwrap();
        assert!(!is_sole(&file) && !is_sole(&reader));
        drop(file);
        assert!(is_sole(&reader));
        assert!(is_sole(&reader), "the lease was given back");
    }
}
