//! Over a store in memory, with faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_cache::coherence::{Coherence, Permit};
use halocline_cluster::agent::Options;
use halocline_cluster::registry::Registry;
use halocline_cluster::sessions;
use halocline_cluster::store::memory::{Faults, MemoryStore, Preserved};
use halocline_cluster::store::{LEASE_MAX, Store};
use halocline_model::background::{Share, Use};
use halocline_model::request::{ByteRange, Direction};
use halocline_os::clock::Clock;
use halocline_testkit::waiting::eventually;
use tempfile::TempDir;

use super::contract;
use super::world::{BLOCK, Node, Origin, Random, file, run};

const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;

struct World {
    store: Arc<MemoryStore>,
    origin: Arc<Origin>,
    place: TempDir,
}

impl World {
    fn new(partitions: usize) -> Self {
        let store = Arc::new(MemoryStore::new(partitions));
        Self { store, origin: Arc::default(), place: tempfile::tempdir().unwrap() }
    }

    fn node_with(&self, name: &str, change: impl Fn(&mut Options)) -> Node {
        let store = Arc::clone(&self.store);
        Node::new(name, store, &self.place.path().join("registry"), &self.origin, change)
    }

    fn node(&self, name: &str) -> Node {
        self.node_with(name, |_| {})
    }

    /// A node whose lease runs by a clock of its own.
    fn timed(&self, name: &str) -> Node {
        self.node_with(name, |options| options.clock = Clock::simulated())
    }

    fn registry(&self) -> Registry {
        Registry::open(&self.place.path().join("registry")).unwrap()
    }

    /// All end; nothing is left and nothing is lost.
    fn end(&self, nodes: Vec<Node>) {
        self.store.set_faults(Faults::default());
        for node in nodes {
            node.agent.keep().unwrap();
            node.agent.leave().unwrap();
        }
        self.origin.check();
        assert_eq!(self.registry().sessions().unwrap(), []);
        assert_eq!(self.store.roll().unwrap().members.sessions().count(), 0);
    }
}

/// Programs on all nodes, and what `meanwhile` does beside them.
fn together(nodes: &[Node], seed: u64, requests: u64, meanwhile: impl FnOnce()) {
    thread::scope(|scope| {
        for (at, node) in nodes.iter().enumerate() {
            for thread in 0..2 {
                let seed = seed * 1000 + at as u64 * 10 + thread;
                scope.spawn(move || run(node, seed, requests).unwrap());
            }
        }
        meanwhile();
    });
}

#[test]
fn i11_nodes_read_and_write_the_same_blocks() {
    for seed in 0..40 {
        println!("seed {seed}");
        let world = World::new(1 + usize::try_from(seed).unwrap() % 3);
        let nodes: Vec<_> = ["a", "b", "c"].map(|name| world.node(name)).into();
        together(&nodes, seed, 40, || {});
        world.end(nodes);
    }
}

#[test]
fn i11_messages_are_lost() {
    for seed in 0..60 {
        println!("seed {seed}");
        let world = World::new(2);
        let nodes: Vec<_> = ["a", "b", "c"].map(|name| world.node(name)).into();
        let mut random = Random(seed);
        world.store.set_faults(Faults {
            stopped: false,
            lose_request_every: 5 + random.below(20),
            lose_reply_every: 5 + random.below(20),
            lose_message_every: 2 + random.below(4),
        });
        together(&nodes, seed, 10, || {});
        world.end(nodes);
    }
}

#[test]
fn i14_the_store_forgets() {
    for seed in 0..100 {
        println!("seed {seed}");
        let partitions = 1 + seed % 3;
        let world = World::new(usize::try_from(partitions).unwrap());
        let nodes: Vec<_> = ["a", "b", "c"].map(|name| world.node(name)).into();
        let mut random = Random(seed);
        together(&nodes, seed, 20, || {
            for _ in 0..3 {
                if random.below(2) == 0 {
                    world.store.save();
                }
                let kept = match random.below(3) {
                    0 => Preserved::Nothing,
                    1 => Preserved::Saved,
                    _ => Preserved::All,
                };
                world.store.restart(usize::try_from(random.below(partitions)).unwrap(), kept);
                for node in &nodes {
                    node.agent.keep().unwrap();
                }
            }
        });
        world.end(nodes);
    }
}

#[test]
fn it_keeps_what_a_store_promises() {
    for partitions in 1..4 {
        let store = MemoryStore::new(partitions);
        contract::holds(&store);
        store.restart(0, Preserved::Saved);
        contract::respects_forgotten_leases(&store);
    }
}

