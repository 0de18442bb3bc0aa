//! A node's agent: it gets tokens from the store for the engine's permits, and gives them up where others want them.
//!
//! What must hold (`docs/decisions/0026-tokens-by-compare-and-swap.md`):
//! - A permit under a token that the node holds asks no store and takes no lock but the file's.
//! - A range is given up in this order: no permit begins there, those under way end, the engine brings it to the origin and drops
//!   it, and only then the store is told.
//! - A node without a valid lease, by its own clock and less a margin, begins no permit (I12). Only exclusive tokens
//!   survive a lapse.
//! - A change of the members is computed from members no older than the tokens that they are used with; a node wrongly
//!   taken for live only keeps its tokens too long.

mod copies;
mod file;
mod keeper;
mod pieces;
mod yielding;

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use halocline_cache::coherence::{Coherence, FileTokens, Holder, SharedFile};
use halocline_model::token::{Epoch, Session, Tokens};
use halocline_os::boot_id::boot_id;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use parking_lot::{Condvar, Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::counters::{Counters, Counts};
use crate::registry::{Entry, Registry};
use crate::store::{Roll, Store, StoreError};
use copies::Correspondence;
use file::File;
pub(crate) use keeper::remove;
use yielding::Queue;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name, for people.
    pub node: String,
    /// Its cache directory.
    pub cache: PathBuf,
    /// Which cache that is.
    pub cache_id: String,
    /// How long a lease runs.
    pub lease: Duration,
    /// How much earlier than the store this node takes its lease to be over: longer than any system call on the origin
    /// may take, and the clocks may differ.
    pub margin: Duration,
    /// How long a program may wait for a token before it gets an error.
    pub wait_limit: Duration,
    /// How long a waiting request waits at most before it checks by itself: messages may be lost.
    pub poll: Duration,
    /// The node's clock, which leases run by.
    pub clock: Clock,
    /// Where the caches of other nodes are reached here, if they are: the caches' paths with `{node}` in place of a
    /// node's name, and `{cache}` in place of the path that it names itself.
    pub peers: Option<String>,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new(node: String, cache: PathBuf, cache_id: String) -> Self {
        Self {
            node,
            cache,
            cache_id,
            lease: Duration::from_secs(30),
            margin: Duration::from_secs(10),
            wait_limit: Duration::from_mins(2),
            poll: Duration::from_millis(500),
            clock: Clock::MACHINE,
            peers: None,
        }
    }
}

/// The agent. Dropping it leaves everything as if the node were killed; [`leave`](Self::leave) ends its session.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the agent's threads and its files share.
pub(crate) struct Shared {
    options: Options,
    store: Arc<dyn Store>,
    registry: Registry,
    session: Session,
    holder: OnceLock<Weak<dyn Holder>>,
    files: Mutex<FxHashMap<SharedFile, Arc<File>>>,
    lease: Lease,
    /// The roll that was read last, and when; the store's may be newer.
    roll: Mutex<(Arc<Roll>, Instant)>,
    /// The last epoch in which this session asserted what it holds.
    asserted: Mutex<Epoch>,
    /// Shared by changes of tokens; exclusive while the node asserts what it holds.
    changes: RwLock<()>,
    /// Why nothing is granted, if nothing is.
    obstacle: Mutex<Option<String>>,
    queue: Queue,
    stop: AtomicBool,
    /// Wakes the keeper of the lease.
    woken: (Mutex<bool>, Condvar),
    counters: Counters,
    correspondence: Correspondence,
}

impl Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("node", &self.options.node).finish_non_exhaustive()
    }
}

/// The lease by the node's own clock.
#[derive(Debug)]
struct Lease {
    begun: Instant,
    /// When it ends, less the margin, in nanoseconds since `begun`.
    until_ns: AtomicU64,
    /// Number of lapses.
    lapses: AtomicU64,
    /// The session was recovered or given up by somebody else.
    ended: AtomicBool,
}

