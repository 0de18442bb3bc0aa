//! Backups of the disks of a tier that nodes share are put back: mounts say so, and a repair opens nothing that was closed since (I15).

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::shared_tiers::{self, SharedTiers};

const NODES: [&str; 2] = ["one", "two"];
const SSD: &str = "one-tiers/ssd";

struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

impl Nodes {
    fn new() -> Option<Self> {
        Some(Self(SharedTiers::started(program!(), &NODES, &[])?))
    }

    /// Mounts a node; what that says.
    fn mounts(&self, node: &str) -> String {
        let mounted = self.mount(node, &[]);
        assert!(mounted.status.success(), "{}", said(&mounted));
        said(&mounted)
    }

    fn unmount(&self) {
        for node in NODES {
            shared_tiers::unmount(&self.scratch, node);
        }
    }

    /// Copies a directory with all attributes.
    fn copy(&self, from: &str, to: &str) {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(self.scratch.path(from)).arg(self.scratch.path(to));
        assert!(copy.status().unwrap().success());
    }

    fn put_back(&self, disk: &str) {
        fs::remove_dir_all(self.scratch.path(disk)).unwrap();
        self.copy("backup", disk);
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.at("one", name)).unwrap().permissions().mode() & 0o7777
    }
}

fn all(done: &Output) -> String {
    [written(done), said(done)].concat()
}

/// Regression: the mount said nothing, reads gave the older bytes, and the repair ended with 0 and said that both agree.
#[test]
fn an_ssd_that_was_put_back_is_told_by_mounts_checks_and_the_repair() {
    const NOTE: &str = "the SSD of node one is older";
    let Some(nodes) = Nodes::new() else { return };
    fs::write(nodes.at("one", "f"), "old").unwrap();
    nodes.unmount();
    nodes.copy(SSD, "backup");
    assert!(!nodes.mounts("one").contains("older"));
    nodes.mounts("two");
    fs::write(nodes.at("one", "f"), "newer").unwrap();
    nodes.until_closed("one", "f");
    nodes.unmount();
    nodes.put_back(SSD);
    for _ in 0..2 {
        let told = nodes.mounts("one");
        assert!(told.contains(NOTE) && told.contains("halocline cluster fsck"), "{told}");
        let status = nodes.scratch.status("one")["notes"].to_string();
        assert!(status.contains(NOTE), "{status}");
        assert!(!nodes.mounts("two").contains("older"));
        nodes.unmount();
    }
    let checked = nodes.fsck(&[]);
    assert_eq!(checked.status.code(), Some(1), "{}", all(&checked));
    assert!(all(&checked).contains("f: size 3 on the disk, 5 in the store"), "{}", all(&checked));
    assert!(all(&checked).contains("the disk has an older version"), "{}", all(&checked));
    assert!(all(&checked).contains(NOTE), "{}", all(&checked));
    assert!(!all(&checked).contains("loaded from an older file"), "{}", all(&checked));
    let repaired = nodes.fsck(&["--repair"]);
    assert_eq!(repaired.status.code(), Some(1), "{}", all(&repaired));
    assert!(all(&repaired).contains("the newer one is gone"), "{}", all(&repaired));
    let again = nodes.fsck(&["--repair"]);
    assert_eq!(again.status.code(), Some(0), "{}", all(&again));
    let told = nodes.mounts("one");
    assert!(!told.contains("older"), "{told}");
    assert_eq!(fs::read_to_string(nodes.at("one", "f")).unwrap(), "old");
    shared_tiers::unmount(&nodes.scratch, "one");
}

/// A node dies, also while it counts: its SSD is the same one, so nothing is said.
#[test]
fn nodes_that_were_killed_are_not_told_that_a_disk_is_older() {
    let Some(nodes) = Nodes::new() else { return };
    for _ in 0..3 {
        fs::write(nodes.at("one", "f"), "written").unwrap();
        nodes.scratch.kill("one");
        let told = nodes.mounts("one");
        assert!(!told.contains("older"), "{told}");
    }
    nodes.unmount();
}

