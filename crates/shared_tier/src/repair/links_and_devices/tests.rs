//! Links whose changes the shared disk did not follow, because their nodes died.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Flags;
use rustix::fs::{CWD, Mode, mkfifoat};

use super::super::tests::{Node, World};

fn link(node: &Node, name: &str, target: &str) {
    let mut attributes = Attributes::new(Kind::Symlink, 0o777, 0);
    attributes.target = target.as_bytes().to_vec();
    node.names.create(&Node::entry(1, name), &attributes).unwrap();
}

fn target(world: &World, name: &str) -> Option<String> {
    let read = fs::read_link(world.at("shared").join(name)).ok()?;
    Some(read.to_str().unwrap().to_owned())
}

/// A repair changes what is said, and then all is well.
fn repaired(world: &World) {
    let dry = world.repair(false);
    assert!(!dry.is_clean());
    let done = world.repair(true);
    assert_eq!((&dry.remade, &dry.set_aside), (&done.remade, &done.set_aside));
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    // They are the same when they are built again.
    let before = world.tree();
    world.forget();
    world.repair(true);
    assert_eq!(world.tree(), before);
}

#[test]
fn links_are_made_as_the_store_has_them() {
    let world = World::new();
    let node = world.node("n1");
    link(&node, "l", "first");
    link(&node, "m", "second");
    // The first was never made, and the second is an older one.
    std::os::unix::fs::symlink("older", world.at("shared/m")).unwrap();
    repaired(&world);
    assert_eq!(target(&world, "l").as_deref(), Some("first"));
    assert_eq!(target(&world, "m").as_deref(), Some("second"));
}

#[test]
fn a_link_that_was_removed_does_not_come_back() {
    let world = World::new();
    let node = world.node("n1");
    link(&node, "l", "first");
    world.repair(true);
    node.names.unlink(&Node::entry(1, "l")).unwrap();
    repaired(&world);
    assert_eq!(target(&world, "l"), None);
    let aside = fs::read_dir(world.at("shared/.halocline/leftovers")).unwrap();
    assert_eq!(aside.map(|one| one.unwrap().path()).filter(|path| is_link(path)).count(), 1);
}

fn is_link(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("first"))
}

#[test]
fn a_link_that_was_renamed_over_another_one_has_its_new_name_alone() {
    let world = World::new();
    let node = world.node("n1");
    link(&node, "l", "first");
    link(&node, "m", "second");
    world.repair(true);
    node.names.rename(&Node::entry(1, "l"), &Node::entry(1, "m"), Flags::Replace).unwrap();
    // As after the first of two changes of the disk, and before it.
    for is_removed in [true, false] {
        if is_removed {
            fs::remove_file(world.at("shared/m")).unwrap();
        } else {
            std::os::unix::fs::symlink("first", world.at("shared/l")).unwrap();
            fs::remove_file(world.at("shared/m")).unwrap();
            std::os::unix::fs::symlink("second", world.at("shared/m")).unwrap();
        }
        repaired(&world);
        assert_eq!(target(&world, "l"), None);
        assert_eq!(target(&world, "m").as_deref(), Some("first"));
    }
}

/// A pipe `l` with one name, and further ones with names `a` and `b`, and `c` and `d`, that look alike.
fn pipes(node: &Node) -> [u64; 3] {
    let mut attributes = Attributes::new(Kind::Fifo, 0o644, 0);
    (attributes.uid, attributes.gid) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let make = |name| node.names.create(&Node::entry(1, name), &attributes).unwrap().inode.0;
    let numbers = [make("l"), make("a"), make("c")];
    for (from, to) in [("a", "b"), ("c", "d")] {
        node.names.link(&Node::entry(1, from), &Node::entry(1, to)).unwrap();
    }
    numbers
}

/// Which of the names on the disk are names of one inode, in the order of the names.
fn groups(world: &World) -> Vec<usize> {
    let inodes = ["a", "b", "c", "d", "l"]
        .map(|name| fs::symlink_metadata(world.at("shared").join(name)).unwrap().ino());
    let first = |inode| inodes.iter().position(|one| one == inode).unwrap();
    inodes.iter().map(first).collect()
}

fn relink(from: &Path, to: &Path) {
    fs::remove_file(to).unwrap();
    fs::hard_link(from, to).unwrap();
}

