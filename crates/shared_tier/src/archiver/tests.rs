//! Copies whose makers die, files that are changed while they are copied, and SSDs and stores that are lost.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use halocline_model::token::Session;
use halocline_os::clock::Clock;
use rustix::fs::OFlags;

use super::*;
use crate::clean_copies::{check_taken, take_away};
use crate::moves::{Migrator, Moved};
use crate::places::SHARED;
use crate::repair::Report;
use crate::repair::tests::{Node, World};

const TEXT: &str = "all of these bytes";
const WRITTEN: &str = "ALL of these bytes";

/// Sessions 2 and 3 are over.
fn is_over(session: Session) -> bool {
    matches!(session, Session(2 | 3))
}

fn archive(node: &Node, at: &EntryName) -> Result<Archived> {
    let (names, places) = (&*node.names, &node.places);
    let Ok(found) = names.lookup(at) else { return Ok(Archived::Gone) };
    let archiver = Archiver { names, places };
    archiver.archive(at, found.inode, (&is_over, true), &mut |_| ControlFlow::Continue(()))
}

fn demote(node: &Node, session: u64, at: &EntryName, tier: u8) -> Result<Moved> {
    let (names, places, session) = (&*node.names, &node.places, Session(session));
    let migrator =
        Migrator { names, places, directories: &node.directories, session, clock: &Clock::MACHINE };
    let Ok(found) = names.lookup(at) else { return Ok(Moved::Gone) };
    migrator.move_file(at, found.inode, tier, &is_over, &mut |_| ControlFlow::Continue(()))
}

/// Opens a file for writing and changes it, as a mount does.
fn write(node: &Node, session: u64, at: &EntryName) -> Result<()> {
    loop {
        let found = node.names.lookup(at).map_err(of_names)?;
        let taken = take_away(&node.places, &found.attributes, found.inode)?;
        let noted = node.names.attributes().update_of((at, found.inode), |attributes| {
            check_taken(attributes, taken)?;
            attributes.note_open(Session(session), true);
            Ok(())
        });
        let noted = match noted {
            Err(Failure::Refused(Errno::STALE)) => continue,
            noted => noted.map_err(of_names)?,
        };
        let place = noted.attributes.location.unwrap();
        let opened = node.places.open_file(&place, found.inode.0, OFlags::WRONLY)?;
        return Ok(File::from(opened).write_all_at(b"ALL", 0)?);
    }
}

/// What is read of a file; `None` if it has no name, or its bytes are not reached.
fn read(node: &Node, at: &EntryName) -> Option<String> {
    let found = node.names.lookup(at).ok()?;
    let place = found.attributes.location?;
    let mut text = String::new();
    let opened = node.places.open_file(&place, found.inode.0, OFlags::RDONLY).ok()?;
    File::from(opened).read_to_string(&mut text).unwrap();
    Some(text)
}

/// A file of `n1` in a directory.
fn world() -> (World, EntryName) {
    let world = World::new();
    let node = world.node("n1");
    let a = node.mkdir(1, "a").unwrap();
    node.create(a, "f", TEXT).unwrap();
    (world, Node::entry(a, "f"))
}

/// Has the names checked by `n2`, from now on without the SSD of `n1`.
fn lose_ssd(world: &World) {
    fs::rename(world.at("n1/ssd"), world.at("n1/lost")).unwrap();
}

fn repair_by_n2(world: &World, repair: bool) -> Report {
    let (peers, alone) = (world.peers(), repair.then(|| world.alone()));
    crate::repair::run(&world.at("n2"), Some(&peers), &world.store, alone.as_ref()).unwrap()
}

/// The final names of copies.
fn finals(world: &World) -> Vec<CopyName> {
    let node = world.node_until("n2", 9, i64::MAX);
    let all = Copies::of(&node.places).all(None).unwrap();
    all.into_iter().filter(|copy| copy.is_final).collect()
}

