//! Migrators that die, and files that are opened while they are moved.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::OFlags;

use super::*;
use crate::places::SSD;
use crate::places::own_xattrs::is_too_many;
use crate::repair::tests::{Node, World};

const TEXT: &str = "all of these bytes";

fn go(node: &Node, session: u64, at: &EntryName, tier: u8) -> Result<Moved> {
    let (names, places) = (&*node.names, &node.places);
    let migrator = Migrator {
        names,
        places,
        directories: &node.directories,
        session: Session(session),
        clock: &Clock::MACHINE,
    };
    let Ok(found) = node.names.lookup(at) else { return Ok(Moved::Gone) };
    // Only session 2 is over.
    let is_over = |session: Session| session == Session(2);
    migrator.move_file(at, found.inode, tier, &is_over, &mut |_| ControlFlow::Continue(()))
}

/// A file of `n1` in a directory.
fn world() -> (World, EntryName) {
    let world = World::new();
    let node = world.node("n1");
    let a = node.mkdir(1, "a").unwrap();
    node.create(a, "f", TEXT).unwrap();
    node.create(a, "other", "another").unwrap();
    (world, Node::entry(a, "f"))
}

#[test]
fn a_file_goes_down_and_up_and_to_another_node_with_everything_that_it_has() {
    let (world, at) = world();
    let (one, two) = (world.node("n1"), world.node_until("n2", 3, i64::MAX));
    one.link((at.directory.0, "f"), (1, "second")).unwrap();
    let found = one.names.lookup(&at).unwrap();
    let place = found.attributes.location.unwrap();
    let user = std::ffi::OsStr::new("user.a");
    one.places.set_xattr(&place, found.inode.0, user, b"value", 0).unwrap();
    let before = (world.tree(), one.places.stat(&place, found.inode.0).unwrap().raw);
    for (node, session, tier) in
        [(&one, 1, SHARED), (&two, 3, SSD), (&one, 1, SSD), (&two, 3, SHARED)]
    {
        let moved = go(node, session, &at, tier).unwrap();
        assert_eq!(moved, Moved::Done(TEXT.len() as u64));
        assert_eq!(go(node, session, &at, tier).unwrap(), Moved::Already);
        assert_eq!(world.tree(), before.0);
        let place = two.names.lookup(&at).unwrap().attributes.location.unwrap();
        let stat = two.places.stat(&place, found.inode.0).unwrap().raw;
        assert_eq!(
            (stat.st_mtime, stat.st_mtime_nsec),
            (before.1.st_mtime, before.1.st_mtime_nsec)
        );
        assert_eq!((stat.st_mode, stat.st_uid), (before.1.st_mode, before.1.st_uid));
        let report = world.repair(false);
        assert!(report.is_clean(), "{report:?}");
        // The list of its names went with it.
        world.forget();
        world.repair(true);
        assert_eq!(world.tree(), before.0);
        let again = two.names.lookup(&Node::entry(1, "second")).unwrap();
        assert_eq!((again.links, again.inode), (2, found.inode));
        assert_eq!(
            again.attributes.xattrs.get(&b"user.a"[..]).map(Vec::as_slice),
            Some(&b"value"[..])
        );
    }
}

/// Regression: it was said that the disk had no room, and the files of a user who made some of these first kept all others
/// on the SSD.
#[test]
fn a_file_with_all_the_attributes_that_it_can_have_stays_and_the_reason_is_told() {
    let (world, at) = world();
    let node = world.node("n1");
    let found = node.names.lookup(&at).unwrap();
    let place = found.attributes.location.unwrap();
    let set = |name: &str, bytes| {
        let name = std::ffi::OsString::from(format!("user.{name}"));
        node.places.set_xattr(&place, found.inode.0, &name, &vec![b'v'; bytes], 0)
    };
    let mut all = Vec::new();
    for bytes in [400, 40, 1] {
        for number in 0..100 {
            let name = format!("{bytes}-{number}");
            if set(&name, bytes).is_err() {
                break;
            }
            all.push(name);
        }
    }
    assert!(all.len() < 300, "a file system that keeps this many attributes tests nothing");
    let error = go(&node, 1, &at, SHARED).unwrap_err();
    assert!(is_too_many(&error) && !error.is_full(), "{error:?}");
    assert!(error.to_string().contains("setfattr -x"), "{error}");
    let report = world.repair(false);
    assert!(report.is_clean(), "{report:?}");
    for name in &all[..2] {
        let name = std::ffi::OsString::from(format!("user.{name}"));
        node.places.remove_xattr(&place, found.inode.0, &name).unwrap();
    }
    assert_eq!(go(&node, 1, &at, SHARED).unwrap(), Moved::Done(TEXT.len() as u64));
}

