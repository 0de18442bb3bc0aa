//! One server: a directory on one device. The trait has the data operations on descriptors of files that are there;
//! emulation, metering and faults are decorators.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;

use halocline_model::request::ByteRange;
use halocline_vfs::Allocate;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use self::memory::MemoryFile;

pub mod directory;
pub mod emulate;
pub mod fault;
pub mod local;
pub mod memory;
pub mod meter;
pub mod null;
pub mod piecewise;

pub use directory::Directory;

/// The unit of `st_blocks`, whatever the file system's own block size.
pub(crate) const SECTOR: u64 = 512;

/// An open file on a server. Only the server's own device accesses its content.
#[derive(Debug)]
pub struct ServerFile {
    content: Content,
    inode: u64,
}

/// The storage of a file's bytes.
#[derive(Debug)]
enum Content {
    /// On a mounted file system.
    File(File),
    /// On a [`memory::MemoryServer`].
    Memory(MemoryFile),
}

impl ServerFile {
    /// Wraps an open file; its inode number is its identity on the server.
    pub fn new(file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Self { content: Content::File(file), inode })
    }

    const fn in_memory(file: MemoryFile, inode: u64) -> Self {
        Self { content: Content::Memory(file), inode }
    }

    /// The descriptor; `EBADF` if the file is not on a mounted file system.
    pub fn file(&self) -> io::Result<&File> {
        match &self.content {
            Content::File(file) => Ok(file),
            Content::Memory(_) => Err(Errno::BADF.into()),
        }
    }

    fn memory(&self) -> io::Result<&MemoryFile> {
        match &self.content {
            Content::Memory(file) => Ok(file),
            Content::File(_) => Err(Errno::BADF.into()),
        }
    }

    /// Another handle for the same file.
    fn again(&self) -> io::Result<Self> {
        let content = match &self.content {
            Content::File(file) => Content::File(file.try_clone()?),
            Content::Memory(file) => Content::Memory(file.clone()),
        };
        Ok(Self { content, inode: self.inode })
    }

    /// Identity of the file on its server, from which an emulated disk derives the file's position.
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Size in bytes.
    pub fn size(&self) -> io::Result<u64> {
        match &self.content {
            Content::File(file) => Ok(file.metadata()?.len()),
            Content::Memory(file) => Ok(file.len()),
        }
    }

    /// Bytes of blocks in use.
    pub fn allocated(&self) -> io::Result<u64> {
        match &self.content {
            Content::File(file) => Ok(file.metadata()?.blocks() * SECTOR),
            Content::Memory(file) => Ok(file.allocated()),
        }
    }

    /// The next data or hole, as `lseek(2)`; `ENXIO` if there is none.
    pub fn seek(&self, whence: SeekFrom) -> io::Result<u64> {
        match &self.content {
            Content::File(file) => Ok(rustix::fs::seek(file, whence)?),
            Content::Memory(file) => file.seek(whence),
        }
    }
}

/// Space of the file system that holds a server's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size in bytes.
    pub total: u64,
    /// Bytes that an ordinary user can still write.
    pub available: u64,
    /// Whether its file system has no inode left for another file.
    pub no_files: bool,
}

/// The data operations of one server.
///
/// The caller guarantees that `file` was opened on this server with suitable access. An implementation MUST be safe to
/// call from many threads at once, MUST NOT report bytes as written before the operating system below accepted them
/// (they then survive `kill -9`), and MUST pass the operating system's errors through unchanged.
pub trait Device: Send + Sync + Debug {
    /// Reads at `offset` into `bufs` in order; the result is short only at the end of the file.
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
