//! A node of a tier, as a mount has it, with a store to whose requests something happens.

use std::ffi::OsStr;
use std::fmt::{self, Debug, Formatter};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::{self, ThreadId};

use halocline_api::config::CacheSize;
use halocline_api::control::Controlled;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::{self, InspectedShard, NameStore, State};
use halocline_cluster::registry::Registry;
use halocline_model::namespace::{Answer, InodeNumber, Script};
use halocline_os::error::Result;
use halocline_shared_tier::{Joining, REGISTRY, SharedTier, SpaceOptions, Vnode};
use halocline_vfs::{Caller, Engine, Make, Maker, Tree};
use parking_lot::Mutex;

use crate::disks::{self, Disks};

/// What a node does.
pub(crate) type Act = fn(&Mounted) -> Result<()>;

type Event = Box<dyn FnOnce() + Send>;

/// What happens before a request.
struct Interruption {
    requests_left: AtomicI64,
    event: Mutex<Option<Event>>,
    /// Whose requests are counted: threads in the background make some, too, and would be interrupted while what is tried goes on, or
    /// after its end.
    of_thread: Mutex<Option<ThreadId>>,
    /// How many requests are answered before one that is refused, because the store is full.
    until_full: AtomicI64,
}

impl Debug for Interruption {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "before {} more requests", self.requests_left.load(Ordering::SeqCst))
    }
}

/// A store that is interrupted before a request.
#[derive(Debug)]
struct Interrupted {
    names: MemoryNames,
    by: Arc<Interruption>,
}

impl NameStore for Interrupted {
    fn run(&self, shard: InodeNumber, script: &Script) -> names::Result<Answer> {
        let counts = *self.by.of_thread.lock() == Some(thread::current().id());
        if counts && self.by.requests_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            // Not locked meanwhile: it may say what happens next.
            let event = self.by.event.lock().take();
            if let Some(event) = event {
                event();
            }
        }
        if self.by.until_full.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(names::NamesError::Full("its memory is used up".to_owned()));
        }
        self.names.run(shard, script)
    }

    fn refresh(&self) -> names::Result<State> {
        self.names.refresh()
    }

    fn begin_epoch(&self, is_alone: bool) -> names::Result<()> {
        self.names.begin_epoch(is_alone)
    }

    fn reserve(&self, count: u64) -> names::Result<u64> {
        self.names.reserve(count)
    }

    fn shards(&self) -> names::Result<Vec<InodeNumber>> {
        self.names.shards()
    }

    fn inspect(&self, shard: InodeNumber) -> names::Result<Option<InspectedShard>> {
        self.names.inspect(shard)
    }

    fn remove(&self, shard: InodeNumber) -> names::Result<()> {
        self.names.remove(shard)
    }

    fn round_trips(&self) -> u64 {
        self.names.round_trips()
    }
}

/// A node of a tier, as a mount has it.
pub(crate) struct Mounted {
    pub(crate) tier: SharedTier,
    interruption: Arc<Interruption>,
}

pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
pub(crate) const BY: Maker = Maker { caller: CALLER, umask: 0 };

impl Mounted {
    /// The first node. New files go to its SSD, or to the shared disk.
    pub(crate) fn new(disks: &Disks, to_ssd: bool) -> Self {
        Self::of_node(disks, disks::NODES[0], to_ssd)
    }

    pub(crate) fn of_node(disks: &Disks, node: &str, to_ssd: bool) -> Self {
        Self::with_peers(disks, node, to_ssd, Some(&disks.peers()))
    }

    /// A node that is told where other nodes' SSDs are, or not.
    pub(crate) fn with_peers(disks: &Disks, node: &str, to_ssd: bool, peers: Option<&str>) -> Self {
        Self::excluding(if to_ssd { &[] } else { &["**"] }, disks, node, peers)
    }

    /// A node that keeps files off its SSD, and takes them from it in the background.
    pub(crate) fn excluding(
        globs: &[&str],
        disks: &Disks,
        node: &str,
        peers: Option<&str>,
    ) -> Self {
        let root = disks.at(node);
        let registry = Registry::open(&root.join("hdd").join(REGISTRY)).unwrap();
        let (requests_left, event) = (AtomicI64::new(i64::MAX), Mutex::default());
        let until_full = AtomicI64::new(i64::MAX);
        let of_thread = Mutex::default();
        let interruption = Arc::new(Interruption { requests_left, event, of_thread, until_full });
        let by = Arc::clone(&interruption);
        let names = Interrupted { names: disks.names.for_another_node(), by };
        let joining = Joining {
            root: &root,
            node: Some(node),
            peers,
            passthrough: false,
            store: Arc::clone(&disks.store) as _,
            names: Arc::new(names),
            registry,
            space: SpaceOptions {
                limit: CacheSize::Percent(90.0),
                high: 100.0,
                low: 99.0,
                policy: "lru".to_owned(),
                pin: Vec::new(),
                exclude: globs.iter().map(|&glob| glob.to_owned()).collect(),
                archive_after: None,
            },
        };
        Self { tier: joining.open().unwrap(), interruption }
    }

