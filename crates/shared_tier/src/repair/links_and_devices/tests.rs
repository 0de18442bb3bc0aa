//! Links whose changes the shared disk did not follow, because their nodes died.

use std::fs;
use std::path::Path;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Flags;

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
