//! Extent engines of several nodes over one origin, with the agents' tokens between them (I11).

mod client_pages;
mod given_up;
mod growth;
mod lost_end;
mod new_tokens;
mod recovered;
mod removed_files;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{CacheSize, Config, VolumeKind};
use halocline_api::control::{Controlled, Side};
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::Coherence;
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::Store;
use halocline_cluster::store::memory::MemoryStore;
use halocline_cluster::store::redis::open;
use halocline_model::background::Use;
use halocline_testkit::hostile::Random;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster};
use halocline_testkit::waiting::{SetOnDrop, eventually};
use halocline_vfs::Allocate;
use halocline_vfs::{Caller, Engine, Maker, SetAttr};
use rustix::thread::CapabilitySet;
use tempfile::TempDir;

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// An engine that caches everything, with what else `config` says.
fn engine(
    origin: &Path,
    cache: &Path,
    coherence: &Arc<dyn Coherence>,
    config: &Config,
) -> ExtentEngine {
    let config =
        Config { size: CacheSize::Bytes(64 << 20), policy: "always".to_owned(), ..config.clone() };
    let around = Decorations { coherence: Some(coherence), ..Decorations::NONE };
    ExtentEngine::open_decorated(origin, cache, &config, around).unwrap()
}

/// Nothing is flushed before somebody wants it.
fn without_rebuild() -> Config {
    Config { rebuild: false, ..Config::default() }
}

struct Node {
    engine: ExtentEngine,
    agent: Arc<Agent>,
    cache: TempDir,
}

/// Nodes over one origin and one store.
struct Cluster {
    origin: TempDir,
    _registry: TempDir,
    nodes: Vec<Node>,
}

impl Cluster {
    fn new(nodes: usize) -> Self {
        Self::with(nodes, &Config::default())
    }

    fn with(nodes: usize, config: &Config) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1));
        Self::over(nodes, config, || Arc::clone(&store))
    }

    /// Over a store that each node connects to by itself.
    fn over(nodes: usize, config: &Config, connect: impl Fn() -> Arc<dyn Store>) -> Self {
        let (origin, registry) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let is_plain = config.origin.kind == VolumeKind::Plain;
        if is_plain {
            std::fs::write(origin.path().join("file"), b"").unwrap();
        }
        let nodes: Vec<_> = (0..nodes)
            .map(|number| Self::node(number, (origin.path(), registry.path()), &connect(), config))
            .collect();
        if !is_plain {
            let (engine, by) = (&nodes[0].engine, Maker { caller: ME, umask: 0o022 });
            let place = (&engine.root(), OsStr::new("file"));
            drop(engine.create(place, 0o644, libc::O_RDWR, by).unwrap());
        }
        Self { origin, _registry: registry, nodes }
    }

    fn node(
        number: usize,
        (origin, registry): (&Path, &Path),
        store: &Arc<dyn Store>,
        config: &Config,
    ) -> Node {
        let cache = tempfile::tempdir().unwrap();
        let mut options =
            Options::new(format!("n{number}"), cache.path().to_owned(), format!("cache {number}"));
        options.poll = Duration::from_millis(20);
        let registry = Registry::open(&registry.join("list")).unwrap();
        let agent = Arc::new(Agent::begin(options, Arc::clone(store), registry).unwrap());
        let coherence: Arc<dyn Coherence> = Arc::clone(&agent) as _;
        let engine = engine(origin, cache.path(), &coherence, config);
        Node { engine, agent, cache }
    }
}

impl Node {
    /// As `kill -9` does. What is left is its cache.
    fn kill(self) -> TempDir {
        let Self { engine, agent, cache } = self;
        drop((engine, agent));
        cache
    }

    fn flush(&self) {
        let done = Controlled::flush(&self.engine, None, false, &mut |_| ControlFlow::Continue(()));
        assert!(done.unwrap().skipped.is_empty());
    }

