//! An engine without a cache: every call goes straight to the directory tree below.
//!
//! Front ends are tested with it, and it is the baseline for the cost of the front end.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{fallocate, ftruncate};

use crate::Allocate;
use crate::namespace::{Namespace, Node, Pin, contents, stat_descriptor};
use crate::{Caller, Engine, Make, Maker, OpenMode, Seek, SetAttr, Stat};
use halocline_os::error::Result;

/// The tree below one directory, unchanged.
#[derive(Debug)]
pub struct Uncached {
    namespace: Namespace,
    direct: bool,
}

/// An open file of an [`Uncached`].
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    _pin: Pin,
}

impl Uncached {
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

impl Engine for Uncached {
    type Node = Node;
    type Handle = OpenFile;
    type Tree = Namespace;

    fn below<'a>(&'a self, node: &'a Node) -> (&'a Namespace, Cow<'a, Node>) {
        (&self.namespace, Cow::Borrowed(node))
    }

    fn root(&self) -> Node {
        self.namespace.root()
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

    fn make(&self, entry: (&Node, &OsStr), what: Make<'_>, by: Maker) -> Result<(Node, Stat)> {
        self.namespace.make(entry, what, by)
    }

    fn create(
        &self,
        entry: (&Node, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Node, Stat, OpenFile)> {
        let (node, stat, file) = self.namespace.create(entry, mode, flags, by)?;
        let handle = self.handle(&node, file)?;
        Ok((node, stat, handle))
    }

    fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<Stat> {
        self.namespace.link(node, parent, name)
    }

    fn unlink(&self, parent: &Node, name: &OsStr) -> Result<()> {
        self.namespace.unlink(parent, name).map(drop)
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
        contents::read(&handle.file, offset, buf)
    }

    fn write(&self, handle: &OpenFile, offset: u64, data: &[u8], _caller: Caller) -> Result<()> {
        Ok(handle.file.write_all_at(data, offset)?)
    }

    fn fsync(&self, handle: &OpenFile, data_only: bool) -> Result<()> {
        contents::sync(&handle.file, data_only)
    }

    fn allocate(&self, handle: &OpenFile, offset: u64, len: u64, how: Allocate) -> Result<()> {
        Ok(fallocate(&handle.file, how.mode(), offset, len)?)
    }

    fn seek(&self, handle: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        contents::seek(&handle.file, offset, what)
    }
}
