//! Files that other nodes rename while a node has bytes of them (I11): what is given up is found whatever its name is.

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use halocline_api::config::{CacheSize, Config};
use halocline_api::control::Controlled;
use halocline_cache::coherence::Coherence;
use halocline_cache::{Decorations, ExtentEngine};
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::Store;
use halocline_cluster::store::memory::MemoryStore;
use halocline_vfs::{Caller, Engine};
use rustix::process::{Resource, Rlimit, setrlimit};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const LENGTH: usize = 100_000;

type Handle = <ExtentEngine as Engine>::Handle;

struct Node {
    engine: ExtentEngine,
    agent: Arc<Agent>,
    _cache: tempfile::TempDir,
}

/// Two nodes over an origin, each of which may keep few files open.
struct Nodes {
    origin: tempfile::TempDir,
    both: [Node; 2],
    _registry: tempfile::TempDir,
}

impl Nodes {
    fn new() -> Self {
        static FEW: Once = Once::new();
        FEW.call_once(|| {
            let few = Rlimit { current: Some(1024), maximum: Some(1024) };
            setrlimit(Resource::Nofile, few).unwrap();
        });
        let [origin, registry] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1));
        let both = [0, 1].map(|number| {
            let cache = tempfile::tempdir().unwrap();
            let mut options =
                Options::new(format!("n{number}"), cache.path().to_owned(), format!("c{number}"));
            options.poll = Duration::from_millis(20);
            let registry = Registry::open(registry.path()).unwrap();
            let agent = Arc::new(Agent::begin(options, Arc::clone(&store), registry).unwrap());
            let coherence: Arc<dyn Coherence> = Arc::clone(&agent) as _;
            let config = Config {
                size: CacheSize::Bytes(64 << 20),
                policy: "always".to_owned(),
                rebuild: false,
                ..Config::default()
            };
            let around = Decorations { coherence: Some(&coherence), ..Decorations::NONE };
            let engine =
                ExtentEngine::open_decorated(origin.path(), cache.path(), &config, around).unwrap();
            Node { engine, agent, _cache: cache }
        });
        Self { origin, both, _registry: registry }
    }

    fn dirty(&self) -> [u64; 2] {
        self.both.each_ref().map(|node| node.engine.status().dirty_bytes)
    }

    /// Everything is on the origin, and nobody has anything to say.
    fn leave(self) {
        for node in &self.both {
            flush(node);
            assert_eq!(node.engine.status().dirty_bytes, 0);
            assert_eq!(node.engine.status().notes, Vec::<String>::new());
            node.agent.leave().unwrap();
        }
    }
}

fn open(node: &Node, path: &str) -> Handle {
    let mut at = node.engine.root();
    for name in Path::new(path) {
        (at, _) = node.engine.lookup(&at, name).unwrap();
    }
    node.engine.open(&at, libc::O_RDWR, ME).unwrap()
}

/// As a program that writes and closes.
fn write(node: &Node, path: &str, byte: u8) {
    node.engine.write(&open(node, path), 0, &vec![byte; LENGTH], ME).unwrap();
}

/// As a program that reads in two requests, and closes; the bytes that are there.
fn read(node: &Node, path: &str) -> Vec<u8> {
    let handle = open(node, path);
    let mut bytes = vec![0xee; LENGTH];
    let (first, rest) = bytes.split_at_mut(4096);
    assert_eq!(node.engine.read(&handle, 0, first, ME).unwrap(), first.len());
    assert_eq!(node.engine.read(&handle, 4096, rest, ME).unwrap(), rest.len());
    bytes.dedup();
    bytes
}

