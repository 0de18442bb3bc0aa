//! Sessions that are kept while something is slow, fails or panics.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use halocline_cache::coherence::{Coherence, FileTokens, LocalCache, Permit, SharedFile};
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::sessions;
use halocline_cluster::store::memory::{Faults, MemoryStore, Preserved};
use halocline_cluster::store::{Lease, Reading, Roll, Store, StoreError, Swap};
use halocline_model::background::{Use, Users};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Epoch, Members, Session, Tokens};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use parking_lot::{Condvar, Mutex};

use super::world::{Node, Origin, file};

const WRITE: Direction = Direction::Write;

/// What goes wrong in a store.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// A session that readings of the members leave out.
    left_out: Mutex<Option<Session>>,
    /// Servers that may have changed do not answer: not at all, or after the limit.
    silent: AtomicBool,
    hangs: Mutex<bool>,
    freed: Condvar,
    /// How often listening panics.
    panics: AtomicU32,
}

impl Trouble {
    /// Nothing is said of changes until the result is dropped.
    fn hang(&self) -> Hanging<'_> {
        *self.hangs.lock() = true;
        Hanging(self)
    }
}

struct Hanging<'t>(&'t Trouble);

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        *self.0.hangs.lock() = false;
        self.0.freed.notify_all();
    }
}

/// A store in trouble.
#[derive(Debug)]
struct Troubled {
    store: Arc<MemoryStore>,
    trouble: Arc<Trouble>,
}

type Answer<T> = std::result::Result<T, StoreError>;

impl Store for Troubled {
    fn partition(&self, file: SharedFile) -> usize {
        self.store.partition(file)
    }

    fn read(&self, file: SharedFile) -> Answer<Reading> {
        self.store.read(file)
    }

    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Answer<Swap> {
        self.store.swap(file, expected, new)
    }

    fn roll(&self) -> Answer<Roll> {
        let mut roll = self.store.roll()?;
        if let Some(session) = *self.trouble.left_out.lock() {
            roll.members.remove(session);
        }
        Ok(roll)
    }

    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Answer<bool> {
        self.store.swap_members(from, new, lease)
    }

    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Answer<bool> {
        self.store.renew(session, epoch, lease_ms)
    }

    fn tell(&self, session: Session, file: SharedFile) {
        self.store.tell(session, file);
    }

    fn note_changes(&self) -> Answer<bool> {
        let mut hangs = self.trouble.hangs.lock();
        while *hangs {
            self.trouble.freed.wait(&mut hangs);
        }
        if self.trouble.silent.load(Ordering::SeqCst) {
            return Err(StoreError::NoAnswer("a partition of it".to_owned()));
        }
        self.store.note_changes()
    }

    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile> {
        let panics = &self.trouble.panics;
        let left =
            panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "a defect, made for a test");
        self.store.listen(session, wait_limit)
    }

    fn send(&self, session: Session, letter: &[u8]) {
        self.store.send(session, letter);
    }

    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>> {
        self.store.receive(session, wait_limit)
    }

    fn users(&self, own: Option<(Session, Use, u64)>) -> Answer<Users> {
        self.store.users(own)
    }

    fn files(&self, limit: usize) -> Answer<Vec<SharedFile>> {
        self.store.files(limit)
    }

    fn round_trips(&self) -> u64 {
        self.store.round_trips()
    }
}

pub(super) struct World {
    pub(super) store: Arc<MemoryStore>,
    trouble: Arc<Trouble>,
    pub(super) origin: Arc<Origin>,
    place: tempfile::TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new(1));
        Self { store, trouble: Arc::default(), origin: Arc::default(), place }
    }

    fn registry(&self) -> std::path::PathBuf {
        self.place.path().join("registry")
    }

    fn troubled(&self) -> Arc<dyn Store> {
        let (store, trouble) = (Arc::clone(&self.store), Arc::clone(&self.trouble));
        Arc::new(Troubled { store, trouble })
    }

    pub(super) fn node(&self, name: &str, change: impl Fn(&mut Options)) -> Node {
        Node::new(name, self.troubled(), &self.registry(), &self.origin, change)
    }

    fn untroubled(&self, name: &str) -> Node {
        let store = Arc::clone(&self.store);
        Node::new(name, store, &self.registry(), &self.origin, |_| {})
    }
}

