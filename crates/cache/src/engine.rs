//! The extent engine: an origin with byte ranges of its files on a cache.
//!
//! This file answers the calls of a front end, each by the component that does it. Data goes through
//! [`redirect`](crate::redirect); names go straight to the origin's tree, with the cache's records following.

mod open;
mod operate;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use halocline_model::request::ByteRange;

use self::open::Assembled;
use crate::coherence::LocalCache;
use crate::components::{Base, Components, Controls};
use crate::extent::file::tail;
use crate::fill::Filler;
use crate::handle::Handle;
use crate::lease_renewal::LeaseRenewal;
use crate::rebuild::Rebuilder;
use crate::servers::Decorations;
use halocline_api::config::Config;
use halocline_api::control::{SOCKET_NAME, SOCKET_XATTR};
use halocline_os::error::Result;
use halocline_vfs::Allocate;
use halocline_vfs::engine::DropPages;
use halocline_vfs::namespace::xattr::{hidden_xattr, shown_xattrs};
use halocline_vfs::namespace::{Namespace, Vnode, has_privileges};
use halocline_vfs::{Caller, Engine, Make, Maker, OpenMode, Seek, SetAttr, Stat};

/// An origin with a cache in front of it.
#[derive(Debug)]
pub struct ExtentEngine {
    pub(crate) base: Base,
    pub(crate) components: Components,
    controls: Controls,
    rebuilder: Rebuilder,
    filler: Filler,
    renewal: LeaseRenewal,
}

impl ExtentEngine {
    /// Opens the origin with its cache, which from then on belongs to it ([`Binding`](halocline_api::config::Binding)).
    /// Files that an earlier session left dirty are found again; bytes of those that are gone are saved and noted (I4,
    /// I9).
    ///
    /// # Errors
    /// Names the directory, file or option that does not fit, and the remedy. The origin is then unchanged.
    pub fn open(origin_dir: &Path, cache_dir: &Path, config: &Config) -> Result<Self> {
        Self::open_decorated(origin_dir, cache_dir, config, Decorations::NONE)
    }

    /// The same with decorators around the devices of both sides.
    ///
    /// # Errors
    /// As [`ExtentEngine::open`].
    pub fn open_decorated(
        origin_dir: &Path,
        cache_dir: &Path,
        config: &Config,
        around: Decorations<'_>,
    ) -> Result<Self> {
        let assembled = open::assemble(origin_dir, cache_dir, config, around)?;
        let Assembled { base, components, meters, recovery } = assembled;
        // What the last session left is taken over before any thread works on it.
        components.session.take_over(&recovery)?;
        components.permits.attach(&(Arc::clone(&components.revocation) as Arc<dyn LocalCache>));
        let controls = Controls::wire(&base, &components, meters);
        let (rebuilder, filler) =
            (Rebuilder::start(&components.rounds), Filler::start(&components.fills));
        let renewal = LeaseRenewal::start(&components.own, &base.clock);
        Ok(Self { base, components, controls, rebuilder, filler, renewal })
    }

    /// Sets a note about the two sides together, shown in status and explanations. Only the first call counts.
    pub fn note_of_sides(&self, note: &'static str) {
        self.base.notes.set_of_sides(note);
    }

    /// Identifies the cache, whatever its directory is called.
    pub fn cache_id(&self) -> &str {
        &self.base.store.dmt.identity().cache_id
    }

    /// Ends the engine: what was acknowledged is durable on its side, and the cache is marked as cleanly closed.
    /// Flush first to leave the origin complete (I7).
    pub fn close(&self) -> Result<()> {
        self.filler.stop();
        self.rebuilder.stop();
        self.renewal.stop();
        self.base.origin.data.removals().work_off();
        self.components.session.leave()
    }

    /// For tests: bytes of blocks that the cache's objects use on disk, for checking I5.
    pub fn cache_allocated_bytes(&self) -> Result<u64> {
        Ok(self.base.store.objects.allocated_bytes()?)
    }

    /// Fetches wanted ranges (`C_flag`) until none is left or the cache has no room; returns the
    /// bytes fetched. The rebuilder does the same by itself whenever the origin is idle.
    pub fn fetch_wanted(&self) -> Result<u64> {
        self.components.fetcher.fetch_all()
    }
}

impl Engine for ExtentEngine {
    type Vnode = Vnode;
    type Handle = Handle;
    type Tree = Namespace;