/// Regression: the place of its old copy did not fit into the new one's attribute, and it was said that the disk had no
/// room.
#[test]
fn a_file_with_a_path_as_long_as_can_be_is_moved() {
    let world = World::new();
    let node = world.node("n1");
    let mut directory = 1;
    for letters in [[202; 18].as_slice(), &[180]].concat() {
        directory = node.mkdir(directory, &"d".repeat(letters)).unwrap();
    }
    let name = "f".repeat(250);
    let at = Node::entry(directory, &name);
    node.create(directory, &name, TEXT).unwrap();
    let before = world.tree();
    for tier in [SHARED, SSD, SHARED] {
        assert_eq!(go(&node, 1, &at, tier).unwrap(), Moved::Done(TEXT.len() as u64));
        let report = world.repair(false);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(world.tree(), before);
    }
}

#[test]
fn a_move_that_dies_at_any_step_loses_nothing() {
    for (tier, forgets) in [(SHARED, false), (SHARED, true), (SSD, false), (SSD, true)] {
        for steps in 0.. {
            let (world, at) = world();
            if tier == SSD {
                assert!(matches!(go(&world.node("n1"), 1, &at, SHARED), Ok(Moved::Done(_))));
            }
            let before = world.tree();
            let moved = go(&world.node_until("n1", 2, steps), 2, &at, tier);
            if forgets {
                world.forget();
            }
            assert_eq!(if forgets { before.clone() } else { world.tree() }, before);
            let report = world.repair(true);
            let case = format!("to {tier}, step {steps}, {forgets}, {moved:?}: {report:?}");
            assert_eq!(world.tree(), before, "{case}");
            assert!(report.told.is_empty() && report.set_aside.is_empty(), "{case}");
            assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
            // Nobody is in the way of the next one.
            let again = go(&world.node("n1"), 1, &at, tier).unwrap();
            assert!(matches!(again, Moved::Done(_) | Moved::Already), "{case}: {again:?}");
            assert_eq!(world.tree(), before, "{case}");
            if matches!(moved, Ok(Moved::Done(_))) && steps > 60 {
                break;
            }
        }
    }
}

/// Regression: the copy that the store did not know stayed, and was a file again when the names were rebuilt from the
/// disks.
#[test]
fn a_file_that_is_removed_after_the_node_that_moved_it_died_does_not_come_back() {
    let cases = [(SHARED, false), (SHARED, true), (SSD, false), (SSD, true)];
    for (tier, is_written) in cases {
        for steps in 0.. {
            let (world, at) = world();
            if tier == SSD {
                assert!(matches!(go(&world.node("n1"), 1, &at, SHARED), Ok(Moved::Done(_))));
            }
            let moved = go(&world.node_until("n1", 2, steps), 2, &at, tier);
            let case = format!("to {tier}, step {steps}, {is_written}, {moved:?}");
            let other = world.node_until("n2", 3, i64::MAX);
            if is_written {
                let found = other.names.lookup(&at).unwrap();
                let place = found.attributes.location.unwrap();
                other.places.open_file(&place, found.inode.0, OFlags::WRONLY).unwrap();
            }
            other.unlink(at.directory.0, "f").unwrap();
            let removed = world.tree();
            assert!(!removed.contains_key("/a/f"), "{case}: {removed:?}");
            world.forget();
            let report = world.repair(true);
            assert_eq!(world.tree(), removed, "{case}: {report:?}");
            assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
            if matches!(moved, Ok(Moved::Done(_))) && steps > 60 {
                break;
            }
        }
    }
}

/// A copy that a check leaves in place is not taken for one that never arrived, even if the store forgets everything
/// later.
#[test]
fn the_copy_that_a_check_leaves_is_a_file_from_then_on() {
    for steps in 0..60 {
        let (world, at) = world();
        let before = world.tree();
        let _dies = go(&world.node_until("n1", 2, steps), 2, &at, SHARED);
        world.repair(true);
        world.forget();
        let report = world.repair(true);
        assert_eq!(world.tree(), before, "step {steps}: {report:?}");
    }
}