#[test]
fn a_token_that_is_held_asks_no_store() {
    let world = World::new(1);
    let node = world.node("a");
    // Round trips would count renewals of the lease, too.
    let asked = |node: &Node| (node.agent.counts().asked, node.agent.counts().waits);
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    assert_eq!(asked(&node), (1, 0), "a file that nobody uses");
    for block in 0..8 {
        node.request(0, Node::want(WRITE, block, true)).unwrap();
        node.request(0, Node::want(READ, block, false)).unwrap();
    }
    assert_eq!(asked(&node), (1, 0), "all of it was granted");
    assert!(node.tokens(1).try_begin(Node::want(READ, 0, false)).is_none(), "asks nothing");
    assert_eq!(node.agent.counts().tokens, 1);
    world.end(vec![node]);
}

#[test]
fn segments_of_a_shared_file_are_handed_over_once() {
    let world = World::new(1);
    let (one, other) = (world.node("a"), world.node("b"));
    one.request(0, Node::want(WRITE, 0, false)).unwrap();
    for block in 0..4 {
        one.request(0, Node::want(WRITE, block, false)).unwrap();
        other.request(0, Node::want(WRITE, 4 + block, false)).unwrap();
    }
    // It is counted when all of it is done.
    eventually("it is counted", || one.agent.counts().handovers > 0);
    assert_eq!(one.agent.counts().handovers, 1);
    assert_eq!(other.agent.counts().handovers, 0);
    world.end(vec![one, other]);
}

#[test]
fn what_changes_hands_all_the_time_goes_to_the_origin_but_for_what_is_wanted_alone() {
    let world = World::new(1);
    let (one, other) = (world.node("a"), world.node("b"));
    // The store's clock stands still: no pause is long.
    for _ in 0..60 {
        one.request(0, Node::want(WRITE, 0, false)).unwrap();
        other.request(0, Node::want(WRITE, 0, false)).unwrap();
    }
    assert!(other.agent.counts().direct > 0, "{:?}", other.agent.counts());
    for node in [&one, &other] {
        let want = Node::want(WRITE, 0, true);
        let permit = Permit::wait(node.tokens(0), want).unwrap();
        assert!(permit.grant().caches, "never directly");
    }
    world.end(vec![one, other]);
}

#[test]
fn what_is_wanted_alone_waits_for_what_is_under_way_directly_on_the_same_node() {
    let world = World::new(1);
    let (one, other) = (world.node("a"), world.node("b"));
    let under_way = (0..100).find_map(|_| {
        one.request(0, Node::want(WRITE, 0, false)).unwrap();
        other.request(0, Node::want(WRITE, 0, false)).unwrap();
        let permit = Permit::wait(one.tokens(0), Node::want(WRITE, 0, false)).unwrap();
        (!permit.grant().caches).then_some(permit)
    });
    let under_way = under_way.expect("it became contended");
    let is_granted = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let permit = Permit::wait(one.tokens(0), Node::want(READ, 0, true)).unwrap();
            is_granted.store(true, Ordering::SeqCst);
            assert!(permit.grant().caches);
        });
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(4));
            assert!(!is_granted.load(Ordering::SeqCst), "what it caches is old at once");
        }
        drop(under_way);
    });
    assert!(is_granted.load(Ordering::SeqCst));
    world.end(vec![one, other]);
}

#[test]
fn i12_a_node_whose_lease_lapsed_begins_nothing_and_forgets_what_is_shared() {
    let world = World::new(1);
    let (one, other) = (world.timed("a"), world.timed("b"));
    one.request(0, Node::want(READ, 0, false)).unwrap();
    one.request(1, Node::want(WRITE, 0, false)).unwrap();
    // The store does not answer any more, and the lease runs out: first by the node's own clock.
    world.store.set_faults(Faults { stopped: true, ..Faults::default() });
    one.clock.sleep(Duration::from_secs(30));
    one.agent.check_lease().unwrap_err();
    for number in 0..2 {
        assert!(one.tokens(number).try_begin(Node::want(READ, 0, false)).is_none());
    }
    // Then by the store's: another node gets what was shared, and not what was exclusive.
    world.store.set_faults(Faults::default());
    world.store.advance(Duration::from_secs(31));
    other.clock.sleep(Duration::from_secs(1));
    one.agent.keep().unwrap();
    one.agent.check_lease().unwrap();
    other.agent.keep().unwrap();
    other.request(0, Node::want(WRITE, 0, false)).unwrap();
    one.request(0, Node::want(READ, 0, false)).unwrap();
    other.request(1, Node::want(READ, 0, false)).unwrap();
    world.end(vec![one, other]);
}

