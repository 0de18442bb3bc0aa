//! A node's agent: it gets tokens from the store for the engine's permits, and gives them up when others want them.
//!
//! What must hold (`docs/decisions/0026-tokens-by-compare-and-swap.md`):
//! - A permit under a token that the node holds makes no request to the store and takes no lock but the file's.
//! - A range is given up in this order: no new permit begins in it, the permits in progress end, the engine flushes it
//!   to the origin and drops it, and only then is the store told.
//! - A node begins no permit without a valid lease, judged by its own clock and with a margin subtracted (I12). Only
//!   exclusive tokens survive a lapse of the lease.
//! - A change of the members is computed from members that are no older than the tokens they are used with. A node that
//!   is wrongly taken for live only keeps its tokens too long.

mod background;
mod file;
mod idle_tokens;
mod known_files;
mod lease;
mod own_session;
mod peer_queries;
mod pieces;
mod roll;
mod threads;
mod upkeep;
mod yielding;

#[cfg(any(test, fuzzing))]
pub(crate) use peer_queries::message::hostile as hostile_message;
#[cfg(test)]
pub(crate) use peer_queries::message::tests::seeds as message_seeds;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use halocline_cache::coherence::{Coherence, FileTokens, LocalCache, SharedFile};
use halocline_model::background::{Share, Use};
use halocline_model::token::Session;
use halocline_os::boot_id::boot_id;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::random::random_bytes;
use parking_lot::Mutex;

use crate::counters::{Counters, Counts};
use crate::registry::{Entry, FileIdentity, Registry};
use crate::store::{Store, StoreError};
use background::Background;
use file::File;
use idle_tokens::IdleTokens;
use known_files::KnownFiles;
use own_session::OwnSession;
pub(crate) use own_session::remove;
use peer_queries::PeerQueries;
use upkeep::Upkeep;
use yielding::Queue;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name, for people.
    pub node: String,
    /// Its cache directory.
    pub cache: PathBuf,
    /// The id of that cache.
    pub cache_id: String,
    /// The duration of a lease.
    pub lease: Duration,
    /// How much earlier than the store this node considers its lease over. Longer than any system call on the origin
    /// may take plus the possible difference of the clocks.
    pub margin: Duration,
    /// How long a program may wait for a token before it gets an error.
    pub wait_limit: Duration,
    /// The longest time before a waiting request checks by itself, because messages may be lost.
    pub poll: Duration,
    /// The node's clock, by which leases run.
    pub clock: Clock,
    /// The clock for waits: of programs for tokens, and of threads for messages. It is the machine's clock even in a
    /// test that sets the node's, because the waits depend on threads that run in real time.
    pub wait_clock: Clock,
    /// The most files of which the node holds tokens; beyond that it gives back those of idle files.
    pub files_max: usize,
    /// The paths of other nodes' caches as this node reaches them, if it does: `{node}` stands for the name of the
    /// other node, `{cache}` for the path that the other node itself uses.
    pub peers: Option<String>,
}

impl Options {
    /// The default options.
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
            wait_clock: Clock::MACHINE,
            files_max: FILES_MAX,
            peers: None,
        }
    }
}

/// The agent. Dropping it leaves everything as if the node had been killed; [`leave`](Self::leave) ends its session.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The state that the agent's threads and its files share.
pub(crate) struct Shared {
    options: Options,
    store: Arc<dyn Store>,
    registry: Arc<Registry>,
    session: Session,
    local_cache: OnceLock<Weak<dyn LocalCache>>,
    files: Arc<KnownFiles>,
    own_session: Arc<OwnSession>,
    upkeep: Upkeep,
    queue: Queue,
    stop: AtomicBool,
    counters: Arc<Counters>,
    peer_queries: PeerQueries,
    background: Background,
    idle_tokens: IdleTokens,
}

impl Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("node", &self.options.node).finish_non_exhaustive()
    }
}

impl Agent {
    /// Begins a session: registers it, joins the members and gets a lease.
    ///
    /// # Errors
    /// If the store cannot be reached or used, or the registry cannot be written.
    pub fn begin(options: Options, store: Arc<dyn Store>, registry: Registry) -> Result<Self> {
        if options.margin >= options.lease {
            return Err(Error::invalid("the margin is as long as the lease", "make it shorter"));
        }
        let session = new_session().map_err(Error::at("/dev/urandom", "read"))?;
        let since = options.clock.now_ms() / 1000;
        let entry = Entry {
            session,
            node: options.node.clone(),
            cache: options.cache.clone(),
            cache_id: options.cache_id.clone(),
            boot_id: boot_id()?,
            since,
            cache_seen: seen(&options.cache),
            seen: None,
            list_id: None,
        };
        registry.check_version()?;
        // Done before anything is written, so that a store that cannot be used leaves no entry.
        let roll = store.roll().map_err(cluster_error)?;
        registry.enter(&entry)?;
        // Checked before the session has any token, so that it can still leave at once.
        if let Err(error) = registry.check_views(session) {
            registry.leave(session)?;
            return Err(error);
        }
        let (registry, files) = (Arc::new(registry), Arc::<KnownFiles>::default());
        let counters = Arc::<Counters>::default();
        let own_session = OwnSession::new(&options, session, (&store, &registry), &counters, roll);
        let own_session = Arc::new(own_session);
        let shared = Arc::new(Shared {
            upkeep: Upkeep::new(&own_session, &files, &counters),
            own_session,
            background: Background::new(&options, &store, session),
            options,
            store,
            registry,
            session,
            local_cache: OnceLock::new(),
            files,
            queue: Queue::default(),
            stop: AtomicBool::new(false),
            counters,
            peer_queries: PeerQueries::default(),
            idle_tokens: IdleTokens::default(),
        });
        let agent = Self { shared, threads: Mutex::default() };
        if let Err(error) = agent.start() {
            // Nothing is left of a session that never began; `cluster fsck` reports what could not be removed.
            agent.stop();
            let _ = agent.shared.own_session.end_session();
            agent.shared.registry.leave(session)?;
            return Err(error);
        }
        Ok(agent)
    }