/// A program that opens a file during a move gets the copy that stays, at whichever step it comes; also if the
/// migrator dies then and the store forgets everything.
#[test]
fn what_is_written_while_a_file_is_moved_is_kept() {
    // How many steps the migrator still makes after the writer has come; `None`: all.
    let cases = [None, Some(0), Some(1)].map(|dies| [(dies, false), (dies, true)]);
    for (dies, repairs_first) in cases.into_iter().flatten() {
        for step in 0..40 {
            let (world, at) = world();
            let moving = world.node_until("n1", 2, i64::MAX);
            let writer = Arc::new(world.node_until("n2", 3, i64::MAX));
            let (count, entry) = (Arc::new(AtomicUsize::new(0)), at.clone());
            let (node, counted) = (Arc::clone(&writer), Arc::clone(&count));
            let write = move || {
                if counted.fetch_add(1, Ordering::SeqCst) != step {
                    return;
                }
                let found = node.names.lookup(&entry).unwrap();
                let noted =
                    node.names.attributes().update_of((&entry, found.inode), |attributes| {
                        attributes.note_open(Session(3), true);
                        Ok(())
                    });
                let place = noted.unwrap().attributes.location.unwrap();
                let fd = node.places.open_file(&place, found.inode.0, OFlags::WRONLY).unwrap();
                File::from(fd).write_all_at(b"ALL", 0).unwrap();
            };
            *moving.death.told.lock() = Some(Box::new(write));
            if let Some(more) = dies {
                moving.death.end_after(i64::try_from(step).unwrap() + more);
            }
            let done = go(&moving, 2, &at, SHARED);
            let case = format!("step {step}, {dies:?}, {repairs_first}: {done:?}");
            let is_written = count.load(Ordering::SeqCst) > step;
            let expected = if is_written { "ALL of these bytes" } else { TEXT };
            assert_eq!(world.tree()["/a/f"], expected, "{case}");
            // The repair removes the copy that is not the file; the disks alone may not tell which one that is.
            if repairs_first {
                world.repair(true);
            }
            assert_eq!(world.tree()["/a/f"], expected, "{case}");
            world.forget();
            let report = world.repair(true);
            assert_eq!(world.tree()["/a/f"], expected, "{case}: {report:?}");
            assert_eq!(world.tree().len(), 3, "{case}: {report:?}");
        }
    }
}

#[test]
fn a_file_that_is_open_stays_and_one_of_a_session_that_is_over_is_moved_with_its_size() {
    let (world, at) = world();
    let node = world.node("n1");
    let found = node.names.lookup(&at).unwrap();
    let open = |session, writes| {
        let noted = node.names.attributes().update_of((&at, found.inode), |attributes| {
            attributes.note_open(Session(session), writes);
            Ok(())
        });
        noted.unwrap().attributes.location.unwrap()
    };
    open(7, false);
    assert_eq!(go(&node, 1, &at, SHARED).unwrap(), Moved::Busy);
    node.names
        .attributes()
        .update_of((&at, found.inode), |attributes| {
            attributes.note_close(Session(7));
            Ok(())
        })
        .unwrap();
    // The kernel of a node whose session is over may still serve it, and only that node can tell.
    let noted = |by_kernel: bool| {
        let noted = node.names.attributes().update_of((&at, found.inode), |attributes| {
            attributes.note_open(Session(2), false);
            if by_kernel {
                attributes.note_kernel(Session(2));
            } else {
                attributes.note_close(Session(2));
            }
            Ok(())
        });
        noted.unwrap();
    };
    noted(true);
    assert_eq!(go(&node, 1, &at, SHARED).unwrap(), Moved::Busy);
    noted(false);
    let place = open(2, true);
    let fd = node.places.open_file(&place, found.inode.0, OFlags::WRONLY | OFlags::APPEND).unwrap();
    File::from(fd).write_all(b" and more").unwrap();
    assert!(matches!(go(&node, 1, &at, SHARED), Ok(Moved::Done(_))));
    let after = node.names.lookup(&at).unwrap().attributes;
    assert_eq!((after.size, after.opens.len()), (TEXT.len() as u64 + 9, 0));
    assert_eq!(world.tree()["/a/f"], format!("{TEXT} and more"));
}
