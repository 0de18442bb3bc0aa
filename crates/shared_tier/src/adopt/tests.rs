//! Tiers of one node, as decision 0001 has them, become shared ones; also by runs that die.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use halocline_model::namespace::{InodeNumber, ROOT};
use halocline_os::beneath::TreeCursor;
use rustix::fs::{OFlags, openat};

use super::*;
use crate::repair::tests::{Death, World};

/// A tier that was one node's.
fn old() -> World {
    let world = World::unformatted();
    let (ssd, hdd) = (world.at("n1/ssd"), world.at("n1/hdd"));
    let below = |path: &str| hdd.join(path);
    fs::create_dir_all(ssd.join(".halocline/intents")).unwrap();
    fs::write(ssd.join(".halocline").join(LABEL), "{}").unwrap();
    fs::create_dir_all(ssd.join("new/deep")).unwrap();
    fs::create_dir(ssd.join("empty")).unwrap();
    fs::create_dir_all(below("was/deep")).unwrap();
    fs::create_dir_all(below(".halocline/files")).unwrap();
    fs::write(ssd.join("hot"), "hot").unwrap();
    fs::hard_link(ssd.join("hot"), ssd.join("new/hot too")).unwrap();
    fs::write(below("cold"), "cold").unwrap();
    own_xattrs::set_number(&File::open(below("cold")).unwrap(), own_xattrs::INODE, 3).unwrap();
    symlink(below("cold"), ssd.join("cold")).unwrap();
    // A directory above it was renamed.
    fs::write(below("was/deep/moved"), "moved").unwrap();
    symlink(below("was/deep/moved"), ssd.join("new/deep/moved")).unwrap();
    fs::write(below(".halocline/files/7"), "path was taken").unwrap();
    symlink(below(".halocline/files/7"), ssd.join("new/taken")).unwrap();
    // Two names of one file below.
    fs::write(below("twice"), "twice").unwrap();
    symlink(format!("{}/./twice", hdd.display()), ssd.join("twice")).unwrap();
    fs::hard_link(ssd.join("twice"), ssd.join("empty too")).unwrap();
    symlink("anywhere", ssd.join("users")).unwrap();
    symlink(format!("{}/.//cold", hdd.display()), ssd.join("users too")).unwrap();
    fs::set_permissions(ssd.join("new"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::write(below("by hand"), "by hand").unwrap();
    world
}

fn check(world: &World) {
    let tree = world.tree();
    let text = |path: &str| tree.get(path).map(String::as_str);
    for (path, expected) in [
        ("/hot", "hot"),
        ("/new/hot too", "hot"),
        ("/cold", "cold"),
        ("/new/deep/moved", "moved"),
        ("/new/taken", "path was taken"),
        ("/twice", "twice"),
        ("/empty too", "twice"),
        ("/users", "Symlink"),
        ("/users too", "Symlink"),
        ("/by hand", "by hand"),
        ("/empty", "directory"),
    ] {
        assert_eq!(text(path), Some(expected), "{path}: {tree:?}");
    }
    // And the renamed directories, which are empty below.
    assert_eq!(tree.len(), 15, "{tree:?}");
    let node = world.node_until("n1", 900, i64::MAX);
    let lookup =
        |name: &str| node.names.lookup(&crate::repair::tests::Node::entry(1, name)).unwrap();
    assert_eq!((lookup("hot").links, lookup("twice").links), (2, 2));
    assert_eq!(lookup("new").attributes.mode, 0o751);
    let target = lookup("users too").attributes.target;
    assert!(target.ends_with(b"hdd/cold"), "{target:?}");
    assert!(node.names.parent(InodeNumber(lookup("new").inode.0)).unwrap() == ROOT);
}

#[test]
fn a_tier_of_one_node_is_adopted_and_no_byte_is_copied() {
    let world = old();
    let inode = |path: &str| fs::metadata(world.at(path)).unwrap().ino();
    let [hot, cold, moved] = ["n1/ssd/hot", "shared/cold", "shared/was/deep/moved"].map(inode);
    let dry = run(&world.at("n1"), "n1", false).unwrap();
    assert!(world.at("n1/ssd/cold").is_symlink(), "nothing was changed");
    let adopted = run(&world.at("n1"), "n1", true).unwrap();
    assert_eq!(adopted, dry);
    assert_eq!((adopted.directories, adopted.ssd_files, adopted.disk_files), (3, 2, 5));
    assert!(adopted.told.is_empty(), "{adopted:?}");
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
    check(&world);
    let now = ["n1/ssd/hot", "shared/cold", "shared/new/deep/moved"].map(inode);
    assert_eq!(now, [hot, cold, moved]);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    assert!(run(&world.at("n1"), "n1", true).is_err(), "it is shared by now");
}

#[test]
fn an_adoption_that_dies_at_any_step_is_completed() {
    for steps in 0.. {
        let world = old();
        let death = Arc::new(Death::default());
        death.end_after(steps);
        let died = run_watched(&world.at("n1"), "n1", true, Some(death)).is_err();
        if died {
            let adopted = run(&world.at("n1"), "n1", true).unwrap();
            assert!(adopted.told.is_empty(), "step {steps}: {adopted:?}");
        }
        world.repair(true);
        check(&world);
        if !died {
            break;
        }
    }
}

#[test]
fn a_tier_that_is_not_in_order_is_refused_with_the_remedy() {
    let world = old();
    symlink("ssd/x", world.at("n1/ssd/.halocline/intents/1")).unwrap();
    let error = run(&world.at("n1"), "n1", true).unwrap_err().to_string();
    assert!(error.contains("not completed") && error.contains("mount it once"), "{error}");
    let fresh = World::unformatted();
    let error = run(&fresh.at("n1"), "n1", true).unwrap_err().to_string();
    assert!(error.contains("never mounted as a tier"), "{error}");
}

/// Regression: it got an empty tree, and could be neither adopted nor mounted alone any more: the mount's message named
/// the repair without `--adopt`.
#[test]
fn a_tier_of_one_node_is_not_rebuilt_without_its_ssd() {
    let world = old();
    let repair = |is: bool| {
        let refused = crate::repair::run(&world.at("n1"), None, &world.store, is).unwrap_err();
        refused.to_string()
    };
    for is in [false, true] {
        let refused = repair(is);
        assert!(refused.contains("--adopt NODE --repair"), "{refused}");
    }
    assert!(!world.at("n1/ssd/.halocline/node").exists(), "nothing was begun");
    run(&world.at("n1"), "n1", true).unwrap();
    world.repair(true);
    check(&world);
    // What is on the SSD of nobody is not forgotten, either.
    let ssd = world.at("n1/ssd");
    fs::rename(ssd.join(".halocline/node"), world.at("kept")).unwrap();
    fs::rename(ssd.join(".halocline").join(LABEL), world.at("label")).unwrap();
    assert!(repair(true).contains("on the SSD of no node"));
    fs::write(ssd.join(".halocline/node"), "n1\nanother\n").unwrap();
    assert!(repair(true).contains("another tier's node"));
    fs::rename(world.at("kept"), ssd.join(".halocline/node")).unwrap();
    world.repair(true);
    check(&world);
}

/// Regression: it was refused. The store has no room for the paths of such files on an SSD.
#[test]
fn directories_deeper_than_paths_are_long_are_adopted() {
    let world = old();
    let step = "x".repeat(250);
    let mut cursor = TreeCursor::new(File::open(world.at("n1/ssd")).unwrap()).unwrap();
    for _ in 0..20 {
        mkdirat(cursor.directory(), step.as_str(), Mode::RWXU).unwrap();
        cursor.enter(step.as_ref()).unwrap();
    }
    let at = cursor.directory();
    for name in ["f", "g"] {
        let made = openat(at, name, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
        rustix::io::write(made, name.as_bytes()).unwrap();
    }
    linkat(at, "g", at, "h", AtFlags::empty()).unwrap();
    let adopted = run(&world.at("n1"), "n1", true).unwrap();
    assert!(adopted.told.is_empty(), "{adopted:?}");
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
    for _ in 0..2 {
        let tree = world.tree();
        let deep = vec![format!("/{step}"); 20].concat();
        for (name, text) in [("f", "f"), ("g", "g"), ("h", "g")] {
            assert_eq!(tree[&format!("{deep}/{name}")], text);
        }
        assert_eq!(tree.len(), 15 + 23);
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
        world.forget();
        world.repair(true);
    }
}
