//! A node changes names of files whose bytes are on an SSD that it does not reach: the SSD follows later, and names that
//! are rebuilt before that have the changes, too.

use std::collections::BTreeMap;
use std::fs;

use halocline_shared_tier::repair;
use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;
use halocline_testkit::waiting::eventually;

use crate::disks::{Disks, NODES, tree};
use crate::mounted::Mounted;

/// Files on the SSD of the first node.
fn make(first: &Mounted) {
    for directory in ["d", "gone", "way"] {
        first.mkdir(directory).unwrap();
    }
    for at in 1..=12 {
        first.create(&format!("d/f{at}"), &format!("old{at}")).unwrap();
    }
    first.create("gone/file", "gone").unwrap();
    first.create("way/file", "of a directory").unwrap();
    for at in [4, 8] {
        first.link(&format!("d/f{at}"), &format!("d/h{at}")).unwrap();
    }
}

/// The second node, which does not reach that SSD, changes names, and makes files on its own SSD.
fn change(second: &Mounted) {
    let replaced = |at: u32| {
        second.unlink(&format!("d/f{at}")).unwrap();
        second.create(&format!("d/f{at}"), &format!("new{at}")).unwrap();
    };
    replaced(1);
    second.create("d/t2", "t").unwrap();
    second.rename("d/t2", "d/f2", 0).unwrap();
    second.rename("d/f3", "d/g3", 0).unwrap();
    second.create("d/f3", "new3").unwrap();
    replaced(4);
    second.unlink("d/f5").unwrap();
    second.symlink("zzz", "d/f5").unwrap();
    second.unlink("d/f6").unwrap();
    second.mkdir("d/f6").unwrap();
    second.create("d/f6/x", "in").unwrap();
    second.unlink("d/f7").unwrap();
    // One of two names, and one more.
    second.rename("d/h8", "way/h8", 0).unwrap();
    second.link("d/f9", "d/h9").unwrap();
    // Away and back, twice away, and the other way round.
    second.rename("d/f10", "d/g10", 0).unwrap();
    second.rename("d/g10", "d/f10", 0).unwrap();
    second.rename("d/f11", "d/g11", 0).unwrap();
    second.mkdir("new").unwrap();
    second.rename("d/g11", "new/k11", 0).unwrap();
    second.create("d/t12", "t12").unwrap();
    second.rename("d/f12", "d/t12", libc::RENAME_EXCHANGE).unwrap();
    second.unlink("gone/file").unwrap();
    second.rmdir("gone").unwrap();
    second.rename("way", "other way", 0).unwrap();
    // What is made at a name and moves to the shared disk lies where the old one lay.
    second.unlink("other way/file").unwrap();
    second.create("other way/file", "demoted").unwrap();
    second.demote("other way/file").unwrap();
}

fn wanted() -> BTreeMap<String, String> {
    let files = [
        ("d/f1", "new1"),
        ("d/f2", "t"),
        ("d/f3", "new3"),
        ("d/g3", "old3"),
        ("d/f4", "new4"),
        ("d/h4", "old4"),
        ("d/f5", "link to zzz"),
        ("d/f6", "directory"),
        ("d/f6/x", "in"),
        ("d/f8", "old8"),
        ("other way/h8", "old8"),
        ("d/f9", "old9"),
        ("d/h9", "old9"),
        ("d/f10", "old10"),
        ("new/k11", "old11"),
        ("d/f12", "t12"),
        ("d/t12", "old12"),
        ("other way/file", "demoted"),
        ("d", "directory"),
        ("new", "directory"),
        ("other way", "directory"),
    ];
    files.map(|(path, what)| (format!("/{path}"), what.to_owned())).into()
}

fn notes(disks: &Disks) -> usize {
    fs::read_dir(disks.at("shared/.halocline/missed")).map_or(0, Iterator::count)
}

/// The names are changed while the first node's SSD is away.
fn changed_while_away() -> Disks {
    let disks = Disks::new();
    make(&Mounted::new(&disks, true));
    let (here, away) = (disks.at("n1/ssd"), disks.at("n1/away"));
    fs::rename(&here, &away).unwrap();
    change(&Mounted::of_node(&disks, NODES[1], true));
    assert!(notes(&disks) > 0);
    fs::rename(&away, &here).unwrap();
    disks
}

fn are_rebuilt(disks: &Disks) {
    disks.forget();
    disks.repair();
    assert_eq!(notes(disks), 0);
    disks.are_as_in_store("a rebuild");
    assert_eq!(tree(&Mounted::new(disks, true).tier), wanted());
}

/// Regression: the old bytes had the name, and the new ones another, or the name was back.
#[test]
fn i15_names_that_are_rebuilt_have_what_an_ssd_has_missed() {
    are_rebuilt(&changed_while_away());
}

