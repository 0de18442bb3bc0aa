//! Sessions of a shared tier's nodes in their store, by commands: how they end, without the store and after it was lost.

use std::fs;
use std::process::Output;
use std::thread;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::waiting::eventually;

const NODES: [&str; 2] = ["one", "two"];

/// Two nodes with a disk that both see; `None`, with the reason, where that cannot be tried.
fn nodes() -> Option<SharedTiers> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    Some(SharedTiers::new(scratch, &NODES)?.mounted(&NODES, &[]))
}

/// Regression: all but one of the nodes that mounted a new tier at the same moment were told that the store began a new epoch.
#[test]
fn nodes_that_mount_a_new_tier_at_once_share_it() {
    const TOGETHER: [&str; 4] = ["one", "two", "three", "four"];
    for _ in 0..3 {
        let Some(scratch) = Scratch::with_mountpoints(program!(), &TOGETHER) else { return };
        let Some(nodes) = SharedTiers::new(scratch, &TOGETHER) else { return };
        thread::scope(|scope| {
            let mounts = TOGETHER.map(|node| scope.spawn(|| nodes.mount(node, &[])));
            for mounted in mounts.map(|mount| mount.join().unwrap()) {
                assert!(mounted.status.success(), "{}", said(&mounted));
            }
        });
        for node in TOGETHER {
            fs::write(nodes.at(node, node), node).unwrap();
        }
        for (node, name) in TOGETHER.iter().flat_map(|node| TOGETHER.map(|name| (node, name))) {
            assert_eq!(fs::read_to_string(nodes.at(node, name)).unwrap(), name);
        }
    }
}

/// Regression: it exited with 1, and said only that the store did not answer.
#[test]
fn an_unmount_without_the_store_says_what_is_done_and_what_is_not() {
    let Some(mut nodes) = nodes() else { return };
    fs::write(nodes.at("one", "f"), "of one").unwrap();
    nodes.store.kill();
    for node in NODES {
        let done = nodes.scratch.halocline(&["umount", node]);
        assert_eq!(done.status.code(), Some(5), "{}", said(&done));
        let told = said(&done);
        let is_whole = ["the mount is gone and everything is written", "lease", "mounted again"];
        assert!(is_whole.iter().all(|part| told.contains(part)), "{told}");
    }
    let on_disk = nodes.scratch.path("one-tiers/ssd/f");
    assert_eq!(fs::read_to_string(on_disk).unwrap(), "of one");
}

/// Regression: such nodes were said to be gone, for as long as their leases ran, and a dry run of `forget` would have ended
/// their sessions; a repair was refused because of them.
#[test]
fn nodes_that_a_restarted_store_does_not_know_may_live() {
    let Some(mut nodes) = nodes() else { return };
    let url = nodes.store.url();
    for node in NODES {
        nodes.scratch.kill(node);
    }
    nodes.store.kill();
    nodes.store.forget();
    nodes.store.restart();
    let cluster = |args: &[&str]| {
        let done = nodes.scratch.halocline(&[args, &["--cluster", &url]].concat());
        [written(&done), said(&done)].concat()
    };
    let told = cluster(&["cluster", "nodes", "disk"]);
    assert_eq!((told.matches("may live").count(), told.contains("is gone")), (2, false), "{told}");
    let told = cluster(&["cluster", "forget", "disk", "one", "--dry-run"]);
    assert!(told.contains("its lease runs"), "{told}");
    let told = said(&shared_tiers::fsck(&nodes.scratch, &url, &["--repair"]));
    assert!(told.contains("uses the tier"), "{told}");
}

/// Regression: it spoke of files of a cache that may be lost, and asked for `--yes`.
#[test]
fn the_session_of_a_node_of_a_tier_is_ended_without_talk_of_caches() {
    let Some(nodes) = nodes() else { return };
    fs::write(nodes.at("one", "f"), "of one").unwrap();
    nodes.scratch.kill("one");
    let url = nodes.store.url();
    let cluster = |what: &str, name: &[&str]| -> Output {
        let named = [&["cluster", what, "disk"], name, &["--cluster", &url]].concat();
        nodes.scratch.halocline(&named)
    };
    let told = cluster("nodes", &[]);
    let told = String::from_utf8_lossy(&told.stdout);
    assert!(told.contains(" SSD /") && !told.contains("cache"), "{told}");
    let refused = cluster("recover", &["one"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("mounted again"), "{}", said(&refused));
    eventually("its lease is over", || {
        let done = cluster("forget", &["one"]);
        let told = [String::from_utf8_lossy(&done.stdout).into_owned(), said(&done)].concat();
        assert!(done.status.success() || told.contains("its lease runs"), "{told}");
        assert!(!done.status.success() || told.contains("its files stay on its SSD"), "{told}");
        done.status.success()
    });
    let mounted = nodes.mount("one", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(fs::read_to_string(nodes.at("two", "f")).unwrap(), "of one");
}
