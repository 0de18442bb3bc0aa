//! The extent engine: an origin with byte ranges of its files on a cache.
//!
//! This file answers the calls of a front end. Data goes through [`redirect`](crate::redirect);
//! names go straight to the origin's tree, with the cache's records following.

mod bulk;
mod open;
mod operate;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use halocline_model::request::ByteRange;

use crate::blocks::blocks;
use crate::components::Components;
use crate::extent::file::{WHOLE, tail};
use crate::fill::Filler;
use crate::handle::Handle;
use crate::lease_renewal::LeaseRenewal;
use crate::reach::origin_key;
use crate::rebuild::Rebuilder;
use crate::sides::Meters;
use crate::sight::Sight;
use crate::times::NS;
use halocline_api::control::{SOCKET_NAME, SOCKET_XATTR};
use halocline_meta::OriginKey;
use halocline_os::error::Result;
use halocline_storage::volume::origin::{hidden_xattr, shown_xattrs};
use halocline_vfs::Allocate;
use halocline_vfs::namespace::{Namespace, Node, Removed};
use halocline_vfs::{Caller, Engine, Make, Maker, OpenMode, Seek, SetAttr, Stat};

/// An origin with a cache in front of it.
#[derive(Debug)]
pub struct ExtentEngine {
    pub(crate) components: Arc<Components>,
    pub(crate) rebuilder: Rebuilder,
    pub(crate) filler: Filler,
    pub(crate) renewal: LeaseRenewal,
    pub(crate) meters: Meters,
    /// Names of the servers' profiles, the origin's first. Looked up once: the look waits for a device that hangs.
    pub(crate) profiles: Vec<String>,
    pub(crate) sight: Sight,
}

impl ExtentEngine {
    /// Attributes as programs see them: a time that the origin is still to be given, and blocks
    /// for bytes that only the cache has, so that nobody takes the file for a hole.
    fn shown(&self, mut stat: Stat) -> Stat {
        if stat.kind() != libc::S_IFREG {
            return stat;
        }
        self.components.origin.data.complete_stat(&mut stat);
        let Some(file) = self.components.files.by_key(origin_key(&stat)) else { return stat };
        if let Some(held_ns) = file.held_mtime_ns() {
            let (seconds, rest) = (held_ns.div_euclid(NS), held_ns.rem_euclid(NS));
            (stat.raw.st_mtime, stat.raw.st_mtime_nsec) = (seconds, rest);
            if (stat.raw.st_ctime, stat.raw.st_ctime_nsec) < (seconds, rest) {
                (stat.raw.st_ctime, stat.raw.st_ctime_nsec) = (seconds, rest);
            }
        }
        let (size, below) = (stat.raw.st_size.unsigned_abs(), stat.raw.st_blocks.unsigned_abs());
        stat.raw.st_blocks = blocks(&self.components.store, &file, size, below).cast_signed();
        stat
    }

    fn is_regular(stat: &Stat) -> bool {
        stat.kind() == libc::S_IFREG
    }

    /// What must happen to a regular file that lost a name in `parent`.
    fn name_gone(&self, parent: &Node, removed: &Removed) -> Result<()> {
        if !Self::is_regular(&removed.stat) {
            return Ok(());
        }
        let key = origin_key(&removed.stat);
        let file = self.components.files.by_key(key);
        if !removed.last {
            self.restamp_other_name(key, removed);
            return Ok(());
        }
        // A name that comes back after a power loss comes with the bytes that were fsynced (I4).
        if let Some(id) = self.components.store.dmt.find(key)
            && self.components.store.dmt.promised(id, WHOLE)
        {
            self.components.namespace.open_dir(parent)?.sync()?;
        }
        if let Some(file) = file {
            file.unlinked.store(true, Ordering::SeqCst);
            if file.is_open() {
                return Ok(());
            }
            let forgotten = match file.id() {
                Some(id) => self
                    .components
                    .relief
                    .relieved(|| self.components.lifecycle.forget_file(&file, id)),
                None => self.components.lifecycle.forget_data(&file),
            };
            self.components.known.forget_idle(&file);
            return forgotten;
        }
        self.components.lifecycle.forget_key(key, removed)
    }

    /// Before a name of a file goes that other nodes may have: they bring to the origin what is dirty of it.
    fn take_from_others(&self, parent: &Node, name: &OsStr) -> Result<()> {
        if !self.components.permits.are_needed() {
            return Ok(());
        }
        match self.components.namespace.lookup(parent, name) {
            Ok((node, stat)) if Self::is_regular(&stat) => {
                let file = self.components.known.file_of(&node)?;
                self.components.permits.to_resize(&file, 0).map(drop)
            }
            // Whoever removes it says why it cannot.
            _ => Ok(()),
        }
    }

