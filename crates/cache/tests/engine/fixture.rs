//! An extent engine over two temporary directories, driven as a front end drives it.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{CacheSize, Config, OptionSpec, SIZE_MIN};
use halocline_api::control::{Controlled, MoveReport};
use halocline_cache::ExtentEngine;
use halocline_cache::{CacheServers, Decorations};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_storage::device::fault::{Faults, FaultyDevice};
use halocline_storage::device::memory::MemoryServer;
use halocline_storage::device::{Device, Directory};
use halocline_vfs::{Caller, Engine, Maker, SetAttr};
use tempfile::TempDir;

use crate::limited_device::LimitedDevice;
use crate::volatile::{Pages, VolatileDevice};

/// The caller of every request.
pub(crate) const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };
/// The same where it makes files.
pub(crate) const BY: Maker = Maker { caller: ME, umask: 0 };

/// An engine with its directories.
pub(crate) struct Fixture {
    pub(crate) origin: TempDir,
    pub(crate) cache: TempDir,
    pub(crate) config: Config,
    /// Faults of the origin's devices.
    pub(crate) origin_faults: Arc<Faults>,
    /// Faults of the cache's devices.
    pub(crate) cache_faults: Arc<Faults>,
    /// What both sides' devices have not synced, where a test takes the power away.
    pub(crate) volatile: Option<Arc<Pages>>,
    /// How much the origin holds, where a test limits it.
    pub(crate) origin_limit: Option<u64>,
    /// The machine's boot, where a test boots it.
    pub(crate) boot_id: Option<String>,
    /// The cache's servers, where they have no directories.
    pub(crate) memory: Option<Vec<MemoryServer>>,
    /// The engine's time.
    pub(crate) clock: Clock,
    /// Whether somebody else changes the origin: else a conflict is a false one.
    pub(crate) others: bool,
    engine: Option<Arc<ExtentEngine>>,
}

/// A configuration in which nothing moves unless a test asks for it. A size that would be refused
/// is given to data alone.
pub(crate) fn still(size: u64, policy: &str) -> Config {
    Config {
        size: CacheSize::Bytes(size),
        policy: policy.to_owned(),
        rebuild: false,
        fill: false,
        ..Config::default()
    }
}

/// A directory in memory where that exists.
fn memory_dir() -> TempDir {
    let (fast, builder) = (Path::new("/dev/shm"), tempfile::Builder::new());
    if fast.is_dir() { builder.tempdir_in(fast) } else { builder.tempdir() }.unwrap()
}

impl Fixture {
    pub(crate) fn new(config: Config) -> Self {
        let dir = || TempDir::new().unwrap();
        let mut fixture = Self::in_directories(config, dir(), dir());
        fixture.open();
        fixture
    }

    /// In memory where that exists: for tests that open very many engines, each with its syncs.
    pub(crate) fn in_memory(config: Config) -> Self {
        let mut fixture = Self::in_directories(config, memory_dir(), memory_dir());
        fixture.open();
        fixture
    }

    /// On emulated devices, in simulated time. The cache's servers have no directories.
    pub(crate) fn simulated(mut config: Config, emulate: &str) -> Self {
        config.set(OptionSpec::find("emulate").unwrap(), emulate).unwrap();
        let servers = config.cache_shape().servers;
        let mut fixture = Self::in_directories(config, memory_dir(), memory_dir());
        fixture.memory = Some((0..servers).map(|_| MemoryServer::default()).collect());
        fixture.clock = Clock::simulated();
        fixture.open();
        fixture
    }

    /// An engine that is not open yet.
    fn in_directories(config: Config, origin: TempDir, cache: TempDir) -> Self {
        let (origin_faults, cache_faults) = <(Arc<Faults>, Arc<Faults>)>::default();
        Self {
            origin,
            cache,
            config,
            origin_faults,
            cache_faults,
            volatile: None,
            origin_limit: None,
            boot_id: None,
            clock: Clock::MACHINE,
            memory: None,
            others: false,
            engine: None,
        }
    }

    pub(crate) fn engine(&self) -> &Arc<ExtentEngine> {
        self.engine.as_ref().expect("the engine is open")
    }

    pub(crate) fn open(&mut self) {
        assert!(self.engine.is_none());
        let begun = Instant::now();
        let engine = loop {
            match self.try_open() {
                Ok(engine) => break engine,
                // A child that another test starts holds all descriptors until it has become its
                // own program, the lock of the engine that was just ended among them.
                Err(error)
                    if error.to_string().contains("in use by process")
                        && begun.elapsed() < Duration::from_mins(5) =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("the engine opens: {error}"),
            }
        };
        self.engine = Some(Arc::new(engine));
    }

