//! The shared tier as an engine: what a front end asks of it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use halocline_api::control::SOCKET_XATTR;
use halocline_cluster::names::namespace::Failure;
use halocline_model::namespace::ROOT;
use halocline_os::error::Result;
use halocline_vfs::{
    Allocate, Caller, Counted, Engine, Make, Maker, OpenMode, Seek, SetAttr, Stat, Tree,
};
use rustix::io::Errno;

use crate::SharedTier;
use crate::base::Base;
use crate::directory::Directory;
use crate::entry_names::entry_name_of_program;
use crate::files::Handle;
use crate::inodes::Vnode;
use crate::stat_conversion::stat;
use crate::tree::SharedTree;

/// How long a lease of a directory must last for the kernel to use the directory's attributes once or twice more: it
/// does so for up to two ticks of its clock (20 ms at most), which begin when the thread that asked gets the answer.
const HELD_MIN: Duration = Duration::from_millis(40);

fn is_same_directory(one: &Stat, other: &Stat) -> bool {
    let of = |stat: &Stat| {
        let raw = &stat.raw;
        let times = [(raw.st_mtime, raw.st_mtime_nsec), (raw.st_ctime, raw.st_ctime_nsec)];
        (raw.st_mode, raw.st_uid, raw.st_gid, times)
    };
    of(one) == of(other)
}

/// What is done with names in directories of which one is gone for good fails with `ENOENT`, as on local file systems. A
/// disk, or what was looked up before, may say `ESTALE`: but there is nothing to be looked up again.
fn in_directories<T>(base: &Base, directories: &[&Vnode], done: Result<T>) -> Result<T> {
    let is_gone = |directory: &&Vnode| {
        let found = base.names.directory(directory.0.number);
        matches!(found, Err(Failure::Refused(Errno::NOENT)))
    };
    match done {
        Err(error) if error.errno() == libc::ESTALE && directories.iter().any(is_gone) => {
            Err(Errno::NOENT.into())
        }
        done => done,
    }
}

impl Engine for SharedTier {
    type Vnode = Vnode;
    type Handle = Handle;
    type Tree = SharedTree;

    fn below<'a>(&'a self, vnode: &'a Vnode) -> (&'a SharedTree, Cow<'a, Vnode>) {
        (&self.tree, Cow::Borrowed(vnode))
    }

    fn root(&self) -> Vnode {
        self.tree.base.table.intern(ROOT, true, None)
    }

    fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        self.recent.lookup(parent, name)
    }

    fn lookup_listed(
        &self,
        dir: &Directory,
        parent: &Vnode,
        name: &OsStr,
    ) -> Result<(Vnode, Stat)> {
        self.tree.lookup.lookup_listed(dir, &parent.0, name)
    }

    fn stat(&self, vnode: &Vnode, _handle: Option<&Handle>) -> Result<Stat> {
        self.tree.lookup.stat(&vnode.0)
    }

    fn holds_directory(&self, vnode: &Vnode, returned: &Stat) -> bool {
        let leased = self.tree.base.names.attributes().leased_directory(vnode.0.number);
        leased.is_some_and(|(found, left)| {
            left >= HELD_MIN && is_same_directory(&stat(&found), returned)
        })
    }

    fn set_attr(
        &self,
        vnode: &Vnode,
        handle: Option<&Handle>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        self.tree.attributes.set(vnode, handle, change)
    }

    fn make(
        &self,
        (parent, name): (&Vnode, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        let made = self.tree.names.make(parent, name, what, by);
        in_directories(&self.tree.base, &[parent], made)
    }

    fn create(
        &self,
        (parent, name): (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, Handle)> {
        let name = entry_name_of_program(parent.0.number, name)?;
        let created = self.files.create((parent, name), (mode, flags), by);
        in_directories(&self.tree.base, &[parent], created)
    }

    fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        in_directories(&self.tree.base, &[parent], self.tree.names.link(vnode, parent, name))
    }

    fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        in_directories(&self.tree.base, &[parent], self.tree.names.unlink(parent, name, by))
    }

    fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()> {
        let renamed = self.tree.names.rename(from, to, flags, by);
        in_directories(&self.tree.base, &[from.0, to.0], renamed)
    }

    fn open(&self, vnode: &Vnode, flags: i32, caller: Caller) -> Result<Handle> {
        Arc::clone(&self.files).open(vnode, flags, caller.pid)
    }

    /// Never: other nodes change the files without telling us.
    fn maps_direct_files(&self) -> bool {
        false
    }

    fn passes_through(&self) -> bool {
        self.tree.base.passthrough.is_wanted()
    }

    fn pass_through(
        &self,
        handle: &Handle,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> bool {
        handle.pass_through(must, register)
    }

    fn count_while_mapped(&self, handle: &Handle, counted: Counted) {
        handle.count_while_mapped(counted);
    }

    fn open_mode(&self, handle: &Handle) -> OpenMode {
        OpenMode { direct: !handle.is_passed(), keep_cache: false }
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8], _caller: Caller) -> Result<usize> {
        handle.read(offset, buf)
    }

    fn write(&self, handle: &Handle, offset: u64, data: &[u8], caller: Caller) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            done += self.write_some(handle, offset + done as u64, &data[done..], caller)?;
        }
        Ok(())
    }

    fn write_some(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        _caller: Caller,
    ) -> Result<usize> {
        handle.write(offset, data)
    }

    fn reports_at_close(&self) -> bool {
        false
    }

    /// Other nodes give them to the file with the bytes first.
    fn was_given_privileges(&self, handle: &Handle) -> bool {
        handle.has_privileges()
    }

    /// Locks are taken on the files with the bytes, so other nodes respect them as far as the file systems below do.
    fn shares_locks(&self) -> bool {
        true
    }

    fn shares_names(&self) -> bool {
        true
    }

    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        handle.sync(data_only)
    }

    fn allocate(&self, handle: &Handle, offset: u64, len: u64, how: Allocate) -> Result<()> {
        handle.allocate(offset, len, how)
    }

    fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
        handle.seek(offset, what)
    }

    fn get_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<Vec<u8>> {
        if name == SOCKET_XATTR {
            return Ok(self.socket().into_os_string().into_encoded_bytes());
        }
        self.tree.get_xattr(vnode, name)
    }
}