/// Regression: whatever else was to be done for the session held up its lease. On a busy machine a node that lived was
/// taken for gone, and others got errors.
#[test]
fn i12_a_lease_is_renewed_while_something_hangs() {
    let world = World::new();
    let node = world.node("a", |options| options.clock = Clock::simulated());
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    let hanging = world.trouble.hang();
    // Longer than a lease in all, in steps that are shorter.
    for step in 0..6 {
        node.clock.sleep(Duration::from_secs(14));
        eventually("it is renewed", || node.agent.counts().lease_left_ms > 19_000);
        node.request(0, Node::want(WRITE, step, false)).unwrap();
    }
    assert_eq!(node.agent.counts().lapses, 0);
    drop(hanging);
    node.agent.leave().unwrap();
}

/// Regression: then the members were not confirmed either, which a node does that finds that all have said what they
/// hold.
#[test]
fn members_are_confirmed_though_a_part_of_the_store_does_not_answer() {
    let world = World::new();
    let (node, gone) = (world.node("a", |_| {}), world.untroubled("b"));
    let session = gone.agent.session();
    drop(gone);
    world.store.restart(0, Preserved::Nothing);
    node.agent.keep().unwrap();
    let roll = world.store.roll().unwrap();
    assert!(!roll.members.grants(roll.epoch), "nobody knows what the other one has");
    let registry = Registry::open(&world.registry()).unwrap();
    sessions::end_own(&*world.store, &registry, session).unwrap();
    world.trouble.silent.store(true, Ordering::SeqCst);
    node.agent.keep().unwrap();
    let roll = world.store.roll().unwrap();
    assert!(roll.members.grants(roll.epoch));
    node.agent.leave().unwrap();
}

/// Regression: the thread was gone, and nobody heard of what others wanted.
#[test]
fn a_thread_that_panics_goes_on() {
    let world = World::new();
    world.trouble.panics.store(3, Ordering::SeqCst);
    let (one, other) = (world.node("a", |_| {}), world.untroubled("b"));
    for step in 0..4 {
        one.request(0, Node::want(WRITE, step, false)).unwrap();
        other.request(0, Node::want(WRITE, step, false)).unwrap();
    }
    assert_eq!(world.trouble.panics.load(Ordering::SeqCst), 0);
    one.agent.leave().unwrap();
    other.agent.leave().unwrap();
}

/// An engine that panics when it is to give something up.
#[derive(Debug)]
struct Clumsy {
    panics: AtomicU32,
    /// Whether nothing can be brought to the origin.
    fails: AtomicBool,
}

impl LocalCache for Clumsy {
    fn give_up(&self, _: SharedFile, _: ByteRange, _: bool) -> Result<()> {
        let left = self
            .panics
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "a defect, made for a test");
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::invalid("the origin is full", "make room"));
        }
        Ok(())
    }
}

/// The agent of a node with such an engine, whose requests wait so long, and the tokens of a file.
fn clumsy(
    world: &World,
    panics: u32,
    wait_limit: Duration,
) -> (Agent, Arc<Clumsy>, Arc<dyn FileTokens>) {
    let mut options = Options::new("a".to_owned(), "/ssd".into(), "cache of a".to_owned());
    options.poll = Duration::from_millis(50);
    options.wait_limit = wait_limit;
    let registry = Registry::open(&world.registry()).unwrap();
    let agent = Agent::begin(options, world.troubled(), registry).unwrap();
    let clumsy = Arc::new(Clumsy { panics: AtomicU32::new(panics), fails: AtomicBool::new(false) });
    let holder: Weak<dyn LocalCache> =
        Arc::downgrade(&(Arc::clone(&clumsy) as Arc<dyn LocalCache>));
    agent.attach(holder);
    let tokens = agent.tokens(file(0)).unwrap();
    (agent, clumsy, tokens)
}

