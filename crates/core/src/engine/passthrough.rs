//! An engine without a cache: every call goes straight to the directory tree below.
//!
//! It is what a front end is tested with, and the baseline of what the front end costs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, fsync, ftruncate, seek};

use super::{Caller, DirEntry, Engine, Make, OpenMode, Seek, SetAttr, Stat};
use crate::device::Allocate;
use crate::error::Result;
use crate::namespace::{Directory, Namespace, Node, Pin, stat_descriptor};

/// The tree below one directory, as it is.
#[derive(Debug)]
pub struct Passthrough {
    namespace: Namespace,
    direct: bool,
}

/// An open file of a [`Passthrough`].
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    _pin: Pin,
}

impl Passthrough {
    /// Opens the tree below `dir`; with `direct`, files bypass the kernel's page cache above.
    pub fn open(dir: &Path, direct: bool) -> Result<Self> {
        Ok(Self { namespace: Namespace::open(dir)?, direct })
    }

    /// The tree.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn handle(&self, node: &Node, file: File) -> Result<OpenFile> {
        Ok(OpenFile { file, _pin: self.namespace.pin(node)? })
    }
}

impl Engine for Passthrough {
    type Node = Node;
    type Handle = OpenFile;
    type DirHandle = Directory;

    fn root(&self) -> Node {
        self.namespace.root()
    }

    fn key(&self, node: &Node) -> (u64, u64) {
        node.key()
    }

    fn lookup(&self, parent: &Node, name: &OsStr) -> Result<(Node, Stat)> {
        self.namespace.lookup(parent, name)
    }

    fn stat(&self, node: &Node, handle: Option<&OpenFile>) -> Result<Stat> {
        match handle {
            Some(handle) => stat_descriptor(&handle.file),
            None => self.namespace.stat(node),
        }
    }

    fn set_attr(
        &self,
        node: &Node,
        handle: Option<&OpenFile>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        let mut change = *change;
        if let (Some(handle), Some(size)) = (handle, change.size) {
            ftruncate(&handle.file, size)?;
            change.size = None;
        }
        self.namespace.set_attr(node, &change)
    }

    fn read_link(&self, node: &Node) -> Result<OsString> {
        self.namespace.read_link(node)
    }

    fn make(
        &self,
        parent: &Node,
        name: &OsStr,
        what: Make<'_>,
        umask: u32,
        caller: Caller,
    ) -> Result<(Node, Stat)> {
        self.namespace.make(parent, name, what, umask, caller)
    }

    fn create(
        &self,
        parent: &Node,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        caller: Caller,
    ) -> Result<(Node, Stat, OpenFile)> {
        let (node, stat, file) = self.namespace.create(parent, name, mode, umask, flags, caller)?;
        let handle = self.handle(&node, file)?;
        Ok((node, stat, handle))
    }

    fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<Stat> {
        self.namespace.link(node, parent, name)
    }

    fn unlink(&self, parent: &Node, name: &OsStr) -> Result<()> {
        self.namespace.unlink(parent, name).map(drop)
    }

    fn remove_dir(&self, parent: &Node, name: &OsStr) -> Result<()> {
        self.namespace.remove_dir(parent, name).map(drop)
    }

    fn rename(&self, from: (&Node, &OsStr), to: (&Node, &OsStr), flags: u32) -> Result<()> {
        self.namespace.rename(from, to, flags).map(drop)
    }

    fn open(&self, node: &Node, flags: i32, _caller: Caller) -> Result<OpenFile> {
        let file = self.namespace.open_file(node, flags)?;
        self.handle(node, file)
    }

    fn open_mode(&self, _handle: &OpenFile) -> OpenMode {
        OpenMode { direct: self.direct, keep_cache: !self.direct }
    }

    fn read(
        &self,
        handle: &OpenFile,
        offset: u64,
        buf: &mut [u8],
        _caller: Caller,
    ) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match handle.file.read_at(&mut buf[done..], offset + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&self, handle: &OpenFile, offset: u64, data: &[u8], _caller: Caller) -> Result<()> {
        Ok(handle.file.write_all_at(data, offset)?)
    }

    fn flush(&self, _handle: &OpenFile) -> Result<()> {
        Ok(())
    }

    fn fsync(&self, handle: &OpenFile, data_only: bool) -> Result<()> {
        if data_only { fdatasync(&handle.file) } else { fsync(&handle.file) }?;
        Ok(())
    }

    fn allocate(&self, handle: &OpenFile, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let flags = match how {
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::Reserve => FallocateFlags::empty(),
            Allocate::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
            Allocate::Zero { keep_size: true } => {
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
            }
        };
        Ok(fallocate(&handle.file, flags, offset, len)?)
    }

    fn seek(&self, handle: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        let to = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Ok(seek(&handle.file, to)?)
    }

    fn open_dir(&self, node: &Node) -> Result<Directory> {
        self.namespace.open_dir(node)
    }

    fn read_dir(
        &self,
        dir: &Directory,
        offset: u64,
        take: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        dir.read(offset, take)
    }

    fn sync_dir(&self, dir: &Directory) -> Result<()> {
        dir.sync()
    }

    fn statfs(&self, node: &Node) -> Result<libc::statvfs64> {
        self.namespace.statfs(node)
    }

    fn get_xattr(&self, node: &Node, name: &OsStr) -> Result<Vec<u8>> {
        self.namespace.get_xattr(node, name)
    }

    fn list_xattr(&self, node: &Node) -> Result<Vec<u8>> {
        self.namespace.list_xattr(node)
    }

    fn set_xattr(&self, node: &Node, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.namespace.set_xattr(node, name, value, flags)
    }

    fn remove_xattr(&self, node: &Node, name: &OsStr) -> Result<()> {
        self.namespace.remove_xattr(node, name)
    }
}