    /// Before one of several names of a file goes: the records know the file by one name, so what
    /// is dirty goes to the origin and the cache starts anew with it.
    fn before_name_goes(&self, parent: &Node, name: &OsStr) -> Result<()> {
        let Ok((node, stat)) = self.components.namespace.lookup(parent, name) else {
            return Ok(());
        };
        if !Self::is_regular(&stat) || stat.raw.st_nlink <= 1 {
            return Ok(());
        }
        if self.components.store.dmt.find(origin_key(&stat)).is_some() {
            let file = self.components.known.file_of(&node)?;
            self.components.sweeper.flush_whole(&file, &|_| true)?;
        }
        Ok(())
    }

    fn truncate(&self, node: &Node, handle: Option<&Handle>, size: u64) -> Result<()> {
        let opened;
        // O_TRUNC is allowed with O_RDONLY, whose descriptor below cannot truncate.
        let writable = handle.filter(|handle| handle.may_flush);
        let (file, origin) = if let Some(handle) = writable {
            (Arc::clone(&handle.file), &handle.origin)
        } else {
            opened = self.components.origin.open(node, libc::O_WRONLY)?;
            (self.components.known.file_of(node)?, &opened)
        };
        let _held = self.components.permits.to_resize(&file, size)?;
        self.components.relief.relieved(|| self.components.resizer.truncate(&file, origin, size))
    }

    fn path_under(&self, parent: &Node, name: &OsStr) -> std::path::PathBuf {
        self.components.namespace.path_of(parent).join(name)
    }

    /// A file that lost one of several names: its time of change moved. Where it cannot be reached by
    /// another name, its clean bytes are read anew the next time.
    fn restamp_other_name(&self, key: OriginKey, removed: &Removed) {
        let node = removed.node.clone().or_else(|| {
            let record = self.components.store.dmt.file(self.components.store.dmt.find(key)?)?;
            self.components.origin.node_of(&record).ok().flatten()
        });
        if let Some(node) = node
            && let Err(error) = self.components.lifecycle.restamp(&node)
        {
            tracing::debug!("{}: {error}", self.components.namespace.path_of(&node).display());
        }
    }

    /// Lets the record of the file behind a name follow our own change of its ctime.
    fn restamp_name(&self, parent: &Node, name: &OsStr) -> Result<()> {
        match self.components.namespace.lookup(parent, name) {
            Ok((node, stat)) if Self::is_regular(&stat) => self.components.lifecycle.restamp(&node),
            _ => Ok(()),
        }
    }
}

impl Engine for ExtentEngine {
    type Node = Node;
    type Handle = Handle;