/// Regression: after a pause of the store that was longer than all leases, whoever was back first took the others for
/// gone, and its programs got errors.
#[test]
fn i12_whoever_is_back_first_after_the_store_stood_still_takes_nobody_for_gone() {
    let world = World::new(1);
    let (one, other) = (world.timed("a"), world.timed("b"));
    one.request(0, Node::want(WRITE, 0, false)).unwrap();
    for pause in 0..2 {
        world.store.set_faults(Faults { stopped: true, ..Faults::default() });
        for node in [&one, &other] {
            node.clock.sleep(Duration::from_secs(31));
        }
        world.store.advance(Duration::from_secs(31));
        world.store.set_faults(Faults::default());
        other.agent.keep().unwrap();
        let before = other.agent.counts().round_trips;
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.request(0, Node::want(WRITE, pause, false)));
            // Long enough for some looks whether the other one is alive.
            eventually("it has looked often", || {
                waits.is_finished() || other.agent.counts().round_trips > before + 40
            });
            one.agent.keep().unwrap();
            waits.join().unwrap().unwrap();
        });
        one.request(0, Node::want(WRITE, pause, false)).unwrap();
    }
    world.end(vec![one, other]);
}

#[test]
fn i13_dirty_bytes_of_a_node_that_is_gone_are_an_error_until_it_was_recovered() {
    let world = World::new(1);
    let (one, other) = (world.timed("dead-node"), world.timed("b"));
    one.request(0, Node::want(WRITE, 0, false)).unwrap();
    one.request(1, Node::want(READ, 0, false)).unwrap();
    let (session, cache) = (one.agent.session(), Arc::clone(&one.cache));
    let registry = world.registry();
    sessions::end(&*world.store, &registry, session).unwrap_err();
    drop(one);
    // It has its lease for long enough to judge others.
    other.clock.sleep(Duration::from_secs(10));
    world.store.advance(Duration::from_secs(31));
    other.agent.keep().unwrap();
    let error = other.request(0, Node::want(READ, 0, false)).unwrap_err();
    assert_eq!(error.errno(), 5);
    assert!(error.to_string().contains("node dead-node"), "{error}");
    other.request(1, Node::want(WRITE, 0, false)).unwrap();
    let held = sessions::exclusive(&*world.store, session).unwrap();
    assert_eq!(held.held.iter().map(|(file, _)| *file).collect::<Vec<_>>(), [file(0)]);
    assert!(held.is_complete);
    let nodes = sessions::nodes(&*world.store, &registry).unwrap();
    assert_eq!(nodes.len(), 2);
    cache.bring_to_origin();
    sessions::end(&*world.store, &registry, session).unwrap();
    other.request(0, Node::want(READ, 0, false)).unwrap();
    world.end(vec![other]);
}

#[test]
fn i14_a_node_that_is_gone_while_the_store_forgets_holds_up_all_until_it_was_ended() {
    let world = World::new(1);
    let wait_limit = |options: &mut Options| options.wait_limit = Duration::from_millis(100);
    let (one, other) = (world.node("dead-node"), world.node_with("b", wait_limit));
    one.request(0, Node::want(WRITE, 0, false)).unwrap();
    eventually("it is granted", || other.request(1, Node::want(WRITE, 0, false)).is_ok());
    let (session, cache) = (one.agent.session(), Arc::clone(&one.cache));
    drop(one);
    world.store.restart(0, Preserved::Nothing);
    other.agent.keep().unwrap();
    // On a slow machine each of its requests may wait for longer than its limit.
    let writes = |number| other.request(number, Node::want(WRITE, 0, false));
    eventually("it has what it said anew", || writes(1).is_ok());
    eventually("its error names the other one", || {
        writes(0).unwrap_err().to_string().contains("node dead-node")
    });
    cache.bring_to_origin();
    // Its lease may run, for all that the store knows.
    sessions::end(&*world.store, &world.registry(), session).unwrap_err();
    world.store.advance(LEASE_MAX);
    sessions::end(&*world.store, &world.registry(), session).unwrap();
    other.agent.keep().unwrap();
    eventually("nobody holds it up", || writes(0).is_ok());
    world.end(vec![other]);
}

#[test]
fn i12_a_session_that_was_given_up_never_comes_back() {
    let world = World::new(1);
    let (one, other) = (world.timed("a"), world.timed("b"));
    one.request(0, Node::want(WRITE, 0, false)).unwrap();
    world.store.set_faults(Faults { stopped: true, ..Faults::default() });
    one.clock.sleep(Duration::from_secs(30));
    world.store.set_faults(Faults::default());
    world.store.advance(Duration::from_secs(31));
    other.agent.keep().unwrap();
    let ended = sessions::end(&*world.store, &world.registry(), one.agent.session());
    // The node's own thread may have been faster.
    if ended.is_ok() {
        // Missed once, it looks again half a second later.
        eventually("it ends", || {
            one.clock.sleep(Duration::from_secs(1));
            one.agent.keep().is_ok()
        });
        let error = one.request(0, Node::want(WRITE, 0, false)).unwrap_err();
        assert!(error.to_string().contains("given up by others"), "{error}");
    }
}

