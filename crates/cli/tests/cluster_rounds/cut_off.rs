//! A node that does not reach one of the masters, while all others do.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_testkit::cut_off_masters::CutOffMasters;
use halocline_testkit::nodes::{CACHES, NODES, Nodes, TokenStore};
use halocline_testkit::program;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster, STEADY};
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::{SetOnDrop, eventually};
use serde_json::Value;

use super::programs::pause;
use super::{Fault, rounds, survive};

/// Files that each node makes: two lie on each master, but for bad luck of one in a million.
const FILES: usize = 48;
/// Of these so many change hands.
const EXCHANGED: usize = 2;

fn store() -> Option<CutOffMasters> {
    // Servers that only one node misses are not replaced.
    CutOffMasters::new(RedisCluster::start(STEADY)?)
}

#[test]
fn i14_a_master_that_one_node_does_not_reach_does_no_harm() {
    let kinds: [Fault<CutOffMasters>; 2] = [
        ("a master cut off from a node", |faults, random| {
            let master = random.below(MASTERS);
            faults.nodes.store.cut(master);
            pause(random, 10, 6000);
            faults.nodes.store.mend(master);
        }),
        ("a master cut off from a node that is killed", |faults, random| {
            let master = random.below(MASTERS);
            faults.wait_for_dirty_bytes(0);
            faults.nodes.store.cut(master);
            pause(random, 10, 2000);
            faults.kill(0);
            faults.nodes.store.mend(master);
            faults.revive(0);
        }),
    ];
    let Some(store) = store() else { return };
    survive("a master cut off", store, &kinds, rounds(kinds.len()).min(60));
}

/// The id of the list of sessions, which is in the keys' tags.
fn origin_of<S: TokenStore>(nodes: &Nodes<S>) -> String {
    let id = fs::read(nodes.path("origin/.halocline-cluster/id")).unwrap();
    let id: Value = serde_json::from_slice(&id).unwrap();
    id["id"].as_str().unwrap().to_owned()
}

/// The session of a node, as it is written.
fn session_of<S: TokenStore>(nodes: &Nodes<S>, node: &str) -> String {
    let listed = nodes.listed().into_iter().find_map(|name| {
        let entry = fs::read(nodes.path("origin/.halocline-cluster").join(&name)).unwrap();
        let entry: Value = serde_json::from_slice(&entry).unwrap();
        (entry["node"] == node).then(|| name.trim_start_matches("session-").to_owned())
    });
    listed.expect("it is listed")
}

/// The master that has the messages to both nodes, which is not the one that has the leases.
fn master_of_messages(nodes: &Nodes<CutOffMasters>) -> usize {
    let origin = origin_of(nodes);
    let of_members = nodes.store.master_of(&format!("halocline:{{{origin}}}:members"));
    loop {
        let [one, other] = NODES.map(|node| {
            let session = session_of(nodes, node);
            nodes.store.master_of(&format!("halocline:{{{origin}.told.{session}}}:told"))
        });
        if one == other && one != of_members {
            return one;
        }
        // Its next session has another list.
        let next = usize::from(one != of_members);
        nodes.succeed(&["umount", NODES[next]]);
        let mounted = nodes.mount(NODES[next], CACHES[next]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
}

fn name(node: &str, number: usize) -> String {
    format!("{node} {number}")
}

/// Which files of a node have their tokens on a master, and which have them elsewhere.
fn parted(nodes: &Nodes<CutOffMasters>, node: &str, master: usize) -> (Vec<String>, Vec<String>) {
    let keys = nodes.store.command(master, &["KEYS", "halocline:*:file:*"]);
    let lies_there = |name: &String| {
        let inode = fs::metadata(nodes.path("origin").join(name)).unwrap().ino();
        keys.lines().any(|key| key.contains(&format!(":file:{inode:x}:")))
    };
    let parted: (Vec<_>, Vec<_>) = (0..FILES).map(|at| name(node, at)).partition(lies_there);
    assert!(parted.0.len() > 1 && parted.1.len() > 1, "{parted:?}");
    parted
}

/// Reads a file as often as a wait for its token is over without one.
fn read_in_the_end(path: &Path, is_over: &AtomicBool) -> String {
    loop {
        match fs::read_to_string(path) {
            Err(error)
                if error.raw_os_error() == Some(libc::EIO) && !is_over.load(Ordering::SeqCst) => {}
            read => return read.unwrap(),
        }
    }
}

/// Nothing but what must have its tokens from that master waits. The lists of messages to both nodes lie there, too: neither
/// heard of what the other wanted of any of its files, and programs got errors after two minutes.
#[test]
fn i11_only_files_of_a_master_that_a_node_does_not_reach_wait() {
    let Some(store) = store() else { return };
    let Some(scratch) = Scratch::with_mountpoints(program!(), &NODES) else { return };
    let nodes = Nodes::over(scratch, ["origin"; 2].map(str::to_owned), store, &[]);
    let cut = master_of_messages(&nodes);
    for node in NODES {
        for at in 0..FILES {
            fs::write(nodes.path(node).join(name(node, at)), name(node, at)).unwrap();
        }
    }
    let [one, other] = NODES.map(|node| nodes.path(node));
    let own = parted(&nodes, NODES[0], cut);
    let others = parted(&nodes, NODES[1], cut);
    nodes.store.cut(cut);
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = SetOnDrop(is_over);
        // What waits on either side of the cut.
        let wait = |place, name: &str| {
            let path = fs::canonicalize(place).unwrap().join(name);
            scope.spawn(move || read_in_the_end(&path, is_over))
        };
        let here = wait(&one, &others.0[0]);
        let there = wait(&other, &own.0[0]);
        for node in NODES {
            let waits = || nodes.status(node)["report"]["cluster"]["waiting"].as_u64() > Some(0);
            eventually("somebody waits", waits);
        }
        for name in own.1.iter().take(EXCHANGED) {
            assert_eq!(fs::read_to_string(other.join(name)).unwrap(), *name);
            fs::write(other.join(name), "new").unwrap();
            assert_eq!(fs::read_to_string(one.join(name)).unwrap(), "new");
        }
        for name in others.1.iter().take(EXCHANGED) {
            assert_eq!(fs::read_to_string(one.join(name)).unwrap(), *name);
            fs::write(one.join(name), "new").unwrap();
            assert_eq!(fs::read_to_string(other.join(name)).unwrap(), "new");
        }
        // What the node has needs nobody's answer.
        fs::write(one.join(&own.0[1]), "newer").unwrap();
        assert!(!here.is_finished() && !there.is_finished(), "these need that master");
        nodes.store.mend(cut);
        assert_eq!(here.join().unwrap(), others.0[0]);
        assert_eq!(there.join().unwrap(), own.0[0]);
        assert_eq!(fs::read_to_string(other.join(&own.0[1])).unwrap(), "newer");
    });
    for node in NODES {
        nodes.succeed(&["umount", node]);
    }
    assert_eq!(nodes.listed(), [""; 0]);
}
