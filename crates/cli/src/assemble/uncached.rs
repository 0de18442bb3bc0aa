//! The origin without a cache, behind the control interface.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use halocline_core::config::Config;
use halocline_core::control::{
    Controlled, Explanation, ExtentInfo, Health, MoveReport, ProcessHint, ProgressSink, Question,
    Rebuilder, Report, RuleChange, Rules, SOCKET_NAME, SOCKET_XATTR, Status,
};
use halocline_core::device::Allocate;
use halocline_core::engine::passthrough::Passthrough;
use halocline_core::engine::{Caller, DirEntry, Engine, Make, OpenMode, Seek, SetAttr, Stat};
use halocline_core::error::{Error, Result};
use halocline_core::meta::owner::Owner;
use halocline_model::request::ByteRange;

use crate::host::{Hosted, Where};

/// The origin as it is.
#[derive(Debug)]
pub(crate) struct Uncached {
    below: Passthrough,
    place: Where,
    config: Config,
    _owner: Owner,
}

impl Uncached {
    pub(super) fn open(place: &Where, config: &Config) -> Result<Self> {
        let owner = Owner::take(&place.cache)?;
        let below = Passthrough::open(&place.origin, config.direct)?;
        Ok(Self { below, place: place.clone(), config: config.clone(), _owner: owner })
    }
}

impl Hosted for Uncached {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Controlled for Uncached {
    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            origin: self.place.origin.clone(),
            cache: self.place.cache.clone(),
            mode: self.config.mode,
            policy: "never".into(),
            eviction: self.config.eviction.clone(),
            limit_bytes: 0,
            used_bytes: 0,
            mapped_bytes: 0,
            dirty_bytes: 0,
            oldest_dirty_age_ms: None,
            extents: 0,
            dirty_extents: 0,
            wanted_ranges: 0,
            health: Health::Ok,
            rebuilder: Rebuilder::Idle,
            servers: Vec::new(),
            rules: Rules::default(),
            report: self.report(),
            notes: Vec::new(),
        }
    }
    fn report(&self) -> Report {
        Report { policy: "never".into(), ..Report::default() }
    }
    fn locate(&self, _: &Path, _: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        Ok(Vec::new())
    }
    fn explain(&self, _: &Question) -> Result<Explanation> {
        Err(Error::invalid("there is no cache", "nothing is decided"))
    }
    fn flush(&self, _: Option<&Path>, _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(MoveReport::default())
    }
    fn warm(&self, _: &[PathBuf], _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(MoveReport::default())
    }
    fn evict(&self, _: &Path, _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(MoveReport::default())
    }
    fn change_rules(&self, _: &RuleChange) -> Result<Rules> {
        Ok(Rules::default())
    }
    fn hint(&self, _: &ProcessHint) -> Result<()> {
        Ok(())
    }
}

impl Engine for Uncached {
    type Node = <Passthrough as Engine>::Node;
    type Handle = <Passthrough as Engine>::Handle;
    type DirHandle = <Passthrough as Engine>::DirHandle;
    fn root(&self) -> Self::Node {
        self.below.root()
    }
    fn key(&self, node: &Self::Node) -> (u64, u64) {
        self.below.key(node)
    }
    fn lookup(&self, parent: &Self::Node, name: &OsStr) -> Result<(Self::Node, Stat)> {
        self.below.lookup(parent, name)
    }
    fn stat(&self, node: &Self::Node, handle: Option<&Self::Handle>) -> Result<Stat> {
        self.below.stat(node, handle)
    }
    fn set_attr(
        &self,
        node: &Self::Node,
        handle: Option<&Self::Handle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Result<Stat> {
        self.below.set_attr(node, handle, change, caller)
    }
    fn read_link(&self, node: &Self::Node) -> Result<OsString> {
        self.below.read_link(node)
    }
    fn make(
        &self,
        parent: &Self::Node,
        name: &OsStr,
        what: Make<'_>,
        umask: u32,
        caller: Caller,
    ) -> Result<(Self::Node, Stat)> {
        self.below.make(parent, name, what, umask, caller)
    }
    fn create(
        &self,
        parent: &Self::Node,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        caller: Caller,
    ) -> Result<(Self::Node, Stat, Self::Handle)> {
        self.below.create(parent, name, mode, umask, flags, caller)
    }
    fn link(&self, node: &Self::Node, parent: &Self::Node, name: &OsStr) -> Result<Stat> {
        self.below.link(node, parent, name)
    }
    fn unlink(&self, parent: &Self::Node, name: &OsStr) -> Result<()> {
        self.below.unlink(parent, name)
    }
    fn remove_dir(&self, parent: &Self::Node, name: &OsStr) -> Result<()> {
        self.below.remove_dir(parent, name)
    }
    fn rename(
        &self,
        from: (&Self::Node, &OsStr),
        to: (&Self::Node, &OsStr),
        flags: u32,
    ) -> Result<()> {
        self.below.rename(from, to, flags)
    }
    fn open(&self, node: &Self::Node, flags: i32, caller: Caller) -> Result<Self::Handle> {
        self.below.open(node, flags, caller)
    }
    fn open_mode(&self, handle: &Self::Handle) -> OpenMode {
        self.below.open_mode(handle)
    }
    fn read(
        &self,
        handle: &Self::Handle,
        offset: u64,
        buf: &mut [u8],
        caller: Caller,
    ) -> Result<usize> {
        self.below.read(handle, offset, buf, caller)
    }
    fn write(&self, handle: &Self::Handle, offset: u64, data: &[u8], caller: Caller) -> Result<()> {
        self.below.write(handle, offset, data, caller)
    }
    fn flush(&self, handle: &Self::Handle) -> Result<()> {
        self.below.flush(handle)
    }
    fn fsync(&self, handle: &Self::Handle, data_only: bool) -> Result<()> {
        self.below.fsync(handle, data_only)
    }
    fn allocate(&self, handle: &Self::Handle, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.below.allocate(handle, offset, len, how)
    }
    fn seek(&self, handle: &Self::Handle, offset: u64, what: Seek) -> Result<u64> {
        self.below.seek(handle, offset, what)
    }
    fn open_dir(&self, node: &Self::Node) -> Result<Self::DirHandle> {
        self.below.open_dir(node)
    }
    fn read_dir(
        &self,
        dir: &Self::DirHandle,
        offset: u64,
        take: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        self.below.read_dir(dir, offset, take)
    }
    fn sync_dir(&self, dir: &Self::DirHandle) -> Result<()> {
        self.below.sync_dir(dir)
    }
    fn statfs(&self, node: &Self::Node) -> Result<libc::statvfs64> {
        self.below.statfs(node)
    }
    fn get_xattr(&self, node: &Self::Node, name: &OsStr) -> Result<Vec<u8>> {
        if name == SOCKET_XATTR {
            return Ok(self.place.cache.join(SOCKET_NAME).as_os_str().as_bytes().to_vec());
        }
        self.below.get_xattr(node, name)
    }
    fn list_xattr(&self, node: &Self::Node) -> Result<Vec<u8>> {
        self.below.list_xattr(node)
    }
    fn set_xattr(&self, node: &Self::Node, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.below.set_xattr(node, name, value, flags)
    }
    fn remove_xattr(&self, node: &Self::Node, name: &OsStr) -> Result<()> {
        self.below.remove_xattr(node, name)
    }
}