fn flush(node: &Node) {
    Controlled::flush(&node.engine, None, false, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn rename(node: &Node, from: &str, to: &str) {
    let root = node.engine.root();
    node.engine.rename((&root, OsStr::new(from)), (&root, OsStr::new(to)), 0, ME).unwrap();
}

/// Has the node forget the descriptors of names that it does not use.
fn use_others(nodes: &Nodes, node: &Node) {
    let dir = nodes.origin.path().join("others");
    fs::create_dir_all(&dir).unwrap();
    for number in 0..600 {
        fs::write(dir.join(number.to_string()), "x").unwrap();
    }
    for number in (0..600).chain(0..600) {
        drop(open(node, &format!("others/{number}")));
    }
}

/// Regression: nothing was dropped, because the name that the node knew led nowhere, and its next read was of old bytes.
#[test]
fn i11_clean_bytes_of_a_file_that_another_node_renamed_are_dropped() {
    let nodes = Nodes::new();
    let [one, other] = &nodes.both;
    fs::write(nodes.origin.path().join("old"), "").unwrap();
    write(one, "old", 1);
    flush(one);
    assert_eq!(read(one, "old"), [1]);
    assert!(one.engine.status().mapped_bytes >= LENGTH as u64);
    rename(other, "old", "new");
    write(other, "new", 2);
    assert_eq!(read(one, "new"), [2]);
    rename(one, "new", "old");
    write(one, "old", 3);
    assert_eq!(read(other, "old"), [3]);
    nodes.leave();
}

/// Regression: a closed file whose clean bytes were overwritten was not kept open, so that another node that had renamed
/// a directory above it read old bytes, and what it wrote then was overwritten by what it should have read.
#[test]
fn i11_dirty_bytes_of_a_file_below_a_directory_that_another_node_renamed_are_flushed() {
    let nodes = Nodes::new();
    let [one, other] = &nodes.both;
    fs::create_dir(nodes.origin.path().join("d")).unwrap();
    fs::write(nodes.origin.path().join("d/h"), "").unwrap();
    write(one, "d/h", 1);
    flush(one);
    assert_eq!(nodes.dirty(), [0, 0]);
    write(one, "d/h", 2);
    assert_eq!(nodes.dirty(), [LENGTH as u64, 0]);
    rename(other, "d", "e");
    assert_eq!(read(other, "e/h"), [2]);
    write(other, "e/h", 3);
    flush(one);
    flush(other);
    assert!(fs::read(nodes.origin.path().join("e/h")).unwrap() == vec![3; LENGTH]);
    assert_eq!([read(one, "e/h"), read(other, "e/h")], [[3], [3]]);
    nodes.leave();
}

/// Regression: the modification time was read by name before the flush; that failed, was taken for the removal of the
/// file's last name, and let the hand-over pass.
#[test]
fn i11_dirty_bytes_are_flushed_although_no_name_that_the_node_knows_leads_to_them() {
    const FILES: usize = 8;
    let nodes = Nodes::new();
    let [one, other] = &nodes.both;
    fs::create_dir(nodes.origin.path().join("d")).unwrap();
    for number in 0..FILES {
        fs::write(nodes.origin.path().join(format!("d/{number}")), "").unwrap();
        write(one, &format!("d/{number}"), 1);
    }
    use_others(&nodes, one);
    assert_eq!(nodes.dirty(), [(FILES * LENGTH) as u64, 0]);
    rename(other, "d", "e");
    for number in 0..FILES {
        let name = format!("e/{number}");
        if number % 2 == 0 {
            assert_eq!(read(other, &name), [1], "{name}");
        }
        write(other, &name, 2);
    }
    assert_eq!(nodes.dirty(), [0, (FILES * LENGTH) as u64]);
    for number in 0..FILES {
        assert_eq!(read(one, &format!("e/{number}")), [2]);
    }
    nodes.leave();
}

/// There are more closed files than a node may keep open: what cannot be kept open does not become dirty.
#[test]
fn i11_no_more_files_are_dirty_than_are_kept_open() {
    const FILES: usize = 100;
    let nodes = Nodes::new();
    let [one, other] = &nodes.both;
    fs::create_dir(nodes.origin.path().join("d")).unwrap();
    let name = |dir: &str, number: usize| format!("{dir}/{number}");
    for number in 0..FILES {
        fs::write(nodes.origin.path().join(name("d", number)), "").unwrap();
        write(one, &name("d", number), 1);
    }
    flush(one);
    for number in 0..FILES {
        write(one, &name("d", number), 2);
    }
    rename(other, "d", "e");
    for number in 0..FILES {
        assert_eq!(read(other, &name("e", number)), [2], "{number}");
    }
    nodes.leave();
}
