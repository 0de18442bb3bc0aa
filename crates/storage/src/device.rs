//! One server: a directory on one device. The trait has the data operations on descriptors of files that are there;
//! emulation, metering and faults are decorators.

use std::any::Any;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use halocline_model::request::ByteRange;
use halocline_vfs::Allocate;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

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

/// An open file on a server: an opaque handle, whose content only the server's own device accesses.
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
    /// On a server that is no directory.
    Opaque(Box<dyn OpaqueFile>),
}

/// An open file on a server that is no directory.
pub trait OpaqueFile: Any + Send + Sync + Debug {
    /// Another handle for the same file.
    fn again(&self) -> Box<dyn OpaqueFile>;
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Bytes of blocks in use.
    fn allocated(&self) -> io::Result<u64>;
    /// The next data or hole, as `lseek(2)`; `ENXIO` if there is none.
    fn seek(&self, whence: SeekFrom) -> io::Result<u64>;
}

impl ServerFile {
    /// Wraps a file of a mounted file system; its inode number is its identity on the server.
    pub fn new(file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Self { content: Content::File(file), inode })
    }

    /// A file of a server that is no directory, with its identity there.
    pub fn opaque(file: Box<dyn OpaqueFile>, inode: u64) -> Self {
        Self { content: Content::Opaque(file), inode }
    }

    /// The same as the server that made it knows it; `EBADF` if the file is on a server of another kind.
    pub fn as_opaque<F: OpaqueFile>(&self) -> io::Result<&F> {
        let found = match &self.content {
            Content::Opaque(file) => (&**file as &dyn Any).downcast_ref(),
            Content::File(_) => None,
        };
        found.ok_or_else(|| Errno::BADF.into())
    }

    /// The file itself, for the device of its directory; `EBADF` if the file is on a server of another kind.
    pub(crate) fn local(&self) -> io::Result<&File> {
        match &self.content {
            Content::File(file) => Ok(file),
            Content::Opaque(_) => Err(Errno::BADF.into()),
        }
    }

    /// The kernel's descriptor, so that the kernel can be asked to drop the pages that it keeps of the file. `None` if
    /// the kernel does not know the file. Bytes are read and written through [`Device`] only.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.content {
            Content::File(file) => Some(file.as_fd()),
            Content::Opaque(_) => None,
        }
    }

    /// Another handle for the same file.
    fn again(&self) -> io::Result<Self> {
        let content = match &self.content {
            Content::File(file) => Content::File(file.try_clone()?),
            Content::Opaque(file) => Content::Opaque(file.again()),
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
            Content::Opaque(file) => file.size(),
        }
    }

    /// Bytes of blocks in use.
    pub fn allocated(&self) -> io::Result<u64> {
        match &self.content {
            Content::File(file) => Ok(file.metadata()?.blocks() * SECTOR),
            Content::Opaque(file) => file.allocated(),
        }
    }

    /// The next data or hole, as `lseek(2)`; `ENXIO` if there is none.
    pub fn seek(&self, whence: SeekFrom) -> io::Result<u64> {
        match &self.content {
            Content::File(file) => Ok(rustix::fs::seek(file, whence)?),
            Content::Opaque(file) => file.seek(whence),
        }
    }
}

/// A file of the origin, which is always on a mounted file system: programs see its names and attributes, and the kernel
/// may serve it by itself.
#[derive(Debug)]
pub(crate) struct NamedFile(ServerFile);

impl NamedFile {
    /// Wraps an open file.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        ServerFile::new(file).map(Self)
    }

    /// What its device gets.
    pub(crate) const fn on_server(&self) -> &ServerFile {
        &self.0
    }

    /// The file: for its attributes, and for the kernel.
    pub(crate) fn file(&self) -> &File {
        self.0.local().expect("it was made of a file")
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
    /// Whether nothing can be written there.
    pub is_read_only: bool,
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