#[test]
fn a_wait_for_a_node_that_does_not_answer_ends() {
    let world = World::new(1);
    let one = world.node("a");
    let other = world.node_with("b", |options| options.wait_limit = Duration::from_millis(50));
    let permit = Permit::wait(one.tokens(0), Node::want(WRITE, 0, false)).unwrap();
    eventually("its error names the other one", || {
        let error = other.request(0, Node::want(WRITE, 0, false)).unwrap_err();
        assert_eq!(error.errno(), 5);
        error.to_string().contains("node a")
    });
    drop(permit);
    // It does not stand in the way of those behind it.
    one.request(0, Node::want(READ, 0, false)).unwrap();
    // Within its limit, if the machine is not too slow for that just now.
    eventually("it is given", || other.request(0, Node::want(READ, 0, false)).is_ok());
    world.end(vec![one, other]);
}

/// Regression: each request that waited looked at the store by itself, so that the store's load grew with their number.
#[test]
fn requests_that_wait_for_the_same_ask_the_store_as_one() {
    let operations = |requests: u64| {
        let world = World::new(1);
        let one = world.node("a");
        let other = world.node_with("b", |options| options.poll = Duration::from_secs(2));
        let permit = Permit::wait(one.tokens(0), Node::want(WRITE, 0, false)).unwrap();
        let before = world.store.round_trips();
        let during = thread::scope(|scope| {
            for _ in 0..requests {
                scope.spawn(|| other.request(0, Node::want(WRITE, 0, false)).unwrap());
            }
            eventually("all wait", || other.agent.counts().waiting == requests);
            thread::sleep(Duration::from_millis(500));
            let during = world.store.round_trips() - before;
            drop(permit);
            during
        });
        world.end(vec![one, other]);
        during
    };
    let (one, many) = (operations(1), operations(32));
    println!("{one} operations for one request, {many} for 32");
    // Looks become rarer with time, so a slow machine makes few more.
    assert!(many < one + 32, "{one} operations for one request, {many} for 32");
}

/// Low-priority work of several nodes takes together what one of them alone would use of the origin.
#[test]
fn nodes_share_what_one_alone_would_use_of_the_origin() {
    let world = World::new(1);
    let [one, other, third] = ["a", "b", "c"].map(|name| world.timed(name));
    let does = |node: &Node, works, serves| {
        node.agent.share(Use { works, serves });
        node.agent.keep().unwrap();
        node.agent.share(Use { works, serves })
    };
    let part = |parts, others_serve| Share { parts, others_serve };
    let before = one.agent.share(Use::default());
    assert_eq!(before, part(2, true), "nothing is known");
    assert_eq!(does(&one, true, false), Share::WHOLE);
    assert_eq!(does(&other, true, false), part(2, false));
    assert_eq!(does(&third, true, true), part(3, false));
    assert_eq!(does(&one, true, false), part(3, true));
    assert_eq!(one.agent.counts().share_parts, 3);
    // What it did since it last said so counts once more.
    does(&third, false, false);
    does(&third, false, false);
    assert_eq!(does(&one, true, false), part(2, false));
    // Whoever does nothing asks nothing but for the lease, beside which another node may renew its own.
    eventually("it asks for little", || {
        let asked = world.store.round_trips();
        third.agent.keep().unwrap();
        world.store.round_trips() - asked <= 2
    });
    // The share of a node that was killed comes back with its lease.
    drop(other);
    assert_eq!(does(&one, true, false), part(2, false));
    world.store.advance(Duration::from_secs(31));
    assert_eq!(does(&one, true, false), Share::WHOLE);
    // Without the store each takes what is left if all others have work.
    world.store.set_faults(Faults { stopped: true, ..Faults::default() });
    one.clock.sleep(Duration::from_secs(31));
    let alone = one.agent.share(Use { works: true, serves: false });
    assert!(alone.parts >= 2 && alone.others_serve, "{alone:?}");
}

#[test]
fn what_is_renewed_is_told_once() {
    let world = World::new(1);
    let (one, other) = (world.node("a"), world.node("b"));
    let renewed = |node: &Node, direction| {
        let want = Node::want(direction, 0, false);
        let mut permit = Permit::wait(node.tokens(0), want).unwrap();
        permit.looked();
        permit.grant().renewed
    };
    assert!(renewed(&one, READ));
    assert!(!renewed(&one, READ));
    assert!(renewed(&other, WRITE));
    assert!(renewed(&one, READ));
    assert!(!renewed(&other, READ), "it may go on reading what it wrote");
    let all = one.agent.tokens(file(0)).unwrap();
    let nothing = ByteRange::at(BLOCK, 0);
    let want = halocline_cache::coherence::Want {
        direction: READ,
        range: nothing,
        touches: nothing,
        alone: false,
    };
    drop(Permit::wait(&*all, want).unwrap());
    drop(all);
    world.end(vec![one, other]);
}