    pub(crate) fn try_open(&self) -> Result<ExtentEngine> {
        let faulty = |faults: &Arc<Faults>, below| -> Arc<dyn Device> {
            Arc::new(FaultyDevice::new(below, Arc::clone(faults)))
        };
        let volatile = |below| -> Arc<dyn Device> {
            match &self.volatile {
                Some(pages) => Arc::new(VolatileDevice::new(below, Arc::clone(pages))),
                None => below,
            }
        };
        let limited = |below| -> Arc<dyn Device> {
            match self.origin_limit {
                Some(limit) => Arc::new(LimitedDevice::new(below, self.origin.path(), limit)),
                None => below,
            }
        };
        let in_memory = |index: usize| -> (Arc<dyn Directory>, Arc<dyn Device>) {
            let server = &self.memory.as_ref().unwrap()[index];
            (Arc::new(server.clone()), Arc::new(server.clone()))
        };
        let around = Decorations {
            origin: &|_, below| faulty(&self.origin_faults, limited(volatile(below))),
            cache: &|_, below| faulty(&self.cache_faults, volatile(below)),
            cache_servers: self.memory.as_ref().map(|_| &in_memory as CacheServers<'_>),
            record_stores: &crate::plain_records::ROW,
            clock: &self.clock,
            boot_id: self.boot_id.as_deref(),
            data_bytes: match self.config.size {
                CacheSize::Bytes(size) if size < SIZE_MIN => Some(size - size / 128),
                _ => None,
            },
            ..Decorations::NONE
        };
        ExtentEngine::open_decorated(self.origin.path(), self.cache.path(), &self.config, around)
    }

    /// Goes on with another cache directory, as after a copy of it.
    pub(crate) fn with_cache(&mut self, cache: TempDir) {
        assert!(self.engine.is_none());
        self.cache = cache;
    }

    /// The engine, which nobody but itself kept from writing to the origin what is dirty (I9).
    fn take(&mut self) -> Arc<ExtentEngine> {
        let engine = self.engine.take().unwrap();
        assert!(self.others || engine.report().conflicts == 0, "{:?}", engine.status().notes);
        engine
    }

    /// Closes as an unmount does, flushing first.
    pub(crate) fn close(&mut self) {
        self.flush();
        let engine = self.take();
        engine.close().unwrap();
    }

    /// Closes without flushing, as `umount --keep-dirty` does.
    pub(crate) fn close_dirty(&mut self) {
        let engine = self.take();
        engine.close().unwrap();
    }

    /// Drops everything in memory, as `kill -9` does.
    pub(crate) fn crash(&mut self) {
        let engine = self.take();
        let engine = Arc::into_inner(engine).expect("no handle outlives the crash");
        drop(engine);
    }

    pub(crate) fn flush(&self) -> MoveReport {
        let engine: &ExtentEngine = self.engine();
        Controlled::flush(engine, None, false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    pub(crate) fn evict(&self, name: &str) -> MoveReport {
        self.engine().evict(Path::new(name), false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    pub(crate) fn warm(&self, name: &str) -> MoveReport {
        let paths = [Path::new(name).to_owned()];
        self.engine().warm(&paths, false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    pub(crate) fn vnode(&self, name: &str) -> <ExtentEngine as Engine>::Vnode {
        let engine = self.engine();
        engine.lookup(&engine.root(), OsStr::new(name)).unwrap().0
    }

    pub(crate) fn handle(&self, name: &str) -> <ExtentEngine as Engine>::Handle {
        let engine = self.engine();
        if let Ok((vnode, _)) = engine.lookup(&engine.root(), OsStr::new(name)) {
            return engine.open(&vnode, libc::O_RDWR, ME).unwrap();
        }
        let flags = libc::O_RDWR | libc::O_CREAT;
        engine.create((&engine.root(), OsStr::new(name)), 0o644, flags, BY).unwrap().2
    }

    pub(crate) fn write(&self, name: &str, offset: u64, data: &[u8]) {
        self.engine().write(&self.handle(name), offset, data, ME).unwrap();
    }

    pub(crate) fn read(&self, name: &str, offset: u64, len: usize) -> Vec<u8> {
        self.try_read(name, offset, len).unwrap()
    }

    pub(crate) fn try_read(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0xEE; len];
        let got = self.engine().read(&self.handle(name), offset, &mut buf, ME)?;
        buf.truncate(got);
        Ok(buf)
    }

    pub(crate) fn truncate(&self, name: &str, size: u64) {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.engine().set_attr(&self.vnode(name), None, &change, ME).unwrap();
    }

    pub(crate) fn size(&self, name: &str) -> u64 {
        let stat = self.engine().stat(&self.vnode(name), None).unwrap();
        u64::try_from(stat.raw.st_size).unwrap()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        let engine = self.engine();
        engine.lookup(&engine.root(), OsStr::new(name)).is_ok()
    }

    /// Bytes of blocks that the cache's objects use on disk.
    pub(crate) fn cache_blocks(&self) -> u64 {
        self.engine().cache_allocated_bytes().unwrap()
    }
}