/// Regression: a request that needs something given up first which cannot be given up asked the store again at once,
/// for ever.
#[test]
fn what_cannot_be_given_up_first_is_waited_for_and_not_asked_for_without_end() {
    let world = World::new();
    let (agent, engine, tokens) = clumsy(&world, 0, Duration::from_secs(2));
    let other = world.untroubled("b");
    let caches = |alone| {
        let permit = Permit::wait(&*tokens, Node::want(WRITE, 0, alone));
        // On a slow machine it may have waited for longer than the limit.
        permit.ok().map(|permit| permit.grant().caches)
    };
    // The store's clock stands still, so the range becomes contended.
    eventually("it is contended", || {
        other.request(0, Node::want(WRITE, 0, false)).unwrap();
        caches(false) == Some(false)
    });
    engine.fails.store(true, Ordering::SeqCst);
    let before = world.store.round_trips();
    let error = Permit::wait(&*tokens, Node::want(WRITE, 0, true)).unwrap_err().to_string();
    assert!(error.contains("waited 2 s"), "{error}");
    let asked = world.store.round_trips() - before;
    assert!(asked < 500, "{asked} requests");
    engine.fails.store(false, Ordering::SeqCst);
    eventually("it is given up", || caches(true).is_some());
    assert_ne!(caches(true), Some(false));
    agent.leave().unwrap();
    other.agent.leave().unwrap();
}

/// Regression: the range stayed closed for ever.
#[test]
fn what_panics_while_it_is_given_up_is_given_up_later() {
    let world = World::new();
    let (agent, clumsy, tokens) = clumsy(&world, 5, WAIT_LIMIT);
    drop(Permit::wait(&*tokens, Node::want(WRITE, 0, false)).unwrap());
    let other = world.untroubled("b");
    other.request(0, Node::want(WRITE, 0, false)).unwrap();
    assert_eq!(clumsy.panics.load(Ordering::SeqCst), 0);
    drop(Permit::wait(&*tokens, Node::want(WRITE, 0, false)).unwrap());
    agent.leave().unwrap();
    other.agent.leave().unwrap();
}

/// Regression: the list was found by its name only, so whoever renamed or removed it had the next node begin another
/// one, and nodes that did not know each other cached the same files.
#[test]
fn i11_a_node_whose_list_is_gone_stops_until_it_is_back() {
    let world = World::new();
    let node = world.node("a", |options| options.wait_limit = Duration::from_hours(1));
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    let [list, elsewhere] = ["registry", "elsewhere"].map(|name| world.place.path().join(name));
    for instead in [false, true] {
        std::fs::rename(&list, &elsewhere).unwrap();
        if instead {
            std::fs::create_dir(&list).unwrap();
        }
        node.agent.keep().unwrap_err();
        let refused = node.agent.check_lease().unwrap_err().to_string();
        assert!(refused.contains("put it back"), "{refused}");
        node.request(0, Node::want(WRITE, 0, false)).unwrap_err();
        if instead {
            std::fs::remove_dir(&list).unwrap();
        }
        std::fs::rename(&elsewhere, &list).unwrap();
        node.agent.keep().unwrap();
        node.request(0, Node::want(WRITE, 0, false)).unwrap();
    }
    node.agent.leave().unwrap();
    world.origin.check();
}

/// Regression: a node that had been stopped, and went on between the two steps of its being given up, lived on without
/// being in the list.
#[test]
fn a_session_that_is_not_in_the_list_any_more_ends() {
    let world = World::new();
    let node = world.node("a", |_| {});
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    Registry::open(&world.registry()).unwrap().leave(node.agent.session()).unwrap();
    eventually("it ends", || node.agent.keep().is_ok());
    let refused = node.request(0, Node::want(WRITE, 0, false)).unwrap_err().to_string();
    assert!(refused.contains("recovered or given up"), "{refused}");
}