    fn open(&self, flags: i32) -> <ExtentEngine as Engine>::Handle {
        let (vnode, _) = self.engine.lookup(&self.engine.root(), OsStr::new("file")).unwrap();
        self.engine.open(&vnode, flags, ME).unwrap()
    }

    fn size(&self) -> u64 {
        let (_, stat) = self.engine.lookup(&self.engine.root(), OsStr::new("file")).unwrap();
        stat.raw.st_size.unsigned_abs()
    }

    fn truncate(&self, size: u64) {
        let (vnode, _) = self.engine.lookup(&self.engine.root(), OsStr::new("file")).unwrap();
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.engine.set_attr(&vnode, None, &change, ME).unwrap();
    }
}

/// Who wants some bytes of a file waited until all that is dirty of it was on the origin.
#[test]
fn i11_what_is_given_up_is_brought_to_the_origin_and_no_more() {
    const FAR: u64 = 40 << 20;
    let cluster = Cluster::with(2, &Config { rebuild: false, ..Config::default() });
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    let writer = one.open(libc::O_RDWR);
    for (offset, byte) in [(0, 1), (FAR, 2)] {
        one.engine.write(&writer, offset, &vec![byte; 3 << 20], ME).unwrap();
    }
    let dirty = || one.engine.status().dirty_bytes;
    assert_eq!(dirty(), 6 << 20);
    let reader = other.open(libc::O_RDWR);
    let mut read = [0; 100];
    other.engine.read(&reader, 2 << 20, &mut read, ME).unwrap();
    assert_eq!(read, [1; 100]);
    assert_eq!(dirty(), 3 << 20, "what lies far away stays");
    other.engine.read(&reader, FAR + (2 << 20), &mut read, ME).unwrap();
    assert_eq!((read, dirty()), ([2; 100], 0));
}

/// Regression: what was given up was synced by a descriptor that the node's user could not get, and whoever waited for
/// the file waited for ever.
#[test]
fn a_file_that_the_nodes_user_may_not_open_is_given_up() {
    use std::os::unix::fs::PermissionsExt;
    // Root may open everything. The engines' threads are made by this one.
    let mut own = rustix::thread::capabilities(None).unwrap();
    own.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    rustix::thread::set_capabilities(None, own).unwrap();
    for mode in [0o200, 0o400, 0] {
        let cluster = Cluster::with(2, &Config { rebuild: false, ..Config::default() });
        let path = cluster.origin.path().join("file");
        let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
        let (writer, beside) = (one.open(libc::O_RDWR), other.open(libc::O_RDWR));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        one.engine.write(&writer, 0, &[7; 5000], ME).unwrap();
        let mut read = [0; 100];
        other.engine.read(&beside, 4000, &mut read, ME).unwrap();
        assert_eq!(read, [7; 100], "mode {mode:o}");
        one.engine.read(&writer, 0, &mut read, ME).unwrap();
        other.engine.write(&beside, 0, &[8; 5000], ME).unwrap();
        one.engine.read(&writer, 0, &mut read, ME).unwrap();
        assert_eq!(read, [8; 100], "mode {mode:o}");
    }
}

/// Regression: everything dirty in the region around it was flushed, too, while another node waited.
#[test]
fn what_lies_beside_what_is_given_up_stays() {
    const BLOCK: usize = 8 << 10;
    let cluster = Cluster::with(2, &Config { rebuild: false, ..Config::default() });
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
    for block in 0..16 {
        one.engine.write(&first, block * 2 * BLOCK as u64, &[1; BLOCK], ME).unwrap();
    }
    let dirty = || one.engine.status().dirty_bytes;
    assert_eq!(dirty(), 16 * BLOCK as u64);
    // The last block that it wants begins in what is given up, or reaches into it.
    other.engine.write(&second, 8 * BLOCK as u64 + 100, &[2; 100], ME).unwrap();
    assert_eq!(dirty(), 15 * BLOCK as u64);
    let mut read = vec![0; 3 * BLOCK];
    one.engine.read(&first, 7 * BLOCK as u64, &mut read, ME).unwrap();
    let expected = |at: usize| match at {
        at if (BLOCK + 100..BLOCK + 200).contains(&at) => 2,
        at if (BLOCK..2 * BLOCK).contains(&at) => 1,
        _ => 0,
    };
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
}