    /// Has something happen before its store gets a further request of this thread; 0 is the next one.
    pub(crate) fn interrupt(&self, before: i64, event: impl FnOnce() + Send + 'static) {
        *self.interruption.of_thread.lock() = Some(thread::current().id());
        *self.interruption.event.lock() = Some(Box::new(event));
        self.interruption.requests_left.store(before, Ordering::SeqCst);
    }

    /// The same, and then something else before a further one.
    pub(crate) fn interrupt_twice(
        &self,
        (before, event): (i64, impl FnOnce() + Send + 'static),
        (between, next): (i64, impl FnOnce() + Send + 'static),
    ) {
        let interruption = Arc::downgrade(&self.interruption);
        self.interrupt(before, move || {
            event();
            let interruption = interruption.upgrade().expect("the node is there");
            *interruption.event.lock() = Some(Box::new(next));
            interruption.requests_left.store(between, Ordering::SeqCst);
        });
    }

    /// Has a full store refuse one request, after so many more.
    pub(crate) fn is_full_after(&self, requests: i64) {
        self.interruption.until_full.store(requests, Ordering::SeqCst);
    }

    /// Whether it has refused it.
    pub(crate) fn was_full(&self) -> bool {
        self.interruption.until_full.load(Ordering::SeqCst) < 0
    }

    /// Whether that has happened.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.interruption.event.lock().is_none()
    }

    pub(crate) fn at(&self, path: &str) -> Result<Vnode> {
        let mut found = Engine::root(&self.tier);
        for part in path.split('/').filter(|part| !part.is_empty()) {
            found = self.tier.lookup(&found, OsStr::new(part))?.0;
        }
        Ok(found)
    }

    /// Splits a path into its directory and last name.
    pub(crate) fn above<'a>(&self, path: &'a str) -> Result<(Vnode, &'a OsStr)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.at(above)?, OsStr::new(name)))
    }

    pub(crate) fn create(&self, path: &str, text: &str) -> Result<()> {
        let (above, name) = self.above(path)?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let (_, _, handle) = self.tier.create((&above, name), 0o644, flags, BY)?;
        self.tier.write(&handle, 0, text.as_bytes(), CALLER)
    }

    pub(crate) fn mkdir(&self, path: &str) -> Result<()> {
        let (above, name) = self.above(path)?;
        self.tier.make((&above, name), Make::Directory(0o755), BY).map(drop)
    }

    pub(crate) fn link(&self, path: &str, new: &str) -> Result<()> {
        let (node, (above, name)) = (self.at(path)?, self.above(new)?);
        self.tier.link(&node, &above, name).map(drop)
    }

    pub(crate) fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let (above, name) = self.above(path)?;
        self.tier.make((&above, name), Make::Symlink(OsStr::new(target)), BY).map(drop)
    }

    pub(crate) fn unlink(&self, path: &str) -> Result<()> {
        let (above, name) = self.above(path)?;
        self.tier.unlink(&above, name, CALLER)
    }

    pub(crate) fn rmdir(&self, path: &str) -> Result<()> {
        let (above, name) = self.above(path)?;
        self.tier.below(&above).0.remove_dir(&above, name, CALLER)
    }

    pub(crate) fn rename(&self, from: &str, to: &str, flags: u32) -> Result<()> {
        let ((from, name), (to, new)) = (self.above(from)?, self.above(to)?);
        self.tier.rename((&from, name), (&to, new), flags, CALLER)
    }

    /// Moves a file to this node's SSD.
    pub(crate) fn promote(&self, path: &str) -> Result<()> {
        self.tier.warm(&[path.into()], false, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    /// Moves a file to the shared disk.
    pub(crate) fn demote(&self, path: &str) -> Result<()> {
        self.tier.evict(path.as_ref(), false, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    /// Makes files in two directories, one of them with several names, and other things.
    pub(crate) fn fill(&self) {
        for directory in ["a", "b", "a/below", "b/empty"] {
            self.mkdir(directory).unwrap();
        }
        for file in ["a/f", "b/g", "a/linked", "a/below/h"] {
            self.create(file, file).unwrap();
        }
        self.link("a/linked", "b/linked").unwrap();
        self.symlink("nowhere", "a/symlink").unwrap();
        self.symlink("elsewhere", "b/symlink").unwrap();
    }
}
