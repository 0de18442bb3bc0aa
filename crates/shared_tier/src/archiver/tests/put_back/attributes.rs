//! Owners, modes and attributes that were changed since the SSD was backed up, and what was removed since.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;

use halocline_vfs::SetAttr;

use super::*;

const USERS: &str = "user.of a program";
const ALICE: u32 = 1234;
const BOB: u32 = 4321;

/// Mode, owner, and the attribute of a program.
pub(super) type Known = (u32, u32, Option<Vec<u8>>);

/// Changes attributes as a mount does.
pub(super) fn change(node: &Node, at: &EntryName, to: &Known) {
    let found = node.names.lookup(at).unwrap();
    take_away(&node.places, &found.attributes, found.inode).unwrap();
    let (place, number) = (found.attributes.location.unwrap(), found.inode.0);
    let (mode, uid, xattr) = to.clone();
    let set = SetAttr { mode: Some(mode), uid: Some(uid), ..SetAttr::default() };
    node.places.set_attributes(&place, number, &set).unwrap();
    if let Some(value) = &xattr {
        node.places.set_xattr(&place, number, OsStr::new(USERS), value, 0).unwrap();
    }
    let noted = node.names.attributes().update_of((at, found.inode), |of| {
        (of.mode, of.uid) = (mode, uid);
        of.xattrs.extend(xattr.clone().map(|value| (USERS.as_bytes().to_vec(), value)));
        Ok(())
    });
    noted.unwrap();
}

pub(super) fn known(node: &Node, at: &EntryName) -> Known {
    let of = node.names.lookup(at).unwrap().attributes;
    (of.mode, of.uid, of.xattrs.get(USERS.as_bytes()).cloned())
}