/// Regression: what lay between the dirty blocks of what is given up was never written again, so that a disk had to seek
/// for each of them while another node waited.
#[test]
fn what_is_given_up_goes_to_the_origin_in_large_pieces() {
    const BLOCK: u64 = 4 << 10;
    let cluster = Cluster::with(2, &Config { rebuild: false, ..Config::default() });
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
    for block in 0..64 {
        one.engine.write(&first, block * 2 * BLOCK, &[1; 4 << 10], ME).unwrap();
    }
    let writes = || -> u64 {
        let servers = one.engine.status().servers;
        servers.iter().filter(|server| server.side == Side::Origin).map(|one| one.writes).sum()
    };
    let before = writes();
    let mut read = [0; 100];
    other.engine.read(&second, 10 * BLOCK + 50, &mut read, ME).unwrap();
    assert_eq!(read, [1; 100]);
    assert_eq!(one.engine.status().dirty_bytes, 0);
    assert!(writes() - before < 8, "{} writes", writes() - before);
}

/// Whatever programs of another node do on the origin, low-priority flushes wait for; what others want does not.
#[test]
fn low_priority_flushes_rest_for_programs_of_other_nodes() {
    const FAR: u64 = 64 << 20;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1));
    let cluster = Cluster::over(2, &Config::default(), || Arc::clone(&store));
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    one.truncate(2 * FAR);
    let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // Each byte once, so that it comes from the origin.
            for at in (FAR..2 * FAR).step_by(4096) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                other.engine.read(&second, at, &mut [0; 100], ME).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        let _ends = SetOnDrop(&is_over);
        // What truncated the file counts for a while, too, unless its node says that it does nothing.
        let nothing = Some((one.agent.session(), Use::default(), 30_000));
        eventually("it is told", || store.users(nothing).unwrap().serving == 1);
        one.engine.write(&first, 0, &[1; 4096], ME).unwrap();
        one.engine.write(&first, 32 << 20, &[1; 4096], ME).unwrap();
        // A machine that is too slow for a read in time, or for a look, proves nothing.
        let (begun, mut last, mut is_proof) = (Instant::now(), Instant::now(), true);
        while begun.elapsed() < Duration::from_secs(3) {
            thread::sleep(Duration::from_millis(20));
            is_proof &= !reader.is_finished()
                && one.agent.counts().others_use_origin == 1
                && last.elapsed() < Duration::from_millis(500);
            last = Instant::now();
        }
        let counts = one.agent.counts();
        if is_proof {
            assert_eq!(one.engine.status().dirty_bytes, 2 * 4096, "{counts:?}");
        }
        let mut read = [0; 100];
        other.engine.read(&second, 0, &mut read, ME).unwrap();
        assert_eq!(read, [1; 100]);
        assert!(one.engine.status().dirty_bytes <= 4096);
        is_over.store(true, Ordering::SeqCst);
    });
    eventually("it is flushed", || one.engine.status().dirty_bytes == 0);
}