#[test]
fn a_copy_is_made_once_and_becomes_the_file_with_no_byte_copied() {
    let (world, at) = world();
    let node = world.node("n1");
    let before = node.names.lookup(&at).unwrap();
    assert_eq!(archive(&node, &at).unwrap(), Archived::Done(TEXT.len() as u64));
    assert_eq!(archive(&node, &at).unwrap(), Archived::Already);
    let after = node.names.lookup(&at).unwrap();
    assert_eq!(Attributes { copy: None, ..after.attributes }, before.attributes);
    let report = world.repair(false);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(demote(&node, 1, &at, SHARED).unwrap(), Moved::Done(0));
    assert_eq!(read(&node, &at).as_deref(), Some(TEXT));
    let report = world.repair(false);
    assert!(report.is_clean() && finals(&world).is_empty(), "{report:?}");
    // On the way up and to another SSD, too, nothing is left.
    assert_eq!(demote(&node, 1, &at, SSD).unwrap(), Moved::Done(TEXT.len() as u64));
    assert_eq!(archive(&node, &at).unwrap(), Archived::Done(TEXT.len() as u64));
    let other = world.node_until("n2", 5, i64::MAX);
    assert_eq!(demote(&other, 5, &at, SSD).unwrap(), Moved::Done(TEXT.len() as u64));
    let report = world.repair(false);
    assert!(report.is_clean() && finals(&world).is_empty(), "{report:?}");
}

/// A copy that was changed past all mounts, or whose file was, is not taken for the file.
#[test]
fn a_copy_or_file_that_somebody_wrote_past_the_mounts_is_noticed() {
    for copy_is_changed in [true, false] {
        let (world, at) = world();
        let node = world.node("n1");
        archive(&node, &at).unwrap();
        let found = node.names.lookup(&at).unwrap();
        let copy = CopyName::of(&found.attributes, found.inode.0).unwrap();
        let path = if copy_is_changed {
            let name = format!("{}.{}", copy.inode, copy.number);
            world.at("shared/.halocline/copies/n1").join(name)
        } else {
            world.at("n1/ssd/a/f")
        };
        fs::write(path, WRITTEN).unwrap();
        assert_eq!(demote(&node, 1, &at, SHARED).unwrap(), Moved::Done(TEXT.len() as u64));
        let expected = if copy_is_changed { TEXT } else { WRITTEN };
        assert_eq!(read(&node, &at).as_deref(), Some(expected));
    }
}

#[test]
fn whoever_dies_while_he_copies_loses_nothing_and_no_copy_is_left_without_a_mark() {
    for forgets in [false, true] {
        let mut were_done = 0;
        for steps in 0.. {
            let (world, at) = world();
            let before = world.tree();
            let done = archive(&world.node_until("n1", 2, steps), &at);
            if forgets {
                world.forget();
            }
            let report = world.repair(true);
            let case = format!("step {steps}, {forgets}, {done:?}: {report:?}");
            assert_eq!(world.tree(), before, "{case}");
            assert!(report.told.is_empty() && report.set_aside.is_empty(), "{case}");
            assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
            let node = world.node("n1");
            let found = node.names.lookup(&at).unwrap();
            let marked = CopyName::of(&found.attributes, found.inode.0);
            assert!(finals(&world).iter().all(|copy| Some(copy) == marked.as_ref()), "{case}");
            // Nobody is in the way of the next one.
            let again = archive(&node, &at).unwrap();
            assert!(matches!(again, Archived::Done(_) | Archived::Already), "{case}: {again:?}");
            assert_eq!(finals(&world).len(), 1, "{case}");
            were_done += i32::from(matches!(done, Ok(Archived::Done(_))));
            if were_done == 3 {
                break;
            }
        }
    }
}

