//! What the client of a file system keeps in this machine's page cache of files that other machines change.
//!
//! Whatever is not known to be coherent counts as keeping pages: that costs time, the opposite costs bytes.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::Errno;

/// Types of file systems (`f_type` of `statfs`) that only one machine mounts, or whose clients drop their pages before
/// others change the bytes. Those that lie over others, such as overlayfs, are not among them.
const COHERENT: [u64; 16] = [
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x3153_464a, // JFS
    0x3434,      // NILFS
    0x5265_4973, // ReiserFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x00c3_6400, // CephFS
    0x0116_1970, // GFS2
    0x7461_636f, // OCFS2
];
/// Those whose clients write more than a program did, up to whole pages: NFS and SMB (three numbers).
const WRITING_PAGES: [u64; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];

/// The number of the system call `cachestat`, the same on all architectures.
const CACHESTAT: libc::c_long = 451;

/// How a client treats pages of files that others change, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientPages {
    /// It drops them in time.
    Coherent,
    /// It may keep old ones.
    Kept,
    /// It may keep old ones, and write a whole one where a program wrote a few bytes.
    WrittenWhole,
}

impl ClientPages {
    /// Those of the file system that an open file or directory is on.
    ///
    /// # Errors
    /// If it does not say what it is.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::of_type(fstatfs(file)?.f_type.cast_unsigned()))
    }

    fn of_type(f_type: u64) -> Self {
        // Some architectures have it as a negative number of 32 bits.
        let f_type = f_type & 0xffff_ffff;
        if WRITING_PAGES.contains(&f_type) {
            Self::WrittenWhole
        } else if COHERENT.contains(&f_type) {
            Self::Coherent
        } else {
            Self::Kept
        }
    }
}

/// Drops the pages of a file. Those that a request is using at the moment stay: see [`are_gone`].
///
/// # Errors
/// As of `posix_fadvise(2)`.
pub fn drop_all(file: impl AsFd) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Drops the pages of `len` bytes of a file from `start` on, the first and the last of them whole. Beside those in use,
/// pages stay that the kernel keeps together with others outside: see [`are_gone`].
///
/// # Errors
/// As of `posix_fadvise(2)`.
pub fn drop_range(file: impl AsFd, start: u64, len: u64) -> io::Result<()> {
    // The kernel leaves pages of which only a part is named.
    let page = rustix::param::page_size() as u64;
    let first = start - start % page;
    let end = start.saturating_add(len).checked_next_multiple_of(page);
    // Without a length all pages from there on are meant, and a length has fewer than 63 bits.
    let len = end.filter(|end| *end <= i64::MAX.cast_unsigned()).map(|end| end - first);
    if first > i64::MAX.cast_unsigned() {
        return Ok(());
    }
    Ok(fadvise(file, first, len.and_then(NonZeroU64::new), Advice::DontNeed)?)
}

/// Whether no page of `len` bytes from `start` is in the page cache, not even one that is being read; with a `len` of 0,
/// no page from `start` to the end of the file. `None` if the kernel cannot say (before Linux 6.5).
///
/// # Errors
/// As of `cachestat(2)`.
pub fn are_gone(file: impl AsFd, start: u64, len: u64) -> io::Result<Option<bool>> {
    let range = [start, len];
    // Pages in the cache, dirty, being written, evicted, and evicted lately.
    let mut counts = [0_u64; 5];
    // SAFETY: both pointers are to as many numbers as the call reads and writes, and both live on.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    if result == 0 {
        return Ok(Some(counts[0] == 0));
    }
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // Filters of system calls answer `EPERM`.
        Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_not_known_to_be_coherent_counts_as_keeping_pages() {
        for (f_type, expected) in [
            (0xef53, ClientPages::Coherent),
            (0xffff_ffff_9123_683e, ClientPages::Coherent),
            (0x6573_5546, ClientPages::Kept),
            (0x794c_7630, ClientPages::Kept),
            (0, ClientPages::Kept),
            (0x6969, ClientPages::WrittenWhole),
            (0xffff_ffff_ff53_4d42, ClientPages::WrittenWhole),
        ] {
            assert_eq!(ClientPages::of_type(f_type), expected, "{f_type:x}");
        }
    }

    #[test]
    fn pages_of_a_range_are_dropped_whole_and_others_stay() {
        const PAGE: u64 = 1 << 16;
        let mut file = tempfile::tempfile().unwrap();
        let is_kept = ClientPages::of(&file).unwrap() == ClientPages::Coherent;
        // One at a time, which the kernel does not keep together.
        for _ in 0..8 {
            file.write_all(&vec![1; 1 << 16]).unwrap();
            file.sync_all().unwrap();
        }
        drop_all(&file).unwrap();
        if !is_kept || are_gone(&file, 0, 0).unwrap() != Some(true) {
            return;
        }
        fadvise(&file, 0, None, Advice::Random).unwrap();
        for start in (0..8 * PAGE).step_by(4096) {
            rustix::io::pread(&file, &mut [0; 1], start).unwrap();
        }
        drop_range(&file, 2 * PAGE + 1, 2 * PAGE).unwrap();
        let gone = |part: u64| are_gone(&file, part * PAGE, 4096).unwrap();
        assert_eq!([2, 3, 4].map(gone), [Some(true); 3], "the last one is named in part");
        assert_eq!([0, 1, 5, 7].map(gone), [Some(false); 4]);
        drop_range(&file, 6 * PAGE, u64::MAX - 6 * PAGE).unwrap();
        assert_eq!([5, 6, 7].map(gone), [Some(false), Some(true), Some(true)]);
        drop_range(&file, u64::MAX - 1, 1).unwrap();
        drop_range(&file, 0, 0).unwrap();
    }

    #[test]
    fn pages_are_seen_and_dropped() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 100_000]).unwrap();
        file.sync_all().unwrap();
        let Some(first) = are_gone(&file, 0, 4096).unwrap() else { return };
        if ClientPages::of(&file).unwrap() != ClientPages::Coherent || first {
            return;
        }
        drop_all(&file).unwrap();
        // A file system in memory has nothing else.
        if are_gone(&file, 0, 0).unwrap() == Some(true) {
            assert_eq!(are_gone(&file, 8192, 4096).unwrap(), Some(true));
        }
    }
}