/// Regression: a hand-over waited until a flush for age had rested between all regions of a large file, and the other node's
/// program got an error after two minutes.
#[test]
fn a_flush_that_nobody_waits_for_gives_way_to_a_hand_over() {
    const REGIONS: u64 = 300;
    const APART: u64 = 16 << 20;
    let config =
        Config { rebuild_rate: 1, max_dirty_age: Duration::from_secs(1), ..Config::default() };
    let cluster = Cluster::with(2, &config);
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    one.truncate(2 * REGIONS * APART);
    let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
    let writes = || -> u64 {
        let servers = one.engine.status().servers;
        servers.iter().filter(|server| server.side == Side::Origin).map(|one| one.writes).sum()
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // A program that uses the origin: each byte once.
            for at in (REGIONS * APART..2 * REGIONS * APART).step_by(4096) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                one.engine.read(&first, at, &mut [0; 100], ME).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let _ends = SetOnDrop(&is_over);
        // Where the program does not get the processor for a while, the flush ends meanwhile: then all begins anew.
        eventually("somebody waits while the flush rests for the program", || {
            for region in 0..REGIONS {
                one.engine.write(&first, region * APART, &[1; 4096], ME).unwrap();
            }
            let before = writes();
            eventually("the flush has begun", || writes() > before);
            let mut read = [0; 100];
            other.engine.read(&second, (REGIONS - 1) * APART, &mut read, ME).unwrap();
            assert_eq!(read, [1; 100]);
            one.engine.status().dirty_bytes > 0
        });
    });
}

/// What one node did the other sees at once: bytes, size, holes.
#[test]
fn i11_nodes_see_each_others_bytes_at_once() {
    let cluster = Cluster::new(3);
    let opened = |flags: i32| cluster.nodes.iter().map(|node| node.open(flags)).collect::<Vec<_>>();
    let handles = opened(libc::O_RDWR);
    let appending = opened(libc::O_RDWR | libc::O_APPEND);
    let mut model: Vec<u8> = Vec::new();
    let mut random = Random(7);
    for step in 0..600 {
        let at = random.below(cluster.nodes.len());
        let (node, handle) = (&cluster.nodes[at], &handles[at]);
        let (offset, length) = (random.below(256 << 10), random.below(48 << 10) + 1);
        let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); length];
        let what = random.below(10);
        match what {
            0..=3 => {
                node.engine.write(handle, offset as u64, &bytes, ME).unwrap();
                let end = model.len().max(offset + length);
                model.resize(end, 0);
                model[offset..offset + length].copy_from_slice(&bytes);
            }
            4 => {
                node.engine.write(&appending[at], 0, &bytes, ME).unwrap();
                model.extend_from_slice(&bytes);
            }
            5 => {
                node.truncate(offset as u64);
                model.resize(offset, 0);
            }
            6 if offset < model.len() => {
                let end = model.len().min(offset + length);
                let how = Allocate::PunchHole;
                node.engine.allocate(handle, offset as u64, length as u64, how).unwrap();
                model[offset..end].fill(0);
            }
            7 => node.engine.fsync(handle, false).unwrap(),
            _ => {}
        }
        let reader = random.below(cluster.nodes.len());
        let mut read = vec![0xee; length];
        let node = &cluster.nodes[reader];
        let found = node.engine.read(&handles[reader], offset as u64, &mut read, ME).unwrap();
        let end = model.len().min(offset + length).max(offset.min(model.len()));
        let wanted = &model[offset.min(end)..end];
        assert_eq!(found, wanted.len(), "step {step}, {what}: length, {at} then {reader}");
        assert!(read[..found] == *wanted, "step {step}, {what}: bytes, {at} then {reader}");
        assert_eq!(node.size(), model.len() as u64, "step {step}, {what}: size");
    }
    drop((handles, appending));
    for node in &cluster.nodes {
        node.agent.leave().unwrap();
    }
    assert!(std::fs::read(cluster.origin.path().join("file")).unwrap() == model);
}

/// Each block is a register: nobody reads what was overwritten before the read began.
#[test]
fn i11_no_read_is_older_than_what_was_written_before_it() {
    let cluster = Cluster::new(2);
    registers(&cluster, 60, || {});
    for node in &cluster.nodes {
        node.agent.leave().unwrap();
    }
}