impl Lease {
    fn runs_at(&self, now: Instant) -> bool {
        let now_ns = now.saturating_duration_since(self.begun).as_nanos();
        now_ns < u128::from(self.until_ns.load(Ordering::Acquire))
            && !self.ended.load(Ordering::Acquire)
    }

    /// No lease was ever granted.
    fn until_is_unknown(&self) -> bool {
        self.until_ns.load(Ordering::Acquire) == 0 && self.lapses.load(Ordering::Acquire) == 0
    }

    fn left(&self, now: Instant) -> Duration {
        let until = Duration::from_nanos(self.until_ns.load(Ordering::Acquire));
        until.saturating_sub(now.saturating_duration_since(self.begun))
    }
}

impl Agent {
    /// Begins a session: enters the registry, joins the members and gets a lease.
    ///
    /// # Errors
    /// If the store cannot be reached or used, or the registry not be written.
    pub fn begin(options: Options, store: Arc<dyn Store>, registry: Registry) -> Result<Self> {
        if options.margin >= options.lease {
            return Err(Error::invalid("the margin is as long as the lease", "make it shorter"));
        }
        let session = new_session().map_err(Error::at("/dev/urandom", "read"))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let entry = Entry {
            session,
            node: options.node.clone(),
            cache: options.cache.clone(),
            cache_id: options.cache_id.clone(),
            boot_id: boot_id()?,
            since,
        };
        // Before anything is written: a store that cannot be used leaves no entry.
        let roll = Arc::new(store.roll().map_err(told)?);
        registry.enter(&entry)?;
        let shared = Arc::new(Shared {
            asserted: Mutex::new(roll.epoch),
            roll: Mutex::new((roll, options.clock.instant())),
            lease: Lease {
                begun: options.clock.instant(),
                until_ns: AtomicU64::new(0),
                lapses: AtomicU64::new(0),
                ended: AtomicBool::new(false),
            },
            options,
            store,
            registry,
            session,
            holder: OnceLock::new(),
            files: Mutex::default(),
            changes: RwLock::new(()),
            obstacle: Mutex::new(None),
            queue: Queue::default(),
            stop: AtomicBool::new(false),
            woken: (Mutex::new(false), Condvar::new()),
            counters: Counters::default(),
            correspondence: Correspondence::default(),
        });
        let agent = Self { shared, threads: Mutex::default() };
        if let Err(error) = agent.start() {
            // Nothing is left of a session that never began; `cluster fsck` reports what could not be removed.
            agent.stop();
            let _ = agent.shared.end_session();
            agent.shared.registry.leave(session)?;
            return Err(error);
        }
        Ok(agent)
    }

    fn start(&self) -> Result<()> {
        self.shared.join().map_err(told)?;
        let threads = self.shared.spawn().map_err(Error::at("agent", "start a thread of"))?;
        *self.threads.lock() = threads;
        Ok(())
    }

    /// This node's session.
    pub fn session(&self) -> Session {
        self.shared.session
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        let shared = &self.shared;
        let files: Vec<_> = shared.files.lock().values().cloned().collect();
        let left = shared.lease.left(shared.options.clock.instant());
        let mut counts = shared.counters.counts();
        for file in files {
            let holding = file.holding();
            counts.tokens += holding.tokens;
            counts.files += u64::from(holding.tokens > 0);
            counts.contended_files += u64::from(holding.is_contended);
            counts.waiting += holding.waiting;
        }
        Counts {
            round_trips: shared.store.round_trips(),
            lease_left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            ..counts
        }
    }

    /// Renews the lease now; asserts what the node holds if the store may have forgotten it. A thread does this by
    /// itself in time.
    ///
    /// # Errors
    /// If the store does not answer, or others must do something first.
    pub fn keep(&self) -> Result<(), StoreError> {
        self.shared.keep()
    }

