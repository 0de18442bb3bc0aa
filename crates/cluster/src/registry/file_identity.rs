//! How a node identifies a file.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Statx, StatxFlags, makedev, statx};
use serde::{Deserialize, Serialize};

/// A file as a node identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// The device, where that matters.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch; 0 if the node's file system reports none.
    pub born_ns: u64,
}

impl FileIdentity {
    /// The identity of an open file or directory as the file system has it now, whatever its client caches.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(Self::of_statx(&statx(file, "", how, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?))
    }

    pub(super) fn of_statx(found: &Statx) -> Self {
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born_ns = i128::from(found.stx_btime.tv_sec) * 1_000_000_000
            + i128::from(found.stx_btime.tv_nsec);
        Self {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born_ns: u64::try_from(born_ns).ok().filter(|_| has_birth).unwrap_or(0),
        }
    }

    /// Whether two nodes identify a file alike; the device is not compared, because each node has its own number for
    /// it.
    pub(super) const fn is_alike(self, other: Self) -> bool {
        self.inode == other.inode && self.born_ns == other.born_ns
    }
}