/// So it is while masters of a store on several servers are killed and others take their place; and all that was
/// acknowledged is on the origin in the end.
#[test]
fn i14_no_acknowledged_write_is_lost_when_masters_are_killed() {
    let Some(mut servers) = RedisCluster::start(&[]) else { return };
    let cluster =
        Cluster::over(3, &Config::default(), || open(&servers.urls(), None, "test").unwrap());
    let written = registers(&cluster, 400, || {
        for key in ["halocline:{test}:members", &key_of_file(&servers)] {
            servers.lose_master_of(key);
            servers.wait_until_well();
        }
    });
    for node in &cluster.nodes {
        eventually("it has a lease", || node.agent.keep().is_ok());
        node.agent.leave().unwrap();
    }
    let found = std::fs::read(cluster.origin.path().join("file")).unwrap();
    let found: Vec<_> =
        found.chunks_exact(8).map(<[u8; 8]>::try_from).map(Result::unwrap).collect();
    for (block, value) in written.iter().enumerate() {
        let words = &found[block * 1024..][..1024];
        assert!(words.iter().all(|word| u64::from_le_bytes(*word) == *value), "block {block}");
    }
}

/// The key of the one file that has tokens.
fn key_of_file(servers: &RedisCluster) -> String {
    let pattern = "halocline:{test.*}:file:*";
    let keys = |server| servers.command(server, &["KEYS", pattern]);
    (0..MASTERS).map(keys).find(|key| !key.is_empty()).expect("a file has tokens")
}

/// Writes each block in at least so many rounds, and as long as `meanwhile` takes, by turns on all nodes, with reads
/// beside. Answers what was written last.
fn registers(cluster: &Cluster, rounds: u64, meanwhile: impl FnOnce()) -> Vec<u64> {
    const BLOCKS: usize = 8;
    const BLOCK: u64 = 8 << 10;
    cluster.nodes[0].truncate(BLOCKS as u64 * BLOCK);
    let counts = || -> Vec<AtomicU64> { (0..BLOCKS).map(|_| AtomicU64::new(0)).collect() };
    let (begun, done) = (counts(), counts());
    let handles: Vec<_> = cluster.nodes.iter().map(|node| node.open(libc::O_RDWR)).collect();
    let is_over = AtomicBool::new(false);
    let writer = |half: usize| {
        let mut random = Random(half as u64);
        for value in 1_u64.. {
            for block in (half..BLOCKS).step_by(2) {
                let node = random.below(cluster.nodes.len());
                begun[block].store(value, Ordering::SeqCst);
                let bytes = value.to_le_bytes().repeat(1024);
                let engine = &cluster.nodes[node].engine;
                engine.write(&handles[node], block as u64 * BLOCK, &bytes, ME).unwrap();
                done[block].store(value, Ordering::SeqCst);
            }
            if value >= rounds && is_over.load(Ordering::SeqCst) {
                break;
            }
        }
    };
    let reader = |seed: usize| {
        let mut random = Random(1000 + seed as u64);
        let mut bytes = vec![0; 8192];
        for step in 0.. {
            if step >= 200 && is_over.load(Ordering::SeqCst) {
                break;
            }
            let (node, block) = (random.below(cluster.nodes.len()), random.below(BLOCKS));
            let least = done[block].load(Ordering::SeqCst);
            let engine = &cluster.nodes[node].engine;
            engine.read(&handles[node], block as u64 * BLOCK, &mut bytes, ME).unwrap();
            let most = begun[block].load(Ordering::SeqCst);
            // Part of a write that is under way may be there: where blocks are contended, both go to the origin's file
            // system, which orders no reads after rounds beside them. None of it may be older than `least`.
            for word in bytes.chunks_exact(8) {
                let found = u64::from_le_bytes(word.try_into().unwrap());
                assert!((least..=most).contains(&found), "{least} <= {found} <= {most}");
            }
        }
    };
    thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || writer(half));
        }
        for seed in 0..2 {
            scope.spawn(move || reader(seed));
        }
        meanwhile();
        is_over.store(true, Ordering::SeqCst);
    });
    done.iter().map(|value| value.load(Ordering::SeqCst)).collect()
}