/// Mode and owner on a disk.
pub(super) fn on_disk(world: &World, path: &str) -> (u32, u32) {
    let is = fs::metadata(world.at(path)).unwrap();
    (is.mode() & 0o7777, is.uid())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Regression: the old version, with its owner and its mode, became the file again, and the newer copy of another owner went to the
/// leftovers; one that had only got another mode or attribute got the old ones, and its copy was removed.
#[test]
fn i13_i15_a_newer_copy_stands_for_a_file_with_its_owner_mode_and_attributes() {
    if !is_root() {
        halocline_testkit::skipping::skip("only root gives files to others");
        return;
    }
    let value = || Some(b"new".to_vec());
    let changes = [
        (true, (0o640, BOB, None)),
        (true, (0o600, ALICE, value())),
        (false, (0o640, BOB, None)),
        (false, (0o600, ALICE, None)),
        (false, (0o644, ALICE, value())),
    ];
    for (case, (is_written, since)) in changes.iter().enumerate() {
        for (was_copied, forgets) in [(true, false), (false, false), (true, true), (false, true)] {
            let case = format!("case {case}, {was_copied}, {forgets}");
            let (world, at) = world();
            let node = world.node("n1");
            change(&node, &at, &(0o644, ALICE, Some(b"old".to_vec())));
            if was_copied {
                archive(&node, &at).unwrap();
            }
            back_up(&world);
            if *is_written {
                write(&node, 2, &at).unwrap();
            }
            change(&node, &at, since);
            archive(&node, &at).unwrap();
            let (newest, before) = (if *is_written { WRITTEN } else { TEXT }, known(&node, &at));
            drop(node);
            put_back(&world);
            if forgets {
                world.forget();
            }
            for repairs in [false, true] {
                let report = world.repair(repairs);
                assert!(!report.is_clean() && report.left_copies.is_empty(), "{case}: {report:?}");
            }
            assert_eq!(
                (set_aside(&world), finals(&world).len()),
                (vec![TEXT.to_owned()], 1),
                "{case}"
            );
            let node = world.node("n1");
            assert_eq!(read(&node, &at), None, "{case}");
            assert_eq!(demote(&node, 1, &at, SHARED).unwrap(), Moved::Done(0), "{case}");
            for forgets in [false, true] {
                if forgets {
                    world.forget();
                    world.repair(true);
                }
                let node = world.node("n1");
                assert_eq!(read(&node, &at).as_deref(), Some(newest), "{case}");
                assert_eq!(known(&node, &at), before, "{case}");
                let report = world.repair(false);
                assert!(report.is_clean(), "{case}: {report:?}");
            }
        }
    }
}

/// Regression: the mode that was narrowed since was wide again. Nobody knows which of both is newer.
#[test]
fn i15_without_a_copy_nobody_gets_what_the_store_or_the_ssd_refuses() {
    for (before, since) in [(0o644, 0o600), (0o600, 0o644), (0o640, 0o604)] {
        let (world, at) = world();
        let node = world.node("n1");
        let uid = node.names.lookup(&at).unwrap().attributes.uid;
        change(&node, &at, &(before, uid, Some(b"old".to_vec())));
        back_up(&world);
        change(&node, &at, &(since, uid, Some(b"new".to_vec())));
        drop(node);
        put_back(&world);
        let lines = crate::repair::run(&world.at("n1"), Some(&world.peers()), &world.store, None);
        let told = format!("mode {:o}", before & since);
        let lines = lines.unwrap().attributes;
        assert!(lines.iter().any(|line| line.contains(&told)), "{lines:?}");
        world.repair(true);
        for forgets in [false, true] {
            if forgets {
                world.forget();
                world.repair(true);
            }
            let node = world.node("n1");
            assert_eq!(known(&node, &at), (0o600, uid, Some(b"old".to_vec())), "{before:o}");
            assert_eq!(on_disk(&world, "n1/ssd/a/f"), (0o600, uid));
            assert_eq!(read(&node, &at).as_deref(), Some(TEXT));
        }
    }
}

/// A disk that was restored with its times is older than the store: it gets what the store has. Regression: it kept its wider
/// mode, which was that of the file after a loss of the store.
#[test]
fn i15_a_disk_that_is_older_by_its_times_gets_the_attributes_of_the_store() {
    let (world, at) = world();
    let node = world.node("n1");
    let found = node.names.lookup(&at).unwrap();
    let later = fs::metadata(world.at("n1/ssd/a/f")).unwrap().ctime() + 7200;
    let noted = node.names.attributes().update_of((&at, found.inode), |of| {
        (of.mode, of.ctime_ns) = (0o600, later * 1_000_000_000);
        Ok(())
    });
    noted.unwrap();
    drop(node);
    world.repair(true);
    assert_eq!(on_disk(&world, "n1/ssd/a/f").0, 0o600);
    world.forget();
    world.repair(true);
    assert_eq!(known(&world.node("n1"), &at).0, 0o600);
}

/// Regression: a directory that was removed since came back, empty.
#[test]
fn what_was_removed_since_an_ssd_was_backed_up_is_gone_while_the_store_knows_it() {
    for forgets in [false, true] {
        let (world, at) = world();
        let node = world.node("n1");
        let a = at.directory.0;
        let below = node.mkdir(a, "below").unwrap();
        node.create(below, "g", "below").unwrap();
        back_up(&world);
        node.unlink(below, "g").unwrap();
        node.unlink(a, "f").unwrap();
        for (above, called) in [(a, "below"), (1, "a")] {
            node.names.remove_directory(&Node::entry(above, called)).unwrap();
        }
        fs::remove_dir_all(world.at("shared/a")).unwrap();
        drop(node);
        put_back(&world);
        if forgets {
            // Nothing knows it any more.
            world.forget();
            world.repair(true);
            assert_eq!(world.tree().get("/a/below/g").map(String::as_str), Some("below"));
            continue;
        }
        let report = world.repair(true);
        assert_eq!((report.named, report.set_aside.len()), ([0, 0, 0], 2), "{report:?}");
        assert!(world.tree().is_empty(), "{:?}", world.tree());
        let mut aside = set_aside(&world);
        aside.sort();
        assert_eq!(aside, [TEXT, "below"]);
        assert!(!world.at("n1/ssd/a").exists() && world.repair(false).is_clean());
    }
}

/// Directories on SSDs say nothing of modes: those of the shared disk stay.
#[test]
fn i15_directories_keep_the_modes_that_they_got_since() {
    for forgets in [false, true] {
        let (world, at) = world();
        back_up(&world);
        let node = world.node("n1");
        let private = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        node.places.set_directory_attributes(at.directory.0, &private).unwrap();
        let noted = node.names.attributes().update_directory(at.directory, |of| {
            of.mode = 0o700;
            Ok(())
        });
        noted.unwrap();
        drop(node);
        put_back(&world);
        if forgets {
            world.forget();
        }
        world.repair(true);
        assert_eq!(on_disk(&world, "shared/a").0, 0o700);
        let of = world.node("n1").names.directory(at.directory).unwrap().attributes;
        assert_eq!(of.mode, 0o700);
    }
}

/// Regression: the old version had a name again, `f~NUMBER`, with its old mode.
#[test]
fn i15_a_file_that_left_the_ssd_since_has_no_old_version_with_a_name() {
    let own = rustix::process::geteuid().as_raw();
    let owners = if is_root() { [own, BOB] } else { [own; 2] };
    for (owner, was_copied) in owners.iter().flat_map(|owner| [(*owner, false), (*owner, true)]) {
        let (world, at) = world();
        let node = world.node("n1");
        if was_copied {
            archive(&node, &at).unwrap();
        }
        back_up(&world);
        write(&node, 2, &at).unwrap();
        change(&node, &at, &(0o600, owner, None));
        demote(&node, 1, &at, SHARED).unwrap();
        drop(node);
        put_back(&world);
        let report = world.repair(true);
        let case = format!("{owner}, {was_copied}: {report:?}");
        assert!(report.conflicts.is_empty() && report.told.is_empty(), "{case}");
        let node = world.node("n1");
        assert_eq!(read(&node, &at).as_deref(), Some(WRITTEN), "{case}");
        assert_eq!(known(&node, &at), (0o600, owner, None), "{case}");
        assert_eq!(world.tree().len(), 2, "{case}: {:?}", world.tree());
        // The file's own copies go, as always; others are kept.
        let kept = usize::from(!(was_copied && owner == own));
        assert_eq!(set_aside(&world), vec![TEXT.to_owned(); kept], "{case}");
        assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
    }
}
