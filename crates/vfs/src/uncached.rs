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
use crate::namespace::{Namespace, Pin, Vnode, contents, stat_descriptor};
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

    fn handle(&self, vnode: &Vnode, file: File) -> Result<OpenFile> {
        Ok(OpenFile { file, _pin: self.namespace.pin(vnode)? })
    }
}

impl Engine for Uncached {
    type Vnode = Vnode;
    type Handle = OpenFile;
    type Tree = Namespace;

    fn below<'a>(&'a self, vnode: &'a Vnode) -> (&'a Namespace, Cow<'a, Vnode>) {
        (&self.namespace, Cow::Borrowed(vnode))
    }

    fn root(&self) -> Vnode {
        self.namespace.root()
    }

    fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        self.namespace.lookup(parent, name)
    }

    fn stat(&self, vnode: &Vnode, handle: Option<&OpenFile>) -> Result<Stat> {
        match handle {
            Some(handle) => stat_descriptor(&handle.file),
            None => self.namespace.stat(vnode),
        }
    }

    fn set_attr(
        &self,
        vnode: &Vnode,
        handle: Option<&OpenFile>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        let mut change = *change;
        if let (Some(handle), Some(size)) = (handle, change.size) {
            ftruncate(&handle.file, size)?;
            change.size = None;
        }
        self.namespace.set_attr(vnode, &change)
    }

    fn make(&self, entry: (&Vnode, &OsStr), what: Make<'_>, by: Maker) -> Result<(Vnode, Stat)> {
        self.namespace.make(entry, what, by)
    }

    fn create(
        &self,
        entry: (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, OpenFile)> {
        let (vnode, stat, file) = self.namespace.create(entry, mode, flags, by)?;
        let handle = self.handle(&vnode, file)?;
        Ok((vnode, stat, handle))
    }

    fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        self.namespace.link(vnode, parent, name)
    }

    fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        self.namespace.unlink(parent, name, Some(by)).map(drop)
    }

    fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()> {
        self.namespace.rename(from, to, flags, Some(by)).map(drop)
    }

    fn open(&self, vnode: &Vnode, flags: i32, _caller: Caller) -> Result<OpenFile> {
        let file = self.namespace.open_file(vnode, flags)?;
        self.handle(vnode, file)
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
