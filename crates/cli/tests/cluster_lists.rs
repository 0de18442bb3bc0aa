//! What an origin says of who caches it: the list of sessions, and the marks of caches that nobody shares.

use std::fs;
use std::process::{Command, Output};

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::eventually;
use serde_json::Value;

/// Waits for the mount point of a process that was killed.
fn kill(scratch: &Scratch, mountpoint: &str) {
    scratch.kill(mountpoint);
}

/// Regression: with `--cluster` the marks of caches were not looked at, and the origin's old bytes were served.
#[test]
fn i1_a_node_is_refused_where_a_cache_outside_the_cluster_has_newer_bytes() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["one", "other"]) else { return };
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    for cache in ["cache", "cache2", "cache3"] {
        fs::create_dir_all(scratch.path(cache)).unwrap();
    }
    let always = ["--policy", "always", "--rebuild=false"];
    let mount = |mountpoint: &str, cache: &str, options: &[&str]| {
        let place = ["mount", "origin", mountpoint, "--cache", cache];
        scratch.halocline(&[&place[..], &always, options].concat())
    };
    let alone = mount("one", "cache", &[]);
    assert!(alone.status.success(), "{}", said(&alone));
    fs::write(scratch.path("one/file"), [7; 5000]).unwrap();
    kill(&scratch, "one");
    let marked = mount("one", "cache2", &[]);
    if marked.status.success() {
        return halocline_testkit::skipping::skip("no extended attributes here");
    }
    let node = ["--cluster", &url, "--node", "n2"];
    let refused = mount("one", "cache2", &node);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert_eq!(said(&refused), said(&marked));
    assert!(said(&refused).contains("--cache-lost"), "{}", said(&refused));
    let listed = written(&scratch.halocline(&["cluster", "nodes", "origin", "--cluster", &url]));
    assert!(listed.contains("no node caches this origin"), "{listed}");
    // Those of other nodes refuse nobody, and are not among what is given up.
    let lost = mount("one", "cache2", &[&node[..], &["--cache-lost"]].concat());
    assert!(lost.status.success(), "{}", said(&lost));
    fs::write(scratch.path("one/file"), [8; 5000]).unwrap();
    for options in [&[][..], &["--cache-lost"]] {
        let node = ["--cluster", &url, "--node", "n3"];
        let beside = mount("other", "cache3", &[&node[..], options].concat());
        assert!(beside.status.success(), "{}", said(&beside));
        scratch.succeed(&["umount", "other"]);
    }
    kill(&scratch, "one");
    let again = mount("one", "cache2", &node);
    assert!(again.status.success(), "{}", said(&again));
    scratch.succeed(&["umount", "one"]);
    assert_eq!(fs::read(scratch.path("origin/file")).unwrap(), [8; 5000]);
}

/// Regression: whoever renamed or removed the list had the next node begin another one.
#[test]
fn i11_no_mount_begins_while_the_list_of_nodes_that_live_is_gone() {
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    let marks = ["-d", "-m", "-"];
    let Ok(marked) = Command::new("getfattr").args(marks).arg(nodes.path("origin")).output() else {
        return halocline_testkit::skipping::skip("no getfattr");
    };
    if !written(&marked).contains("halocline.cluster.") {
        return halocline_testkit::skipping::skip("no extended attributes here");
    }
    nodes.succeed(&["umount", "other"]);
    fs::write(nodes.path("one/file"), [7; 5000]).unwrap();
    let [list, away] = ["origin/.halocline-cluster", "away"].map(|name| nodes.path(name));
    fs::rename(&list, &away).unwrap();
    let is_refused = |refused: &Output| {
        assert_eq!(refused.status.code(), Some(2), "{}", said(refused));
        assert!(said(refused).contains("is missing"), "{}", said(refused));
        assert!(said(refused).contains("setfattr -x"), "{}", said(refused));
        assert!(!list.exists());
    };
    is_refused(&nodes.mount("other", "cache2"));
    eventually("the node stops", || fs::write(nodes.path("one/file"), [8; 5000]).is_err());
    fs::rename(&away, &list).unwrap();
    eventually("it goes on", || fs::write(nodes.path("one/file"), [9; 5000]).is_ok());
    let beside = nodes.mount("other", "cache2");
    assert!(beside.status.success(), "{}", said(&beside));
    assert_eq!(fs::read(nodes.path("other/file")).unwrap(), [9; 5000]);
    // A mount that is not part of it does not begin either, on a machine that has no node.
    for node in ["one", "other"] {
        nodes.succeed(&["umount", node]);
    }
    fs::rename(&list, &away).unwrap();
    is_refused(&nodes.halocline(&["mount", "origin", "other", "--cache", "cache2"]));
    fs::rename(&away, &list).unwrap();
    nodes.succeed(&["mount", "origin", "other", "--cache", "cache2"]);
}

/// Regression: after a restart of the store it said "is forgotten, with 0 files".
#[test]
fn what_a_node_held_that_is_given_up_is_not_known_after_the_store_forgot_it() {
    let Some(mut nodes) = Nodes::new(program!(), &[]) else { return };
    fs::write(nodes.path("other/lost"), [7; 5000]).unwrap();
    nodes.kill("other");
    nodes.store.kill();
    nodes.store.forget();
    nodes.store.restart();
    eventually("the leases are over that it may have forgotten", || {
        let listed: Value =
            serde_json::from_str(&written(&nodes.cluster("nodes", &["--json"]))).unwrap();
        let mut listed = listed.as_array().unwrap().iter();
        listed.any(|node| node["node"] == "other" && node["lease_ms"] == 0)
    });
    // What its cache has is seen there.
    let seen = nodes.cluster("forget", &["other", "--dry-run"]);
    assert!(seen.status.success(), "{}", said(&seen));
    assert!(said(&seen).contains("origin/lost"), "{}", said(&seen));
    assert!(!said(&seen).contains("any other file"), "{}", said(&seen));
    fs::rename(nodes.path("cache2"), nodes.path("away")).unwrap();
    let refused = nodes.cluster("forget", &["other"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("--yes"), "{}", said(&refused));
    let forgotten = nodes.cluster("forget", &["other", "--yes"]);
    assert!(forgotten.status.success(), "{}", said(&forgotten));
    assert!(written(&forgotten).contains("perhaps others"), "{}", written(&forgotten));
    // Nothing is expected of that cache any more.
    nodes.succeed(&["umount", "one"]);
    let again = nodes.mount("one", "cache");
    assert!(again.status.success(), "{}", said(&again));
}

/// Regression: the command had the store's password in its environment.
#[test]
fn a_command_does_not_get_the_stores_password() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let Some(store) = RedisServer::start(&["--requirepass", "s3cret"]) else { return };
    fs::create_dir_all(scratch.path("cache")).unwrap();
    let url = store.url();
    let run = ["run", "--origin", "origin", "--cache", "cache", "--cluster", &url, "--quiet"];
    let show = ["--", "sh", "-c", "echo \"[$HALOCLINE_CLUSTER_PASSWORD]\""];
    let mut command = scratch.command(&[&run[..], &show].concat());
    let ran = command.env("HALOCLINE_CLUSTER_PASSWORD", "s3cret").output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(written(&ran), "[]\n");
}
