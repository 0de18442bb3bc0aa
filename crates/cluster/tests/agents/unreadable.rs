//! A node that lives, and has bytes that it can neither read from its cache any more nor give up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use halocline_cache::coherence::{Coherence, FileTokens, LocalCache, Permit, SharedFile};
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::overview::{Problem, overview};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::memory::MemoryStore;
use halocline_model::request::{ByteRange, Direction};
use halocline_os::error::{Error, Result};
use halocline_testkit::waiting::eventually;
use parking_lot::Mutex;

use super::world::{BLOCK, Node, Origin, file};

const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

/// An engine whose cache cannot read some bytes.
#[derive(Debug, Default)]
struct Failing {
    unreadable: Mutex<Vec<ByteRange>>,
    given: Mutex<Vec<ByteRange>>,
}

impl LocalCache for Failing {
    fn give_up(&self, file: SharedFile, range: ByteRange, _: bool) -> Result<()> {
        if self.unreadable(file, range).is_empty() {
            self.given.lock().push(range);
            return Ok(());
        }
        Err(Error::invalid("the cache's device is dead", "replace it"))
    }

    fn unreadable(&self, _: SharedFile, range: ByteRange) -> Vec<ByteRange> {
        let all = self.unreadable.lock();
        all.iter().filter_map(|own| own.intersect(range)).collect()
    }
}

fn registry(place: &tempfile::TempDir) -> Registry {
    Registry::open(&place.path().join("registry")).unwrap()
}

/// What it cannot read is an error at once, whatever the limit of waits, and nothing else is; and once it can be read,
/// it is given up like anything else.
#[test]
fn i13_what_a_node_cannot_read_from_its_cache_is_an_error_for_others_at_once() {
    let (store, place) = (Arc::new(MemoryStore::new(2)), tempfile::tempdir().unwrap());
    let mut options = Options::new("a".to_owned(), "/ssd".into(), "cache of a".to_owned());
    options.poll = Duration::from_millis(50);
    let agent = Agent::begin(options, Arc::<MemoryStore>::clone(&store), registry(&place)).unwrap();
    let engine = Arc::new(Failing::default());
    let weak: Weak<dyn LocalCache> = Arc::downgrade(&(Arc::clone(&engine) as Arc<dyn LocalCache>));
    agent.attach(weak);
    let tokens: Arc<dyn FileTokens> = agent.tokens(file(0)).unwrap();
    drop(Permit::wait(&*tokens, Node::want(WRITE, 0, false)).unwrap());
    *engine.unreadable.lock() = vec![ByteRange::at(10, 20), ByteRange::at(2 * BLOCK, 1)];

    // Its requests would wait for hours, and this test with them.
    let long = |options: &mut Options| options.wait_limit = Duration::from_hours(2);
    let path = place.path().join("registry");
    let other =
        Node::new("b", Arc::<MemoryStore>::clone(&store), &path, &Arc::<Origin>::default(), long);
    let refused = |direction, block, alone| {
        let error = other.request(0, Node::want(direction, block, alone)).unwrap_err();
        assert_eq!(error.errno(), 5, "{error}");
        error.to_string()
    };
    let told = refused(READ, 0, false);
    assert!(told.contains("bytes 10 to 30") && told.contains("node a"), "{told}");
    assert!(told.contains("halocline cluster forget"), "{told}");
    refused(READ, 0, false);
    refused(WRITE, 2, true);
    let why = other.tokens(0).explain(Node::want(READ, 0, false)).unwrap();
    assert!(why.contains("it fails: node a") && why.contains("cannot read"), "{why}");
    for block in [1, 3, 4] {
        other.request(0, Node::want(WRITE, block, false)).unwrap();
    }
    let given = engine.given.lock().clone();
    let bad = engine.unreadable(file(0), ALL);
    assert!(bad.iter().all(|bad| given.iter().all(|given| !given.overlaps(*bad))), "{given:?}");
    let seen = || overview(&*store, &registry(&place)).unwrap().problems;
    let bytes = |problems: &[Problem]| -> Vec<(String, u64)> {
        let of = |problem: &Problem| match problem {
            Problem::Unreadable { node, bytes, .. } => Some((node.clone(), *bytes)),
            _ => None,
        };
        problems.iter().filter_map(of).collect()
    };
    assert_eq!(bytes(&seen()), [("a".to_owned(), 21)]);

    engine.unreadable.lock().clear();
    eventually("the holder is asked again", || {
        store.advance(Duration::from_secs(1));
        for node in [&agent, &other.agent] {
            node.keep().unwrap();
        }
        other.request(0, Node::want(READ, 0, false)).is_ok()
    });
    for block in 0..4 {
        other.request(0, Node::want(WRITE, block, false)).unwrap();
    }
    assert_eq!(bytes(&seen()), []);
    other.agent.leave().unwrap();
    agent.leave().unwrap();
}
