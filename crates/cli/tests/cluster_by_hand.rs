//! What people do to a cluster by hand: to the keys of its store, and to nodes of which they do not know enough.

use std::fs;
use std::os::unix::fs::FileExt;
use std::thread;

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::waiting::eventually;
use serde_json::Value;

/// What is done to keys, each by its name's end and what becomes of `key` in Lua. All of one row at once.
const CHANGES: [&[(&str, &str)]; 5] = [
    &[("members", "redis.call('DEL', key)")],
    &[("members", "redis.call('HSET', key, 'm', 'nonsense')")],
    &[("leases", "redis.call('DEL', key)")],
    &[
        ("members", "redis.call('DEL', key) redis.call('SET', key, 'nonsense')"),
        ("leases", "redis.call('DEL', key) redis.call('LPUSH', key, 'nonsense')"),
        ("working", "redis.call('DEL', key) redis.call('SET', key, 'nonsense')"),
    ],
    &[("epoch", "redis.call('DEL', key) redis.call('SET', key, 'nonsense')")],
];

/// With the members gone, all nodes took themselves for given up; with other values no token was granted any more; with
/// the leases gone, nodes that lived were taken for gone, and could be given up.
#[test]
fn i14_keys_that_somebody_removes_or_overwrites_are_made_anew() {
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    let files = nodes.open("file");
    let mut word = 0_u64;
    for changes in CHANGES {
        // What only one node has, so that it must not be taken for gone.
        word += 1;
        files[0].write_all_at(&word.to_le_bytes(), 0).unwrap();
        for (name, change) in changes {
            let keys = format!("redis.call('KEYS', 'halocline:*:{name}')");
            let script = format!("for _, key in ipairs({keys}) do {change} end return 1");
            nodes.store.command(&["EVAL", &script, "0"]);
        }
        let forgotten = nodes.cluster("forget", &["one", "--yes"]);
        assert_eq!(forgotten.status.code(), Some(2), "{changes:?}: {}", said(&forgotten));
        for file in files.iter().rev() {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, 0)
                .unwrap_or_else(|error| panic!("{changes:?}: {error}"));
            assert_eq!(u64::from_le_bytes(found), word, "{changes:?}");
            word += 1;
            let written = file.write_all_at(&word.to_le_bytes(), 0);
            written.unwrap_or_else(|error| panic!("{changes:?}: {error}"));
        }
    }
    eventually("no inconsistencies", || nodes.cluster("fsck", &[]).status.success());
    drop(files);
    for node in ["one", "other"] {
        nodes.succeed(&["umount", node]);
    }
    assert_eq!(fs::read(nodes.path("origin/file")).unwrap(), word.to_le_bytes());
    assert_eq!(nodes.listed(), [""; 0]);
}

/// Of several that bring back one node at once, one does, and the others say why they did not.
#[test]
fn i13_a_node_is_recovered_once_however_many_try() {
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    fs::write(nodes.path("one/file"), vec![7; 300_000]).unwrap();
    let living = nodes.cluster("forget", &["one"]);
    assert_eq!(living.status.code(), Some(2), "{}", said(&living));
    assert!(said(&living).contains("its lease runs"), "{}", said(&living));
    nodes.kill("one");
    eventually("its lease is over", || {
        let listed = written(&nodes.cluster("nodes", &["--json"]));
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed.as_array().unwrap().iter().any(|node| node["lease_ms"] == 0)
    });
    let (recovered, mounted) = thread::scope(|scope| {
        let recover = [0; 3].map(|_| scope.spawn(|| nodes.cluster("recover", &["one"])));
        let mount = scope.spawn(|| nodes.mount("one", "cache"));
        (recover.map(|one| one.join().unwrap()), mount.join().unwrap())
    });
    for one in &recovered {
        let text = said(one);
        let reasons = ["no node is called one", "in use", "its lease runs"];
        let is_said = reasons.iter().any(|reason| text.contains(reason));
        assert!(one.status.success() || is_said, "{text}");
    }
    if !mounted.status.success() {
        assert!(said(&mounted).contains("in use"), "{}", said(&mounted));
        let again = nodes.mount("one", "cache");
        assert!(again.status.success(), "{}", said(&again));
    }
    for node in ["one", "other"] {
        assert!(fs::read(nodes.path(node).join("file")).unwrap() == vec![7; 300_000], "{node}");
    }
    assert_eq!(nodes.listed().len(), 2);
    assert!(nodes.cluster("fsck", &[]).status.success());
}