/// Regression: a check said that the disk and the store agreed, and a rebuild then gave programs one object for two.
#[test]
fn names_of_two_things_that_look_alike_are_not_taken_for_names_of_one() {
    type Break = fn(&Path, &[u64; 3]);
    let breaks: [(&str, Break); 6] = [
        ("a single one is one of several", |disk, _| relink(&disk.join("a"), &disk.join("l"))),
        ("one of several is a single one", |disk, _| relink(&disk.join("l"), &disk.join("b"))),
        ("one of several is one of others", |disk, _| relink(&disk.join("a"), &disk.join("d"))),
        ("all of several are others", |disk, _| {
            for name in ["c", "d"] {
                relink(&disk.join("a"), &disk.join(name));
            }
        }),
        ("one of several is one for itself", |disk, _| {
            fs::remove_file(disk.join("b")).unwrap();
            mkfifoat(CWD, disk.join("b"), Mode::from_raw_mode(0o644)).unwrap();
        }),
        ("one inode is kept for two", |disk, [_, a, c]| {
            let kept = disk.join(".halocline/linked");
            relink(&kept.join(a.to_string()), &kept.join(c.to_string()));
        }),
    ];
    for (what, break_it) in breaks {
        let world = World::new();
        let numbers = pipes(&world.node("n1"));
        world.repair(true);
        assert!(world.repair(false).is_clean());
        assert_eq!(groups(&world), [0, 0, 2, 2, 4]);
        break_it(&world.at("shared"), &numbers);
        let told = world.repair(false).remade;
        assert!(!told.is_empty(), "{what} is not told");
        assert_eq!(world.repair(true).remade, told, "{what}");
        assert!(world.repair(false).is_clean(), "{what}: {:?}", world.repair(false));
        assert_eq!(groups(&world), [0, 0, 2, 2, 4], "{what}");
        world.forget();
        world.repair(true);
        let node = world.node("n1");
        let found = ["a", "b", "c", "d", "l"]
            .map(|name| node.names.lookup(&Node::entry(1, name)).unwrap().inode.0);
        assert!(found[0] == found[1] && found[2] == found[3], "{what}: {found:?}");
        assert!(found[0] != found[2] && ![found[0], found[2]].contains(&found[4]), "{what}");
    }
}

/// A disk that has lost the inodes that it kept still has the names of one, and keeps them.
#[test]
fn what_names_have_in_common_is_kept_again() {
    let world = World::new();
    pipes(&world.node("n1"));
    world.repair(true);
    let before = ["a", "c"].map(|name| fs::metadata(world.at("shared").join(name)).unwrap().ino());
    fs::remove_dir_all(world.at("shared/.halocline/linked")).unwrap();
    world.repair(true);
    let after = ["a", "c"].map(|name| fs::metadata(world.at("shared").join(name)).unwrap().ino());
    assert_eq!((before, groups(&world)), (after, vec![0, 0, 2, 2, 4]));
    assert_eq!(fs::read_dir(world.at("shared/.halocline/linked")).unwrap().count(), 2);
}

#[test]
fn another_kind_device_or_target_is_told_and_mended() {
    let world = World::new();
    let node = world.node("n1");
    link(&node, "l", "first");
    let mut attributes = Attributes::new(Kind::CharDevice, 0o600, 0);
    (attributes.uid, attributes.gid) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    node.names.create(&Node::entry(1, "device"), &attributes).unwrap();
    world.repair(true);
    let shared = world.at("shared");
    for name in ["l", "device"] {
        let path = shared.join(name);
        let was = fs::symlink_metadata(&path).unwrap();
        for other in [Kind::Fifo, Kind::Symlink] {
            fs::remove_file(&path).unwrap();
            match other {
                Kind::Fifo => mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap(),
                _ => std::os::unix::fs::symlink("second", &path).unwrap(),
            }
            assert_eq!(world.repair(false).remade, [name]);
            world.repair(true);
            assert!(world.repair(false).is_clean());
            let is = fs::symlink_metadata(&path).unwrap();
            assert_eq!((is.file_type(), is.rdev()), (was.file_type(), was.rdev()));
        }
    }
    assert_eq!(target(&world, "l").as_deref(), Some("first"));
}
