//! A dead node's cache that another machine reaches by another path.

use std::fs;
use std::process::{Command, Output};

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;

const LENGTH: usize = 100_000;

/// A program in a name, a network and mounts of its own, whose arguments follow.
fn of_its_own() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--uts", "--net"]);
    unshare
}

/// `halocline cluster recover` of the first node, as on a machine with a name and a network of its own, where neither the
/// origin nor the cache is at its path.
fn recover_elsewhere(nodes: &Nodes, options: &str) -> Output {
    let script = format!(
        "hostname elsewhere && mount --bind origin far-origin && mount --bind cache far-cache && \
         mount -t tmpfs none origin && mount -t tmpfs none cache && \
         exec '{}' cluster recover far-origin one --cluster '{}' {options}",
        nodes.program().display(),
        nodes.store.url()
    );
    let mut machine = of_its_own();
    machine.args(["sh", "-c", &script]).current_dir(nodes.root());
    machine.output().unwrap()
}

#[test]
fn i13_a_dead_node_is_recovered_on_another_machine_by_another_path() {
    if !of_its_own().arg("true").status().is_ok_and(|status| status.success()) {
        return skip("no namespaces can be made");
    }
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    for place in ["far-origin", "far-cache"] {
        fs::create_dir(nodes.path(place)).unwrap();
    }
    let bytes = |number: u8| vec![number; LENGTH];
    fs::create_dir(nodes.path("one/dir")).unwrap();
    for number in [1, 2] {
        fs::write(nodes.path(&format!("one/dir/{number}")), bytes(number)).unwrap();
    }
    fs::rename(nodes.path("one/dir/2"), nodes.path("one/renamed")).unwrap();
    nodes.kill("one");
    let early = recover_elsewhere(&nodes, "--cache far-cache");
    assert!(!early.status.success() && said(&early).contains("its lease runs"), "{}", said(&early));
    eventually("its lease is over", || written(&nodes.cluster("nodes", &[])).contains("is gone"));
    let elsewhere = recover_elsewhere(&nodes, "");
    assert!(!elsewhere.status.success(), "another directory has the cache's name there");
    assert!(said(&elsewhere).contains("--cache"), "{}", said(&elsewhere));
    let recovered = recover_elsewhere(&nodes, "--cache far-cache --json");
    assert!(recovered.status.success(), "{}", said(&recovered));
    let told: serde_json::Value = serde_json::from_slice(&recovered.stdout).unwrap();
    assert_eq!((&told[0]["is_ended"], &told[0]["bytes"]), (&true.into(), &(2 * LENGTH).into()));
    for (name, number) in [("dir/1", 1), ("renamed", 2)] {
        for place in ["other", "origin"] {
            assert!(fs::read(nodes.path(place).join(name)).unwrap() == bytes(number), "{name}");
        }
    }
    // It may come back with its cache, which has nothing any more that others need.
    let mounted = nodes.mount("one", "cache");
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert!(fs::read(nodes.path("one/renamed")).unwrap() == bytes(2));
    assert!(nodes.cluster("fsck", &[]).status.success());
}