    fn start(&self) -> Result<()> {
        self.shared.own_session.join().map_err(cluster_error)?;
        let threads =
            threads::spawn(&self.shared).map_err(Error::at("agent", "start a thread of"))?;
        *self.threads.lock() = threads;
        Ok(())
    }

    /// This node's session.
    pub fn session(&self) -> Session {
        self.shared.session
    }

    /// The agent's counters.
    pub fn counts(&self) -> Counts {
        let shared = &self.shared;
        let left = shared.own_session.lease.left();
        let mut counts = shared.counters.counts();
        for file in shared.files.all() {
            let holding = file.holding();
            counts.tokens += holding.tokens;
            counts.files += u64::from(holding.tokens > 0);
            counts.contended_files += u64::from(holding.is_contended);
            counts.waiting += holding.waiting;
        }
        let share = shared.background.share();
        Counts {
            share_parts: u64::from(share.parts),
            others_use_origin: u64::from(share.others_serve),
            round_trips: shared.store.round_trips(),
            lease_left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            ..counts
        }
    }

    /// Whether the node may continue what it does under its lease.
    ///
    /// # Errors
    /// Says why it may not.
    pub fn check_lease(&self) -> Result<()> {
        self.shared.own_session.check_lease()
    }

    /// Number of times that the lease has lapsed: nothing that was begun before the last lapse may continue.
    pub fn lapses(&self) -> u64 {
        self.shared.own_session.lease.lapses()
    }

    /// Renews the lease now, and asserts what the node holds if the store may have forgotten it. A thread does this
    /// often enough by itself.
    ///
    /// # Errors
    /// If the store does not answer, or others must act first.
    pub fn keep(&self) -> Result<(), StoreError> {
        self.shared.upkeep.keep()?;
        self.shared.background.tell(self.shared.own_session.roll.nodes());
        Ok(())
    }

    /// Gives everything up and ends the session. The mount has ended, so no more permits are requested.
    ///
    /// # Errors
    /// If some of it could not be given up: the session must then be recovered.
    pub fn leave(&self) -> Result<()> {
        for file in self.shared.files.all() {
            file.give_all_up()?;
        }
        self.stop();
        self.shared.background.end();
        self.shared.own_session.end_session().map_err(cluster_error)?;
        self.shared.registry.leave(self.shared.session)
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.own_session.wake();
        self.shared.queue.wake();
        self.shared.idle_tokens.wake();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
        // Files that are still referenced serve no more requests.
        self.shared.own_session.lease.end();
        self.shared.files.clear();
    }
}

impl Coherence for Agent {
    fn attach(&self, local_cache: Weak<dyn LocalCache>) {
        let _ = self.shared.local_cache.set(local_cache);
    }

    fn tokens(&self, file: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(self.shared.file(file))
    }

    fn check_lease(&self) -> Result<()> {
        Self::check_lease(self)
    }

    fn share(&self, own: Use) -> Share {
        if self.shared.background.note(own) {
            self.shared.own_session.wake();
        }
        self.shared.background.share()
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
    /// The tokens of a file.
    fn file(self: &Arc<Self>, file: SharedFile) -> Arc<File> {
        let note_number = |number| {
            if number >= self.options.files_max {
                self.idle_tokens.wake();
            }
        };
        self.files.get_or_make(file, || File::new(file, Arc::clone(self)), note_number)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// The most files of which a node holds tokens for long: as many as it can assert well within a lease.
const FILES_MAX: usize = 1 << 15;

/// The store's error as it is shown to programs and people.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn cluster_error(error: StoreError) -> Error {
    let remedy = match &error {
        StoreError::NoAnswer(_) => "see that it runs and can be reached from this node",
        StoreError::Unsound(_) => "use a store, or a database of it, that nothing else writes to",
        StoreError::Unusable(_) => "change its settings, or name another one",
    };
    Error::Cluster { what: error.to_string(), remedy: remedy.to_owned() }
}

/// The identity of the directory at a path, if it can be examined.
fn seen(path: &Path) -> Option<FileIdentity> {
    std::fs::File::open(path).and_then(FileIdentity::of).ok()
}

/// A number that was never used before.
fn new_session() -> std::io::Result<Session> {
    Ok(Session(u64::from_le_bytes(random_bytes()?)))
}
