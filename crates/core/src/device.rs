//! One server: a directory on one device. The trait carries the data operations on descriptors
//! of files that live there; emulation, metering and faults are decorators of it.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;

use halocline_model::request::ByteRange;
use rustix::fs::FallocateFlags;

pub mod emulate;
pub mod fault;
pub(crate) mod lease;
pub mod local;
pub mod meter;
pub mod null;
pub(crate) mod passing;
pub mod pieces;

/// An open file on a server.
#[derive(Debug)]
pub struct ServerFile {
    file: File,
    inode: u64,
}

impl ServerFile {
    /// Wraps an open file; its inode number is its identity on the server.
    pub fn new(file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Self { file, inode })
    }

    /// The descriptor.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Identity of the file on its server: what an emulated head uses as the file's place.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// Bytes of the file system that holds a server's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size in bytes.
    pub total: u64,
    /// Bytes an ordinary user can still write.
    pub available: u64,
    /// Whether its file system has no inode left for another file.
    pub no_files: bool,
}

/// How [`Device::allocate`] changes a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Free the blocks; the range reads as zeros; the size stays.
    PunchHole,
    /// Reserve blocks and grow the file where the range passes its end.
    Reserve,
    /// Reserve blocks; the size stays.
    ReserveKeepSize,
    /// Make the range read as zeros, keeping the blocks; grows the file unless `keep_size`.
    Zero {
        /// Whether the file's size stays.
        keep_size: bool,
    },
}

impl Allocate {
    /// `fallocate(2)`'s mode.
    pub(crate) const fn mode(self) -> FallocateFlags {
        match self {
            Self::PunchHole => FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
            Self::Reserve => FallocateFlags::empty(),
            Self::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            Self::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
            Self::Zero { keep_size: true } => {
                FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE)
            }
        }
    }
}

/// The data operations of one server.
///
/// The caller guarantees that `file` was opened on this server with access that fits.
/// An implementation MUST be safe to call from many threads at once, MUST NOT report bytes as
/// written before the operating system below accepted them (they then survive `kill -9`), and
/// MUST pass the operating system's errors through unchanged.
pub trait Device: Send + Sync + Debug {
    /// Reads at `offset` into `bufs` in order; short only at the end of the file.
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize>;

    /// Writes all of `bufs` at `offset`.
    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()>;

    /// Punches, reserves or zeroes `range`.
    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()>;

    /// Sets the file's size.
    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()>;

    /// Makes the file's data durable; its metadata too unless `data_only`.
    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()>;

    /// Space of the file system under the server.
    fn space(&self) -> io::Result<Space>;
}
