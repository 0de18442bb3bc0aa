//! Attributes of an inode: as shown, and as to be changed.

use std::time::SystemTime;

/// What `stat` shows.
#[derive(Debug, Clone, Copy)]
pub struct Stat {
    /// The origin's `statx` fields, with size, blocks and times corrected for cached bytes.
    pub raw: libc::stat64,
    /// Birth time, if the file system reports one.
    pub born: Option<SystemTime>,
}

impl Stat {
    /// One with nothing in it, for who fills in all that is known.
    pub fn empty() -> Self {
        // SAFETY: `stat64` is plain integers; all zeros is a value of it.
        Self { raw: unsafe { std::mem::zeroed() }, born: None }
    }

    /// Device and inode number.
    pub fn key(&self) -> (u64, u64) {
        (self.raw.st_dev, self.raw.st_ino)
    }

    /// The type of the inode, one of `S_IFREG`, `S_IFDIR` and the other `S_IF*`.
    pub fn kind(&self) -> u32 {
        self.raw.st_mode & libc::S_IFMT
    }

    /// Bytes that it uses on disk; `st_blocks` counts units of 512, whatever the file system's block size.
    pub fn disk_bytes(&self) -> u64 {
        self.raw.st_blocks.unsigned_abs() * 512
    }
}

/// Which attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: a truncate.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// A time to set.
#[derive(Debug, Clone, Copy)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// A given time.
    At(SystemTime),
}