    fn below<'a>(&'a self, vnode: &'a Vnode) -> (&'a Namespace, Cow<'a, Vnode>) {
        (&self.base.namespace, Cow::Borrowed(vnode))
    }

    fn root(&self) -> Vnode {
        self.base.namespace.root()
    }

    fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        let (vnode, stat) = self.base.namespace.lookup(parent, name)?;
        Ok((vnode, self.components.attributes.shown(stat)))
    }

    fn stat(&self, vnode: &Vnode, _handle: Option<&Handle>) -> Result<Stat> {
        Ok(self.components.attributes.shown(self.base.namespace.stat(vnode)?))
    }

    fn set_attr(
        &self,
        vnode: &Vnode,
        handle: Option<&Handle>,
        change: &SetAttr,
        _caller: Caller,
    ) -> Result<Stat> {
        self.components.attributes.set(vnode, handle.map(|handle| &**handle), change)
    }

    fn make(&self, entry: (&Vnode, &OsStr), what: Make<'_>, by: Maker) -> Result<(Vnode, Stat)> {
        self.components.names.make(entry, what, by)
    }

    fn create(
        &self,
        entry: (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, Handle)> {
        // O_TRUNC of an existing file is handled here, because the cache may hold bytes of it.
        let below = flags & !(libc::O_TRUNC | libc::O_APPEND);
        let _space = self.components.space.take_name(0)?;
        let create = || self.base.namespace.create(entry, mode, below, by);
        let (vnode, stat, file) = self.base.origin.with_room(create)?;
        let handle = self.components.opener.created(&vnode, file, flags, by.caller)?;
        if flags & libc::O_TRUNC != 0 && stat.raw.st_size > 0 {
            self.components.attributes.truncate(&vnode, Some(&handle), 0)?;
        }
        let stat = self.stat(&vnode, Some(&handle))?;
        Ok((vnode, stat, handle))
    }

    fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        Ok(self.components.attributes.shown(self.components.names.link(vnode, parent, name)?))
    }

    fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        self.components.names.unlink(parent, name, by)
    }

    fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()> {
        self.components.names.rename(from, to, (flags, by))
    }

    fn open(&self, vnode: &Vnode, flags: i32, caller: Caller) -> Result<Handle> {
        let handle = self
            .components
            .degraded_mode
            .retry_after_giving_up(|| self.components.opener.open(vnode, flags, caller))?;
        if flags & libc::O_TRUNC != 0 {
            self.components.attributes.truncate(vnode, Some(&handle), 0)?;
        }
        Ok(handle)
    }

    fn passes_through(&self) -> bool {
        self.components.page_cache_passthrough.is_wanted() && !self.components.permits.are_needed()
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
        // The kernel would read without asking for a permit.
        !self.components.permits.are_needed()
            && self.components.page_cache_passthrough.pass_through(handle, must, register)
    }

    fn open_mode(&self, handle: &Handle) -> OpenMode {
        handle.mode()
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8], caller: Caller) -> Result<usize> {
        self.components.redirector.read(handle, offset, buf, (caller.pid, false))
    }

    fn read_pages(
        &self,
        handle: &Handle,
        offset: u64,
        buf: &mut [u8],
        caller: Caller,
    ) -> Result<usize> {
        self.components.redirector.read(handle, offset, buf, (caller.pid, true))
    }

    fn write(&self, handle: &Handle, offset: u64, data: &[u8], caller: Caller) -> Result<()> {
        self.components.degraded_mode.retry_after_giving_up(|| {
            self.components.redirector.write(handle, offset, data, caller.pid)
        })?;
        self.rebuilder.maybe_wake();
        Ok(())
    }

    fn drops_pages_by(&self, front: Box<dyn DropPages>) {
        if self.components.permits.are_needed() {
            self.components.kernel_pages.are_dropped_by(front);
        }
    }

    fn was_given_privileges(&self, handle: &Handle) -> bool {
        self.components.permits.are_needed() && has_privileges(handle.origin.namespace_file())
    }

    fn shares_locks(&self) -> bool {
        self.components.permits.are_needed()
    }

    fn shares_names(&self) -> bool {
        self.components.permits.are_needed()
    }

    fn flush(&self, handle: &Handle) -> Result<()> {
        // On an origin that other nodes use, stamps say nothing about others.
        if handle.writable && !self.components.permits.are_needed() {
            self.components.lifecycle.closing(&handle.file, &handle.origin);
        }
        Ok(())
    }

    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        // The origin first: the size and the bytes that it holds; then the cache.
        handle.origin.sync(data_only)?;
        match handle.file.id() {
            Some(id) => self.components.barriers.make_durable(&handle.file, id),
            None => Ok(()),
        }
    }

    fn allocate(&self, handle: &Handle, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let range = ByteRange::at(offset, len);
        let _held = self.components.permits.to_allocate(handle, range)?;
        self.components
            .degraded_mode
            .retry_after_giving_up(|| self.components.resizer.allocate(handle, range, how))
    }

    fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64> {
        let _held = self.components.permits.to_read(handle, tail(offset), false)?;
        self.components.resizer.seek(handle, offset, what)
    }

    fn statfs(&self, vnode: &Vnode) -> Result<libc::statvfs64> {
        let totals = self.base.namespace.statfs(vnode)?;
        Ok(self.base.origin.with_removed(vnode, totals))
    }

    fn get_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<Vec<u8>> {
        if name == SOCKET_XATTR {
            let socket = self.base.settings.cache_dir.join(SOCKET_NAME);
            return Ok(socket.into_os_string().into_encoded_bytes());
        }
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::NODATA.into());
        }
        self.base.namespace.get_xattr(vnode, name)
    }

    fn list_xattr(&self, vnode: &Vnode) -> Result<Vec<u8>> {
        Ok(shown_xattrs(&self.base.namespace.list_xattr(vnode)?))
    }

    fn set_xattr(&self, vnode: &Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::PERM.into());
        }
        let _space = self.components.space.take_name(value.len() as u64)?;
        let _naming = self.components.own.name_change();
        self.base.namespace.set_xattr(vnode, name, value, flags)?;
        self.components.lifecycle.restamp(vnode)
    }

    fn remove_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<()> {
        if hidden_xattr(name) {
            return Err(rustix::io::Errno::PERM.into());
        }
        let _naming = self.components.own.name_change();
        self.base.namespace.remove_xattr(vnode, name)?;
        self.components.lifecycle.restamp(vnode)
    }
}
