//! An earlier state of an SSD is put back, while the store is sound: what was copied since is newer than what is on it.

use std::process::Command;

use super::lost::{set_aside, set_time};
use super::*;

mod attributes;
mod shared_disk;

/// Keeps a copy of the SSD of `n1`, with all attributes.
fn back_up(world: &World) {
    copy_tree(world, "n1/ssd", "backup");
}

/// Puts it back.
fn put_back(world: &World) {
    fs::remove_dir_all(world.at("n1/ssd")).unwrap();
    copy_tree(world, "backup", "n1/ssd");
}

fn copy_tree(world: &World, from: &str, to: &str) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(world.at(from)).arg(world.at(to));
    assert!(copy.status().unwrap().success());
}

/// Whether a mount would refuse to read a file.
fn is_refused(node: &Node, at: &EntryName) -> bool {
    let found = node.names.lookup(at).unwrap();
    let of = &found.attributes;
    let opened =
        node.places.open_file(of.location.as_ref().unwrap(), found.inode.0, OFlags::RDONLY);
    let opened = File::from(opened.unwrap());
    Copies::of(&node.places).refuse_older(&opened, of, found.inode.0).is_err()
}

/// Regression: the old bytes were read, moved in place of the newer copy, and taken for the file by a repair.
#[test]
fn i13_a_newer_copy_stands_for_what_an_ssd_that_was_put_back_has_in_its_place() {
    for was_copied in [true, false] {
        let (world, at) = world();
        let node = world.node("n1");
        set_time(world.at("n1/ssd/a/f"), 900, 5);
        if was_copied {
            archive(&node, &at).unwrap();
        }
        back_up(&world);
        write(&node, 2, &at).unwrap();
        archive(&node, &at).unwrap();
        assert!(!is_refused(&node, &at) && world.repair(false).is_clean());
        drop(node);
        put_back(&world);
        let node = world.node("n1");
        assert!(is_refused(&node, &at) && write(&node, 3, &at).is_err());
        let other = world.node_until("n2", 5, i64::MAX);
        let moved = [(&node, 1, SHARED), (&other, 5, SHARED), (&other, 5, SSD)]
            .map(|(node, session, tier)| demote(node, session, &at, tier));
        assert!(moved.iter().all(Result::is_err), "{moved:?}");
        drop((node, other));
        for repairs in [false, true] {
            let report = world.repair(repairs);
            assert_eq!((report.set_aside.len(), report.lost.len()), (1, 1), "{report:?}");
            let remedy = "`halocline cluster drain n1`";
            assert!(report.lost[0].contains(remedy), "{report:?}");
        }
        assert_eq!((set_aside(&world), finals(&world).len()), (vec![TEXT.to_owned()], 1));
        let node = world.node("n1");
        assert_eq!(read(&node, &at), None);
        assert_eq!(demote(&node, 1, &at, SHARED).unwrap(), Moved::Done(0));
        assert_eq!(read(&node, &at).as_deref(), Some(WRITTEN));
        let report = world.repair(false);
        assert!(report.is_clean(), "{report:?}");
    }
}

/// Somebody wrote what was put back, past the mounts: nobody can tell which is newer, so both are kept.
#[test]
fn i13_both_are_kept_if_the_times_contradict_the_numbers() {
    let (world, at) = world();
    let node = world.node("n1");
    archive(&node, &at).unwrap();
    back_up(&world);
    write(&node, 2, &at).unwrap();
    archive(&node, &at).unwrap();
    drop(node);
    put_back(&world);
    set_time(world.at("n1/ssd/a/f"), 1 << 33, 0);
    assert!(is_refused(&world.node("n1"), &at));
    let report = world.repair(true);
    assert_eq!(report.set_aside.len(), 1, "{report:?}");
    assert_eq!(read(&world.node("n1"), &at).as_deref(), Some(TEXT));
    assert_eq!(set_aside(&world), [WRITTEN]);
    assert!(!is_refused(&world.node("n1"), &at));
}

/// Regression: files that were renamed since could not be read, and no repair put that right.
#[test]
fn files_that_were_renamed_since_an_ssd_was_backed_up_are_found_by_their_numbers() {
    for has_copy in [true, false] {
        let (world, at) = world();
        let node = world.node("n1");
        if has_copy {
            archive(&node, &at).unwrap();
        }
        let a = at.directory.0;
        let linked = node.create(a, "first", "linked").unwrap();
        node.link((a, "first"), (a, "second")).unwrap();
        back_up(&world);
        let b = node.mkdir(1, "b").unwrap();
        node.rename((a, "f"), (b, "g")).unwrap();
        node.rename((a, "second"), (b, "third")).unwrap();
        node.unlink(a, "first").unwrap();
        // Another one has the path now; it is lost.
        node.create(a, "f", "another").unwrap();
        drop(node);
        put_back(&world);
        let (at, third) = (Node::entry(b, "g"), Node::entry(b, "third"));
        let node = world.node("n1");
        assert_eq!(read(&node, &at), None);
        drop(node);
        for repairs in [false, true] {
            let report = repair_by_n2(&world, repairs);
            assert_eq!(report.lost.len(), 1, "{report:?}");
            let moved =
                report.attributes.iter().filter(|line| line.contains("its bytes should be"));
            assert_eq!(moved.count(), 2, "{report:?}");
        }
        let node = world.node("n1");
        assert_eq!(read(&node, &at).as_deref(), Some(TEXT));
        let found = node.names.lookup(&third).unwrap();
        assert_eq!((found.inode.0, read(&node, &third).as_deref()), (linked, Some("linked")));
        drop(node);
        let report = world.repair(false);
        assert_eq!(report.lost.len(), 1, "{report:?}");
        assert!(report.relisted.is_empty() && report.told.is_empty(), "{report:?}");
        // The disks know it, too.
        world.forget();
        world.repair(true);
        let tree = world.tree();
        assert_eq!(tree.get("/b/g").map(String::as_str), Some(TEXT), "{tree:?}");
        assert_eq!(tree.get("/b/third").map(String::as_str), Some("linked"), "{tree:?}");
    }
}