/// An SSD that was copied while its node was mounted, and put back after the node died in the same session.
#[test]
fn an_ssd_from_within_a_session_that_never_ended_is_told() {
    let Some(nodes) = Nodes::new() else { return };
    fs::write(nodes.at("one", "f"), "old").unwrap();
    nodes.copy(SSD, "backup");
    nodes.scratch.kill("one");
    nodes.put_back(SSD);
    for _ in 0..2 {
        let told = nodes.mounts("one");
        assert!(told.contains("the SSD of node one is older"), "{told}");
        shared_tiers::unmount(&nodes.scratch, "one");
    }
    shared_tiers::unmount(&nodes.scratch, "two");
}

/// Regression: the old version was there under a second name, with the mode of the backup, for everybody.
#[test]
fn i15_a_shared_disk_that_was_put_back_in_place_opens_nothing_that_was_closed_since() {
    let Some(nodes) = Nodes::new() else { return };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    for name in ["closed", "moved"] {
        fs::write(nodes.at("one", &format!("d/{name}")), "text").unwrap();
        nodes.moves(&["demote", &format!("one/d/{name}")]);
    }
    nodes.unmount();
    nodes.copy("disk", "backup");
    for node in NODES {
        drop(nodes.mounts(node));
    }
    nodes.moves(&["warm", "one/d/closed"]);
    fs::set_permissions(nodes.at("one", "d/closed"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(nodes.at("one", "private")).unwrap();
    fs::set_permissions(nodes.at("one", "private"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(nodes.at("one", "d/moved"), nodes.at("one", "private/moved")).unwrap();
    nodes.moves(&["warm", "one/private/moved"]);
    nodes.unmount();
    for name in ["closed", "moved"] {
        nodes.copy(&format!("backup/d/{name}"), &format!("disk/d/{name}"));
    }
    nodes.copy("backup/.halocline/counts/.", "disk/.halocline/counts");
    for node in NODES {
        let told = nodes.mounts(node);
        assert!(told.contains("the shared disk is older than the last session"), "{told}");
    }
    nodes.unmount();
    let checked = nodes.fsck(&[]);
    assert!(all(&checked).contains("d/closed, an older state of d/closed"), "{}", all(&checked));
    nodes.fsck(&["--repair"]);
    let again = nodes.fsck(&[]);
    assert_eq!(again.status.code(), Some(0), "{}", all(&again));
    let told = nodes.mounts("one");
    assert!(!told.contains("older"), "{told}");
    let names = fs::read_dir(nodes.at("one", "d")).unwrap();
    let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["closed", "moved"]);
    assert_eq!([nodes.mode("d/closed"), nodes.mode("d/moved")], [0o600; 2]);
    shared_tiers::unmount(&nodes.scratch, "one");
}

/// Regression: the message spoke of caches and an origin, and what it said led to a bare errno.
#[test]
fn a_shared_disk_that_was_restored_elsewhere_is_told_with_what_to_do_and_that_works() {
    let Some(nodes) = Nodes::new() else { return };
    fs::write(nodes.at("one", "f"), "text").unwrap();
    nodes.until_closed("one", "f");
    nodes.unmount();
    nodes.copy("disk", "backup");
    nodes.put_back("disk");
    let list = nodes.scratch.path("disk/.halocline-cluster");
    for refused in [nodes.mount("one", &[]), nodes.fsck(&[]), nodes.fsck(&["--repair"])] {
        assert!(!refused.status.success());
        let told = said(&refused);
        assert!(told.contains("the shared disk looks restored or copied"), "{told}");
        assert!(told.contains("(rm -r ") && told.contains("--repair"), "{told}");
        assert!(!told.contains("caches"), "{told}");
    }
    fs::remove_dir_all(&list).unwrap();
    let checked = nodes.fsck(&[]);
    let told = said(&checked);
    assert!(checked.status.code() == Some(2) && told.contains("--repair"), "{told}");
    let repaired = nodes.fsck(&["--repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}", all(&repaired));
    nodes.mounts("one");
    assert_eq!(fs::read_to_string(nodes.at("one", "f")).unwrap(), "text");
    shared_tiers::unmount(&nodes.scratch, "one");
}
