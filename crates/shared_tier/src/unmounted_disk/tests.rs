//! A shared disk that is away, or lost, while the SSDs are there.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::repair::tests::World;
use crate::repair::{Report, run};

fn world() -> World {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let a = one.mkdir(1, "a").unwrap();
    one.create(a, "f", "of n1").unwrap();
    two.create(a, "g", "of n2").unwrap();
    one.create_on_shared(a, "h", "on the shared disk").unwrap();
    world
}

/// Has another, empty disk in place of the shared one; its store has none of the names.
fn replace_disk(world: &World) {
    fs::rename(world.at("shared"), world.at("real")).unwrap();
    fs::create_dir(world.at("shared")).unwrap();
    world.forget();
}

fn refused(world: &World) -> String {
    refuse_unmounted(&world.at("n1")).unwrap_err().to_string()
}

/// Whether all files of the SSDs have their names, and nothing is wrong.
fn has_ssds(world: &World) {
    let tree = world.tree();
    let found = ["/a/f", "/a/g"].map(|path| tree.get(path).map(String::as_str));
    assert_eq!(found, [Some("of n1"), Some("of n2")], "{tree:?}");
    let report = world.repair(false);
    assert!(report.is_clean(), "{report:?}");
}

/// Regression: a mount said that the SSD is another tier's node, and left its own directories in the mount point.
#[test]
fn a_disk_that_is_not_mounted_is_asked_for_and_nothing_is_left_in_its_place() {
    let world = world();
    refuse_unmounted(&world.at("n1")).unwrap();
    replace_disk(&world);
    let told = refused(&world);
    assert!(
        told.contains("hdd: it is empty") && told.contains("is the shared disk mounted?"),
        "{told}"
    );
    assert!(told.contains("--shared-disk-lost"), "{told}");
    assert_eq!(fs::read_dir(world.at("shared")).unwrap().count(), 0);
    // As an earlier version left it.
    let marks = world.at("shared/.halocline");
    fs::create_dir(&marks).unwrap();
    assert!(refused(&world).contains("it is empty"));
    fs::write(marks.join("tier"), "00112233445566778899aabbccddeeff\n").unwrap();
    assert!(refused(&world).contains("the id of another tier, and no files"));
    fs::create_dir(marks.join("nodes")).unwrap();
    fs::write(marks.join("nodes/n7"), "").unwrap();
    refuse_unmounted(&world.at("n1")).unwrap();
    // One that has lost only its marks.
    fs::remove_dir_all(world.at("shared")).unwrap();
    fs::rename(world.at("real"), world.at("shared")).unwrap();
    fs::rename(&marks, world.at("marks")).unwrap();
    let told = refused(&world);
    assert!(told.contains("no id of a tier") && told.contains("/hdd/a)"), "{told}");
    fs::rename(world.at("marks"), &marks).unwrap();
    refuse_unmounted(&world.at("n1")).unwrap();
}

#[test]
fn an_ssd_of_no_node_needs_no_shared_disk_with_an_id() {
    let world = World::unformatted();
    refuse_unmounted(&world.at("n1")).unwrap();
    let refused = replace_lost(&world.at("n1")).unwrap_err().to_string();
    assert!(refused.contains("the SSD of no node"), "{refused}");
}

/// Regression: no SSD was read, because the list of nodes is on the shared disk. Once the nodes had mounted, all their files were
/// set aside.
#[test]
fn names_are_built_again_from_all_ssds_if_the_shared_disk_is_lost() {
    let world = world();
    replace_disk(&world);
    for _ in 0..2 {
        replace_lost(&world.at("n1")).unwrap();
    }
    refuse_unmounted(&world.at("n1")).unwrap();
    let report = world.repair(true);
    assert_eq!((report.is_rebuilt, report.read), (true, vec!["n1".to_owned(), "n2".to_owned()]));
    has_ssds(&world);
    // From another machine that reaches neither by its pattern.
    let nodes = fs::read_dir(world.at("shared/.halocline/nodes")).unwrap().count();
    assert_eq!(nodes, 2);
}

/// Regression: as above, of a node that the repair did not reach.
#[test]
fn an_ssd_that_a_rebuild_could_not_know_gets_its_names_once_its_node_has_mounted() {
    for mounts in [false, true] {
        let world = world();
        replace_disk(&world);
        replace_lost(&world.at("n1")).unwrap();
        let alone = || Some(world.alone());
        let report = run(&world.at("n1"), None, &world.store, alone().as_ref()).unwrap();
        assert_eq!((report.is_rebuilt, report.named[1]), (true, 1), "{report:?}");
        if mounts {
            drop(world.node_until("n2", 3, i64::MAX));
        }
        let Report { named, set_aside, .. } = world.repair(false);
        assert_eq!((named[1], set_aside), (1, vec![]));
        world.repair(true);
        has_ssds(&world);
    }
}