/// Regression: the SSD did not follow, and the bytes of removed files stayed there.
#[test]
fn i15_an_ssd_follows_what_it_has_missed_when_its_node_mounts_it() {
    let disks = changed_while_away();
    let first = Mounted::new(&disks, true);
    eventually("the SSD has followed", || notes(&disks) == 0);
    for name in ["d/f1", "d/f2", "d/f5", "d/f6", "d/f7", "gone/file", "way/file"] {
        let is_there = disks.at("n1/ssd").join(name).symlink_metadata().is_ok();
        assert!(!is_there, "the bytes of {name} are still there");
    }
    assert_eq!(tree(&first.tier), wanted());
    drop(first);
    disks.are_as_in_store("a mount");
    are_rebuilt(&disks);
}

/// Regression: as above, for a node without `--peers`.
#[test]
fn i15_an_ssd_of_a_node_that_is_mounted_follows_soon() {
    let disks = Disks::new();
    let first = Mounted::new(&disks, true);
    make(&first);
    let second = Mounted::with_peers(&disks, NODES[1], true, None);
    change(&second);
    eventually("the SSD has followed", || notes(&disks) == 0);
    assert!(disks.at("n1/ssd/d/f7").symlink_metadata().is_err());
    assert_eq!(tree(&first.tier), wanted());
    drop((first, second));
    disks.are_as_in_store("a minute");
    are_rebuilt(&disks);
}

/// The names are rebuilt while the SSD is away, and its node is mounted, before a check reaches it.
#[test]
fn i15_an_ssd_that_is_not_reached_by_a_rebuild_has_missed_it_still() {
    let disks = changed_while_away();
    let (here, away) = (disks.at("n1/ssd"), disks.at("n1/away"));
    fs::rename(&here, &away).unwrap();
    disks.forget();
    let repair = |node: &str| {
        let (peers, alone) = (disks.peers(), disks.alone());
        repair::run(&disks.at(node), Some(&peers), &disks.names, Some(&alone)).unwrap()
    };
    assert_eq!(repair("n2").missing.len(), 1);
    fs::rename(&away, &here).unwrap();
    drop(Mounted::new(&disks, true));
    repair("n1");
    disks.are_as_in_store("a repair");
    assert_eq!(tree(&Mounted::new(&disks, true).tier), wanted());
}

/// Regression: what neither the SSD nor a full shared disk had taken was never noted. Names rebuilt later gave the old file
/// the name of one that was made since, and a renamed one both names.
#[test]
fn i15_what_neither_an_ssd_nor_a_full_shared_disk_has_taken_follows_later() {
    const DISK_BYTES: u64 = 16 << 20;
    for has_followed in [true, false] {
        let disks = Disks::new();
        let Some(disk) = SmallDisk::over(disks.at("shared"), DISK_BYTES) else { return };
        let none = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(disk.path(), "user.tried", b"1", none).is_err() {
            skip("a file system in memory without attributes of users");
            return;
        }
        let first = Mounted::new(&disks, true);
        first.mkdir("d").unwrap();
        for (path, text) in [("d/removed", "old"), ("d/replaced", "old"), ("d/f", "renamed")] {
            first.create(path, text).unwrap();
        }
        first.tier.close().unwrap();
        drop(first);
        let (here, away) = (disks.at("n1/ssd"), disks.at("n1/away"));
        fs::rename(&here, &away).unwrap();
        let second = Mounted::of_node(&disks, NODES[1], true);
        second.create("d/t", "replaced it").unwrap();
        disk.fill();
        let eio = |done: halocline_os::error::Result<()>| {
            assert_eq!(done.map_err(|error| error.errno()), Err(libc::EIO));
        };
        eio(second.unlink("d/removed"));
        eio(second.rename("d/f", "d/g", 0));
        eio(second.rename("d/t", "d/replaced", 0));
        assert_eq!(notes(&disks), 0);
        disk.free();
        second.create("d/removed", "new").unwrap();
        if has_followed {
            second.tier.close().unwrap();
            assert_eq!(notes(&disks), 4);
        }
        fs::rename(&away, &here).unwrap();
        disks.forget();
        // It is as if it had died.
        disks.give_up_locks();
        disks.repair();
        drop(second);
        let found = tree(&Mounted::new(&disks, true).tier);
        let has = |path: &str, text: &str| {
            assert_eq!(found.get(path).map(String::as_str), Some(text), "{path}: {found:?}");
        };
        has("/d/removed", "new");
        has("/d/replaced", "replaced it");
        if has_followed {
            has("/d/g", "renamed");
            assert_eq!(found.len(), 4, "{found:?}");
        } else {
            let names = ["/d/f", "/d/g"].map(|name| found.contains_key(name));
            assert!(names[0] != names[1], "{found:?}");
        }
    }
}