/// A writer comes at each step of a copy, and its maker or the writer dies then; after that the SSD is lost, or the store
/// and the SSD. What is there then is the newest content, or an error.
#[test]
fn i13_i14_what_is_written_while_a_file_is_copied_is_never_lost_for_its_copy() {
    let deaths = [None, Some(1), Some(2), Some(3)];
    let makers = [None, Some(0)];
    for (maker, writer_steps) in
        makers.into_iter().flat_map(|maker| deaths.map(|writer| (maker, writer)))
    {
        let (mut stood, mut steps) = (0, 0);
        for step in 0.. {
            let mut was_made = false;
            for forgets in [false, true] {
                let (world, at) = world();
                let making = world.node_until("n1", 2, i64::MAX);
                let node = world.node_until("n2", 3, writer_steps.unwrap_or(i64::MAX));
                let (count, written) =
                    (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
                let (entry, counted, noted) =
                    (at.clone(), Arc::clone(&count), Arc::clone(&written));
                *making.death.told.lock() = Some(Box::new(move || {
                    if counted.fetch_add(1, Ordering::SeqCst) == step
                        && write(&node, 3, &entry).is_ok()
                    {
                        noted.store(1, Ordering::SeqCst);
                    }
                }));
                if let Some(more) = maker {
                    making.death.end_after(i64::try_from(step).unwrap() + more);
                }
                let made = archive(&making, &at);
                drop(making);
                let is_written = written.load(Ordering::SeqCst) == 1;
                let newest = if is_written { WRITTEN } else { TEXT };
                let case = format!("step {step}, {maker:?}, {writer_steps:?}, {forgets}: {made:?}");
                assert_eq!(read(&world.node("n1"), &at).as_deref(), Some(newest), "{case}");
                lose_ssd(&world);
                if forgets {
                    world.forget();
                    repair_by_n2(&world, true);
                }
                let other = world.node_until("n2", 5, i64::MAX);
                let drained = demote(&other, 5, &at, SHARED);
                let now = read(&other, &at);
                let case = format!("{case}, {drained:?}, {now:?}");
                match drained {
                    Ok(Moved::Done(0)) => assert_eq!(now.as_deref(), Some(newest), "{case}"),
                    _ => assert_eq!(now, None, "{case}"),
                }
                stood += i32::from(now.is_some());
                was_made = count.load(Ordering::SeqCst) <= step;
                steps = step;
            }
            if was_made {
                break;
            }
        }
        assert!(steps > 10 && stood > 0, "{steps} steps, {stood} copies stood for the file");
    }
}

/// A writer that dies at any of its steps, and the next one, who finds what it left.
#[test]
fn i13_i14_a_copy_is_gone_before_the_first_byte_is_changed() {
    for steps in 0..12 {
        for forgets in [false, true] {
            let (world, at) = world();
            archive(&world.node("n1"), &at).unwrap();
            let dies = write(&world.node_until("n2", 3, steps), 3, &at);
            let is_written = write(&world.node_until("n2", 3, i64::MAX), 3, &at);
            let case = format!("step {steps}, {forgets}: {dies:?}, {is_written:?}");
            assert!(is_written.is_ok() && finals(&world).is_empty(), "{case}");
            assert_eq!(read(&world.node("n1"), &at).as_deref(), Some(WRITTEN), "{case}");
            lose_ssd(&world);
            if forgets {
                world.forget();
                repair_by_n2(&world, true);
            }
            let other = world.node_until("n2", 5, i64::MAX);
            assert!(!matches!(demote(&other, 5, &at, SHARED), Ok(Moved::Done(_))), "{case}");
            assert_eq!(read(&other, &at), None, "{case}");
        }
    }
}

#[test]
fn i13_a_lost_ssd_loses_nothing_that_has_a_copy_whoever_dies_while_it_is_given_up() {
    for forgets in [false, true] {
        for steps in 0..40 {
            let (world, at) = world();
            let node = world.node("n1");
            archive(&node, &at).unwrap();
            node.create(at.directory.0, "new", "has none").unwrap();
            lose_ssd(&world);
            if forgets {
                world.forget();
                let report = repair_by_n2(&world, true);
                assert_eq!(report.named, [1, 1, 0], "{report:?}");
            }
            let report = repair_by_n2(&world, false);
            let case = format!("{forgets}, step {steps}: {report:?}");
            assert!(report.missing[0].1.contains("copies of 1 of its files"), "{case}");
            assert!(report.left_copies.is_empty() && report.told.is_empty(), "{case}");
            let dies = demote(&world.node_until("n2", 3, steps), 3, &at, SHARED);
            let other = world.node_until("n2", 5, i64::MAX);
            let done = demote(&other, 5, &at, SHARED);
            let case = format!("{case}, {dies:?}, {done:?}");
            assert!(matches!(done, Ok(Moved::Done(0) | Moved::Already)), "{case}");
            assert_eq!(read(&other, &at).as_deref(), Some(TEXT), "{case}");
            let new = Node::entry(at.directory.0, "new");
            assert!(!matches!(demote(&other, 5, &new, SHARED), Ok(Moved::Done(_))), "{case}");
            // It is an ordinary file from now on, and nothing is left of the copy after a repair.
            repair_by_n2(&world, true);
            assert!(finals(&world).is_empty(), "{case}");
            assert_eq!(read(&other, &at).as_deref(), Some(TEXT), "{case}");
            // If that SSD is found again, it has an old copy only.
            fs::rename(world.at("n1/lost"), world.at("n1/ssd")).unwrap();
            world.repair(true);
            let report = world.repair(false);
            assert!(report.is_clean(), "{case}: {report:?}");
            assert_eq!(world.tree()["/a/f"], TEXT, "{case}");
            assert_eq!(world.tree().get("/a/new").map(String::as_str), Some("has none"), "{case}");
            assert_eq!(world.tree().len(), 3, "{case}: {:?}", world.tree());
        }
    }
}

/// A maker that stood still just before it gave a copy its final name, while a writer opens the file: it goes on at each step
/// of the writer. Readers do not disturb it.
#[test]
fn i13_i14_a_maker_that_goes_on_late_finds_its_copy_gone() {
    let mut late = 0;
    for step in 0..10 {
        let (world, at) = world();
        let mut dies = 0;
        let copy = loop {
            let _stood_still = archive(&world.node_until("n1", 2, dies), &at);
            let found = world.node("n1").names.lookup(&at).unwrap();
            let copy = CopyName::of(&found.attributes, found.inode.0);
            let is_whole = |mark: CleanCopy| mark.mtime_ns != CleanCopy::BEING_MADE;
            if found.attributes.copy.is_some_and(is_whole) {
                break copy.unwrap();
            }
            dies += 1;
        };
        assert!(finals(&world).is_empty());
        let (maker, node) = (world.node("n1"), world.node_until("n2", 3, i64::MAX));
        let (count, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, noted) = (Arc::clone(&count), Arc::clone(&finished));
        *node.death.told.lock() = Some(Box::new(move || {
            if counted.fetch_add(1, Ordering::SeqCst) == step {
                let is_there = Copies::of(&maker.places).finish(&copy).unwrap();
                noted.fetch_add(usize::from(is_there), Ordering::SeqCst);
            }
        }));
        write(&node, 3, &at).unwrap();
        assert!(finals(&world).is_empty(), "step {step}");
        late += finished.load(Ordering::SeqCst);
        if count.load(Ordering::SeqCst) <= step {
            break;
        }
    }
    assert!(late > 0, "it was never there to be finished");
}

#[test]
fn whoever_reads_a_file_does_not_keep_it_from_being_copied() {
    for step in 0..30 {
        let (world, at) = world();
        let (making, node) =
            (world.node_until("n1", 2, i64::MAX), world.node_until("n2", 5, i64::MAX));
        let (count, entry) = (AtomicUsize::new(0), at.clone());
        *making.death.told.lock() = Some(Box::new(move || {
            if count.fetch_add(1, Ordering::SeqCst) == step {
                let found = node.names.lookup(&entry).unwrap();
                let opened = node.names.attributes().update_of((&entry, found.inode), |of| {
                    of.note_open(Session(5), false);
                    Ok(())
                });
                opened.unwrap();
            }
        }));
        assert_eq!(archive(&making, &at).unwrap(), Archived::Done(TEXT.len() as u64));
        assert_eq!(finals(&world).len(), 1);
    }
}

mod lost;