/// A new node's files are no others' that wait for their names.
#[test]
fn what_a_new_node_has_left_without_a_name_is_set_aside() {
    let world = world();
    fs::create_dir_all(world.at("n3/ssd")).unwrap();
    symlink("../shared", world.at("n3/hdd")).unwrap();
    assert!(world.node_until("n3", 3, 3).create(1, "unnamed", "text").is_err());
    let report = world.repair(true);
    assert_eq!((report.named, report.set_aside.len()), ([0; 3], 1), "{report:?}");
}

/// Regression: nothing looked for them there, and the files were lost for every mount.
#[test]
fn what_was_set_aside_while_the_shared_disk_was_away_is_put_back_with_it() {
    let world = world();
    let before = world.tree();
    let aside = world.at("n1/ssd/.halocline/leftovers");
    fs::create_dir_all(&aside).unwrap();
    fs::rename(world.at("n1/ssd/a/f"), aside.join("leftover-3-1")).unwrap();
    fs::remove_dir(world.at("n1/ssd/a")).unwrap();
    // Nodes of these tests give files other times in the store.
    let found = run(&world.at("n1"), Some(&world.peers()), &world.store, None).unwrap();
    assert!(
        found.lost[0].contains("leftover-3-1 has its number, but not its size, time"),
        "{found:?}"
    );
    let file = fs::File::options().write(true).open(aside.join("leftover-3-1")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    for repairs in [false, true] {
        let alone = repairs.then(|| world.alone());
        let alone = alone.as_ref();
        let report = run(&world.at("n1"), Some(&world.peers()), &world.store, alone).unwrap();
        let told = report.attributes.iter().filter(|line| line.contains("leftover-3-1"));
        assert_eq!((told.count(), report.lost), (1, vec![]));
    }
    assert_eq!(world.tree(), before);
    let report = world.repair(false);
    assert!(report.is_clean(), "{report:?}");
}

/// Regression: it was "not reached: No such file or directory", although `ls` shows it.
#[test]
fn a_directory_that_is_not_the_ssd_is_not_called_unreached() {
    let world = world();
    fs::rename(world.at("n2/ssd"), world.at("away")).unwrap();
    fs::create_dir(world.at("n2/ssd")).unwrap();
    let told = world.repair(false).missing;
    assert!(told[0].1.contains("is there, but is not the SSD of node n2"), "{told:?}");
    fs::remove_dir(world.at("n2/ssd")).unwrap();
    let told = world.repair(false).missing;
    assert!(told[0].1.contains("is not reached at"), "{told:?}");
}

#[test]
fn a_new_tier_beside_ssds_of_another_and_a_wrong_pattern_are_noted() {
    let world = world();
    let peers = world.peers();
    assert_eq!(note_of_peers(&world.at("n1"), &peers), None);
    let wrong = world.at("n1/{node}").display().to_string();
    assert!(note_of_peers(&world.at("n1"), &wrong).is_some_and(|note| note.contains("/n1/n1")));
    assert_eq!(note_of_new_tier(&world.at("n1"), &peers), None);
    for disk in ["n3/ssd", "n3/hdd"] {
        fs::create_dir_all(world.at(disk)).unwrap();
    }
    let note = note_of_new_tier(&world.at("n3"), &peers).unwrap();
    assert!(note.contains("(n1, n2)"), "{note}");
    assert_eq!(note_of_new_tier(&world.at("n3"), &wrong), None);
}

/// Regression: the mount point of an SSD that was not mounted became a new node without a word.
#[test]
fn an_ssd_of_no_node_in_a_tier_with_nodes_is_noted() {
    let world = world();
    assert_eq!(note_of_new_node(&world.at("n1")), None);
    fs::rename(world.at("n1/ssd"), world.at("away")).unwrap();
    fs::create_dir(world.at("n1/ssd")).unwrap();
    let noted = note_of_new_node(&world.at("n1")).unwrap();
    assert!(noted.contains("nodes already (n1, n2)"), "{noted}");
    fs::remove_dir_all(world.at("shared/.halocline")).unwrap();
    assert_eq!(note_of_new_node(&world.at("n1")), None);
}
