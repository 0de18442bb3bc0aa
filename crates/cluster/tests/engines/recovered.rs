//! Caches of nodes that died, and of machines that lost power: what is brought to the origin of them (I13).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use halocline_api::config::{CacheSize, Config};
use halocline_api::control::Controlled;
use halocline_cache::coherence::Coherence;
use halocline_cache::{Decorations, ExtentEngine};
use halocline_cluster::alone::Alone;
use halocline_cluster::store::Store;
use halocline_cluster::store::memory::MemoryStore;
use halocline_vfs::{Allocate, Engine};

use super::{Cluster, ME, Node, without_rebuild};

const LENGTH: usize = 512 << 10;
/// Bytes of a file of the log before its first change.
const HEAD: usize = 64;

/// Brings to the origin what a cache has, as a recovery does.
fn recover(origin: &Path, cache: &Path, boot_id: Option<&str>) {
    let alone: Arc<dyn Coherence> = Arc::new(Alone);
    let config = Config {
        size: CacheSize::Bytes(64 << 20),
        policy: "always".to_owned(),
        ..without_rebuild()
    };
    let around = Decorations { coherence: Some(&alone), boot_id, ..Decorations::NONE };
    let engine = ExtentEngine::open_decorated(origin, cache, &config, around).unwrap();
    let done = Controlled::flush(&engine, None, false, &mut |_| ControlFlow::Continue(()));
    assert!(done.unwrap().skipped.is_empty());
    assert_eq!(engine.status().dirty_bytes, 0);
    engine.close().unwrap();
}

/// The bytes of the origin's file, each with how many of them follow each other.
fn runs(origin: &Path) -> Vec<(u8, usize)> {
    let bytes = fs::read(origin.join("file")).unwrap();
    bytes.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect()
}

/// Regression: the first write to a cached stretch recorded all of it as dirty. After a kill the node's bytes around
/// those that it had written went to the origin, although others had written newer ones there meanwhile.
#[test]
fn i13_a_dead_node_brings_back_nothing_that_it_only_shared() {
    let store = Arc::new(MemoryStore::new(1));
    let mut cluster = Cluster::over(2, &without_rebuild(), || Arc::clone(&store) as Arc<dyn Store>);
    {
        let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
        let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
        one.engine.write(&first, 0, &vec![1; LENGTH], ME).unwrap();
        one.flush();
        // From now on both have all of it, clean.
        other.engine.read(&second, 0, &mut vec![0; LENGTH], ME).unwrap();
        assert_eq!(one.engine.status().mapped_bytes, LENGTH as u64);
        one.engine.write(&first, 0, &[2; 4096], ME).unwrap();
        assert_eq!(one.engine.status().dirty_bytes, 4096);
    }
    let other = cluster.nodes.remove(1);
    let cache = cluster.nodes.remove(0).kill();
    store.advance(Duration::from_mins(1));
    let second = other.open(libc::O_RDWR);
    other.engine.write(&second, 64 << 10, &[3; 4096], ME).unwrap();
    other.flush();
    recover(cluster.origin.path(), cache.path(), None);
    let expected = [(2, 4096), (1, 60 << 10), (3, 4096), (1, LENGTH - (68 << 10))]
        .map(|(byte, run)| (byte, run));
    assert_eq!(runs(cluster.origin.path()), expected);
}

/// What of the log a power loss leaves at least.
struct Durable {
    log: BTreeMap<PathBuf, Vec<u8>>,
    synced: Vec<u8>,
}

impl Durable {
    /// Right after a sync.
    fn now(cache: &Path) -> Self {
        let dir = fs::read_dir(cache.join("meta")).unwrap();
        let files = dir.map(|entry| entry.unwrap().path());
        let is_log =
            |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"log-");
        let log = files.filter(is_log).map(|path| (path.clone(), fs::read(path).unwrap()));
        Self { log: log.collect(), synced: fs::read(cache.join("meta/synced")).unwrap() }
    }

    /// Of the log nothing reaches the disk that was not synced since.
    fn lose_the_rest(self, cache: &Path) {
        let Self { mut log, synced } = self;
        let now = Self::now(cache);
        if now.synced != synced {
            return;
        }
        for (path, bytes) in now.log {
            let mut old = log.remove(&path).unwrap_or_else(|| bytes[..HEAD].to_vec());
            old.resize(bytes.len(), 0);
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&old, 0).unwrap();
        }
    }
}

/// Regression: the machine of a node forgot, with the end of its log, that fsynced bytes were flushed, cut off or punched
/// since, and given to others. They went to the origin again, over the others' newer ones.
#[test]
fn i13_a_machine_that_lost_power_brings_back_nothing_that_it_gave_up() {
    type Change = fn(&Node, &<ExtentEngine as Engine>::Handle);
    let changes: [(&str, Change); 4] = [
        ("given up", |_, _| {}),
        ("flushed", |node, _| node.flush()),
        ("cut off", |node, _| node.truncate(0)),
        ("punched", |node, handle| {
            let how = Allocate::PunchHole;
            node.engine.allocate(handle, 0, LENGTH as u64, how).unwrap();
        }),
    ];
    for (what, change) in changes {
        let mut cluster = Cluster::with(2, &without_rebuild());
        let durable = {
            let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
            let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
            one.engine.write(&first, 0, &vec![1; LENGTH], ME).unwrap();
            one.engine.fsync(&first, false).unwrap();
            assert_eq!(one.engine.status().dirty_bytes, LENGTH as u64);
            let durable = Durable::now(one.cache.path());
            change(one, &first);
            other.engine.write(&second, 0, &vec![2; LENGTH], ME).unwrap();
            other.flush();
            assert_eq!(one.engine.status().dirty_bytes, 0);
            durable
        };
        let cache = cluster.nodes.remove(0).kill();
        durable.lose_the_rest(cache.path());
        recover(cluster.origin.path(), cache.path(), Some("the next boot"));
        assert_eq!(runs(cluster.origin.path()), [(2, LENGTH)], "{what}");
    }
}