/// Regression: one look that did not find a session in the list ended it for good, also where a file system of several
/// servers had missed the name for a moment.
#[test]
fn a_session_that_is_not_found_once_begins_nothing_until_it_is_found_again() {
    let world = World::new();
    // Time stands still, so that no second look decides.
    let node = world.node("a", |options| options.clock = Clock::simulated());
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    let entries =
        || std::fs::read_dir(world.registry()).unwrap().map(|entry| entry.unwrap().path());
    let session = format!("{:016x}", node.agent.session().0);
    let is_own = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(&session);
    let entry = entries().find(is_own).unwrap();
    let away = world.place.path().join("away");
    std::fs::rename(&entry, &away).unwrap();
    node.agent.keep().unwrap_err();
    let refused = node.agent.check_lease().unwrap_err().to_string();
    assert!(refused.contains("looks again"), "{refused}");
    std::fs::rename(&away, &entry).unwrap();
    node.agent.keep().unwrap();
    node.agent.check_lease().unwrap();
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    node.agent.leave().unwrap();
    world.origin.check();
}

/// Regression: the same of a store that did not have a member for a moment, such as one that is being replaced.
#[test]
fn i12_a_session_that_the_store_misses_once_stops_and_goes_on_or_ends_later() {
    for is_back in [true, false] {
        let world = World::new();
        let node = world.node("a", |options| options.clock = Clock::simulated());
        let first = Node::want(WRITE, 0, false);
        node.request(0, first).unwrap();
        // So that the members are read.
        world.trouble.silent.store(true, Ordering::SeqCst);
        *world.trouble.left_out.lock() = Some(node.agent.session());
        for _ in 0..3 {
            node.agent.keep().unwrap_err();
            let refused = node.agent.check_lease().unwrap_err().to_string();
            assert!(refused.contains("not found among the members"), "no flush: {refused}");
            assert!(node.tokens(0).begin_at_once(first).is_none(), "no permit");
        }
        if is_back {
            *world.trouble.left_out.lock() = None;
            node.agent.keep().unwrap();
            node.request(0, first).unwrap();
            assert_eq!(node.agent.counts().lapses, 0, "nothing had to be dropped");
            node.agent.leave().unwrap();
            world.origin.check();
        } else {
            node.clock.sleep(Duration::from_secs(1));
            node.agent.keep().unwrap();
            *world.trouble.left_out.lock() = None;
            let refused = node.request(0, first).unwrap_err().to_string();
            assert!(refused.contains("recovered or given up"), "{refused}");
        }
    }
}

/// An engine that cannot give up one of its files.
#[derive(Debug, Default)]
struct Stuck {
    given: Mutex<Vec<SharedFile>>,
}

impl LocalCache for Stuck {
    fn give_up(&self, shared: SharedFile, _: ByteRange, _: bool) -> Result<()> {
        self.given.lock().push(shared);
        if shared == file(0) { Err(std::io::Error::from_raw_os_error(5).into()) } else { Ok(()) }
    }
}

/// Regression: the first file that could not be dropped kept all others cached.
#[test]
fn a_file_that_cannot_be_dropped_holds_up_no_other() {
    let world = World::new();
    let mut options = Options::new("a".to_owned(), "/ssd".into(), "cache of a".to_owned());
    options.clock = Clock::simulated();
    options.poll = Duration::from_millis(50);
    let clock = options.clock.clone();
    let registry = Registry::open(&world.registry()).unwrap();
    let store = Arc::clone(&world.store);
    let agent = Agent::begin(options, store, registry).unwrap();
    let stuck = Arc::new(Stuck::default());
    let holder: Weak<dyn LocalCache> = Arc::downgrade(&(Arc::clone(&stuck) as Arc<dyn LocalCache>));
    agent.attach(holder);
    for number in 0..6 {
        let tokens: Arc<dyn FileTokens> = agent.tokens(file(number)).unwrap();
        drop(Permit::wait(&*tokens, Node::want(Direction::Read, 0, false)).unwrap());
    }
    world.store.set_faults(Faults { stopped: true, ..Faults::default() });
    clock.leap(Duration::from_secs(31));
    world.store.advance(Duration::from_secs(31));
    world.store.set_faults(Faults::default());
    let refused = agent.keep().unwrap_err().to_string();
    assert!(refused.contains("inode 0 cannot be dropped"), "{refused}");
    for number in 0..6 {
        assert!(stuck.given.lock().contains(&file(number)), "file {number}");
    }
}