    /// Gives everything up and ends the session. The mount has ended: nobody asks for permits any more.
    ///
    /// # Errors
    /// If something of it is left: its session must be recovered then.
    pub fn leave(&self) -> Result<()> {
        let files: Vec<_> = self.shared.files.lock().values().cloned().collect();
        for file in files {
            file.give_all_up()?;
        }
        self.stop();
        self.shared.end_session().map_err(told)?;
        self.shared.registry.leave(self.shared.session)
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        self.shared.queue.wake();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
        // Nothing serves from what is left.
        self.shared.lease.ended.store(true, Ordering::Release);
        self.shared.files.lock().clear();
    }
}

impl Coherence for Agent {
    fn attach(&self, holder: Weak<dyn Holder>) {
        let _ = self.shared.holder.set(holder);
    }

    fn tokens(&self, file: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(self.shared.file(file))
    }

    fn check_lease(&self) -> Result<()> {
        self.shared.check_lease()
    }

    fn reads_peers(&self) -> bool {
        self.shared.options.peers.is_some()
    }

    fn counts(&self) -> Option<Counts> {
        Some(Self::counts(self))
    }

    fn leave(&self) -> Result<()> {
        Self::leave(self)
    }
}

impl Shared {
    /// The tokens of a file, which stay while some are held.
    fn file(self: &Arc<Self>, file: SharedFile) -> Arc<File> {
        let files = &mut *self.files.lock();
        if files.len() >= FILES && files.len().is_power_of_two() {
            files.retain(|_, known| Arc::strong_count(known) > 1 || !known.is_idle());
        }
        files.entry(file).or_insert_with(|| Arc::new(File::new(file, Arc::clone(self)))).clone()
    }

    fn check_lease(&self) -> Result<()> {
        if self.lease.ended.load(Ordering::Acquire) {
            return Err(Error::Cluster {
                what: format!("node {} was recovered or given up by others", self.options.node),
                remedy: "unmount it and mount again".to_owned(),
            });
        }
        if self.lease.runs_at(self.options.clock.instant()) {
            return Ok(());
        }
        Err(Error::Cluster {
            what: format!("the lease of node {} is over: {}", self.options.node, self.why()),
            remedy: "it goes on by itself when the store answers again".to_owned(),
        })
    }

    /// Why requests do not proceed.
    fn why(&self) -> String {
        self.obstacle.lock().clone().unwrap_or_else(|| "it could not be renewed in time".to_owned())
    }

    /// A roll that is at least as new as now.
    fn refresh(&self) -> Result<Arc<Roll>, StoreError> {
        // Held meanwhile, so that no older one replaces a newer one.
        let mut known = self.roll.lock();
        let at = self.options.clock.instant();
        let roll = Arc::new(self.store.roll()?);
        *known = (Arc::clone(&roll), at);
        Ok(roll)
    }

    /// What was read last.
    fn known(&self) -> Arc<Roll> {
        Arc::clone(&self.roll.lock().0)
    }

    /// The store's clock, about.
    fn now_ms(&self) -> u64 {
        let (now_ms, at) = {
            let known = self.roll.lock();
            (known.0.now_ms, known.1)
        };
        let since = self.options.clock.elapsed(at).as_millis();
        now_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Versions of a value that the store has not, or has no more, begin at a number that nobody can have seen: a node
    /// that remembers the value of long ago must not find its version again.
    fn begin_versions(&self, old: &Tokens, new: &mut Tokens) {
        if old.version == 0 {
            let mixed = RandomState::new().hash_one(self.session.0);
            new.version = (mixed >> 12).max(1);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Files that are known before those without tokens are forgotten.
const FILES: usize = 1024;

/// The store's error as programs and people see it.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn told(error: StoreError) -> Error {
    let remedy = match &error {
        StoreError::NoAnswer(_) => "see that it runs and can be reached from this node",
        StoreError::Unsound(_) => "use a store, or a database of it, that nothing else writes to",
        StoreError::Unusable(_) => "change its settings, or name another one",
    };
    Error::Cluster { what: error.to_string(), remedy: remedy.to_owned() }
}

/// A number that was never used before.
fn new_session() -> std::io::Result<Session> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Session(u64::from_le_bytes(bytes)))
}