    fn below<'a>(&'a self, node: &'a Node) -> (&'a Namespace, Cow<'a, Node>) {
        (&self.components.namespace, Cow::Borrowed(node))
    }

    fn root(&self) -> Node {
        self.components.namespace.root()
    }

    fn lookup(&self, parent: &Node, name: &OsStr) -> Result<(Node, Stat)> {
        let (node, stat) = self.components.namespace.lookup(parent, name)?;
        Ok((node, self.shown(stat)))
    }

    fn stat(&self, node: &Node, _handle: Option<&Handle>) -> Result<Stat> {
        Ok(self.shown(self.components.namespace.stat(node)?))
    }

    fn set_attr(
        &self,
        node: &Node,
        handle: Option<&Handle>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        let mut change = *change;
        if let Some(size) = change.size.take() {
            self.truncate(node, handle, size)?;
        }
        let _naming = self.components.own.name_change();
        let timed =
            if change.mtime.is_some() { self.components.known.file_of_known(node)? } else { None };
        let stat = match timed {
            Some(file) => {
                let stat = self.components.times.take_time(&file, node, &change)?;
                self.components.known.forget_idle(&file);
                stat
            }
            None => self.components.namespace.set_attr(node, &change)?,
        };
        self.components.lifecycle.restamp(node)?;
        Ok(self.shown(stat))
    }

    fn make(&self, place: (&Node, &OsStr), what: Make<'_>, by: Maker) -> Result<(Node, Stat)> {
        let _space = self.components.space.take_name(0)?;
        self.components.namespace.make(place, what, by)
    }

    fn create(
        &self,
        place: (&Node, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Node, Stat, Handle)> {
        // O_TRUNC of a file that exists is ours to do: the cache may hold bytes of it.
        let below = flags & !(libc::O_TRUNC | libc::O_APPEND);
        let _space = self.components.space.take_name(0)?;
        let (node, stat, file) = self.components.namespace.create(place, mode, below, by)?;
        let handle = self.components.opener.created(&node, file, flags, by.caller)?;
        if flags & libc::O_TRUNC != 0 && stat.raw.st_size > 0 {
            self.truncate(&node, Some(&handle), 0)?;
        }
        let stat = self.stat(&node, Some(&handle))?;
        Ok((node, stat, handle))
    }

    fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<Stat> {
        let _space = self.components.space.take_name(0)?;
        let _naming = self.components.own.name_change();
        let stat = self.components.namespace.link(node, parent, name)?;
        self.components.lifecycle.restamp(node)?;
        Ok(self.shown(stat))
    }

    fn unlink(&self, parent: &Node, name: &OsStr) -> Result<()> {
        self.take_from_others(parent, name)?;
        self.before_name_goes(parent, name)?;
        let _naming = self.components.own.name_change();
        let removed = self.components.namespace.unlink(parent, name)?;
        self.name_gone(parent, &removed)
    }

    fn rename(&self, from: (&Node, &OsStr), to: (&Node, &OsStr), flags: u32) -> Result<()> {
        self.take_from_others(to.0, to.1)?;
        self.before_name_goes(to.0, to.1)?;
        let paths = (self.path_under(from.0, from.1), self.path_under(to.0, to.1));
        let _naming = self.components.own.name_change();
        let replaced = self.components.namespace.rename(from, to, flags)?;
        if let Some(replaced) = &replaced {
            self.name_gone(to.0, replaced)?;
        }
        let dmt = &self.components.store.dmt;
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.components.mappings.advisory(dmt.exchange(&paths.0, &paths.1))?;
            self.restamp_name(from.0, from.1)?;
        } else {
            self.components.mappings.advisory(dmt.rename(&paths.0, &paths.1))?;
        }
        self.restamp_name(to.0, to.1)
    }

    fn open(&self, node: &Node, flags: i32, caller: Caller) -> Result<Handle> {
        let handle =
            self.components.relief.relieved(|| self.components.opener.open(node, flags, caller))?;
        if flags & libc::O_TRUNC != 0 {
            self.truncate(node, Some(&handle), 0)?;
        }
        Ok(handle)
    }

    fn passes_through(&self) -> bool {
        self.components.warm.is_wanted() && !self.components.permits.are_needed()
    }

    fn maps_direct_files(&self) -> bool {
        !self.components.permits.are_needed()
    }

    fn pass_through(
        &self,
        handle: &Handle,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        // The kernel asks nobody before it reads.
        !self.components.permits.are_needed()
            && self.components.warm.pass_through(handle, must, register)
    }

    fn open_mode(&self, handle: &Handle) -> OpenMode {
        handle.mode()
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8], caller: Caller) -> Result<usize> {
        self.components.redirector.read(handle, offset, buf, caller.pid)
    }

    fn write(&self, handle: &Handle, offset: u64, data: &[u8], caller: Caller) -> Result<()> {
        self.components
            .relief
            .relieved(|| self.components.redirector.write(handle, offset, data, caller.pid))?;
        self.rebuilder.maybe_wake();
        Ok(())
    }

    fn shares_locks(&self) -> bool {
        self.components.permits.are_needed()
    }

    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        // The origin first: its size and its share of the bytes; then what the cache holds.
        handle.origin.sync(data_only)?;
        match handle.file.id() {
            Some(id) => self.components.barriers.make_durable(&handle.file, id),
            None => Ok(()),
        }
    }

    fn allocate(&self, handle: &Handle, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let range = ByteRange::at(offset, len);
        let _held = self.components.permits.to_write(&handle.file, range, false)?;
        self.components.relief.relieved(|| self.components.resizer.allocate(handle, range, how))
    }

    fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
        let _held = self.components.permits.to_read(&handle.file, tail(offset))?;
        self.components.resizer.seek(handle, offset, what)
    }

    fn get_xattr(&self, node: &Node, name: &OsStr) -> Result<Vec<u8>> {
        if name == SOCKET_XATTR {
            let socket = self.components.settings.cache_dir.join(SOCKET_NAME);
            return Ok(socket.into_os_string().into_encoded_bytes());
        }
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::NODATA.into());
        }
        self.components.namespace.get_xattr(node, name)
    }

    fn list_xattr(&self, node: &Node) -> Result<Vec<u8>> {
        Ok(shown_xattrs(&self.components.namespace.list_xattr(node)?))
    }

    fn set_xattr(&self, node: &Node, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::PERM.into());
        }
        let _space = self.components.space.take_name(value.len() as u64)?;
        let _naming = self.components.own.name_change();
        self.components.namespace.set_xattr(node, name, value, flags)?;
        self.components.lifecycle.restamp(node)
    }

    fn remove_xattr(&self, node: &Node, name: &OsStr) -> Result<()> {
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::PERM.into());
        }
        let _naming = self.components.own.name_change();
        self.components.namespace.remove_xattr(node, name)?;
        self.components.lifecycle.restamp(node)
    }
}
