//! What moves leave that are killed or fail, while users rename files past the mount.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_storage::volume::origin::relayout::{self, Leftovers, Step};
use halocline_storage::volume::origin::unnamed::unnamed_objects;
use halocline_testkit::skipping::skip;
use rustix::fs::{getxattr, removexattr, setxattr};

use super::*;

const ATTESTED: &str = "trusted.halocline.object";

/// Runs `act` while somebody renames a file from directory to directory: no walk finds the tree still.
fn while_names_change<T>(dir: &Path, act: impl FnOnce() -> T) -> T {
    let tree = dir.join("namespace");
    let [here, there] = ["here", "there"].map(|name| tree.join(name));
    for dir in [&here, &there] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(here.join("moved"), "").unwrap();
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(here.join("moved"), there.join("moved")).unwrap();
                fs::rename(there.join("moved"), here.join("moved")).unwrap();
                has_begun.store(true, Ordering::Relaxed);
            }
        });
        while !has_begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let done = catch_unwind(AssertUnwindSafe(act));
        is_over.store(true, Ordering::Relaxed);
        done
    });
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Regression: while names of the tree changed nothing was cleared, and the note of the next move forgot it: a copy of the file
/// took its space until a check.
#[test]
fn what_a_killed_move_left_is_found_by_its_file_whoever_renames_others() {
    for stop in STEPS {
        let scratch = killed_volume(stop);
        let dir = scratch.path();
        while_names_change(dir, || {
            let volume = to_move(dir).unwrap();
            let left = Leftovers::of(volume.origin()).unwrap();
            let bytes = left.bytes_by_server(volume.origin()).unwrap();
            let has_copy = stop > Step::Copy && stop < Step::Forget;
            assert_eq!(bytes.iter().sum::<u64>() > 60_000, has_copy, "{stop:?}: {bytes:?}");
            let cleared = volume.clear_moves(&mut |_| Ok(())).unwrap();
            let has_any = stop > Step::Layout && stop < Step::Forget;
            assert_eq!((cleared.removed, cleared.left), (usize::from(has_any), 0), "{stop:?}");
        });
        assert_eq!(read(&mounted(dir), "file"), content(), "{stop:?}");
        assert_eq!(local_files(dir, "objects").len(), 3, "{stop:?}: nothing is left over");
        let is_moved = stop > Step::CutOver;
        assert_eq!(local_files(dir, "layouts").len(), usize::from(is_moved), "{stop:?}");
    }
}

/// A file that is not found, because it is gone or was moved past the reader, keeps what it may name: that is noted until a
/// walk can tell, also beside the notes of later moves.
#[test]
fn what_nobody_can_tell_yet_stays_noted_beside_later_moves() {
    // On a busy machine nobody may rename for as long as a walk takes: then all can be told, which is another case.
    for _ in 0..100 {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        let origin = volume(dir);
        create(&origin, "other").write_at(0, &content()).unwrap();
        drop(origin);
        killed_before(Step::CutOver, dir, &two_parts());
        fs::rename(dir.join("namespace/file"), dir.join("aside")).unwrap();
        let other = Wish { path: "other".into(), ..two_parts() };
        let noted = while_names_change(dir, || {
            killed_before(Step::Remove, dir, &other);
            to_move(dir).unwrap().outstanding()
        });
        if noted < 2 {
            continue;
        }
        // It comes back: no object that it may name was removed, though the walk did not find it.
        fs::rename(dir.join("aside"), dir.join("namespace/file")).unwrap();
        let volume = to_move(dir).unwrap();
        let cleared = volume.clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!((cleared.removed, cleared.left), (2, 0));
        drop(volume);
        let origin = mounted(dir);
        assert!(read(&origin, "file") == content() && read(&origin, "other") == content());
        assert_eq!(local_files(dir, "objects").len(), 6);
        drop(origin);
        return assert!(Origin::open_alone(dir).unwrap().unwrap().orphans().unwrap().is_empty());
    }
    panic!("each walk found the tree still");
}

/// What failed after the cutover was cleared like what failed before it: after a power loss the file could name the
/// object that was gone. Later, what failed before it was cleared by a walk, and not where names changed.
#[test]
fn a_move_that_fails_leaves_something_only_from_its_cutover_on() {
    for failing in STEPS {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        drop(volume(dir));
        let volume = to_move(dir).unwrap();
        let found = relayout::look(volume.origin(), &[two_parts()], true).unwrap().remove(0);
        let mut before = |step| {
            let error = io::Error::from(io::ErrorKind::StorageFull).into();
            if step == failing { Err(error) } else { Ok(()) }
        };
        let moved = while_names_change(dir, || volume.relayout(&found, &mut before, &mut |_| ()));
        let is_moved = moved.as_ref().is_ok_and(|moved| moved.left.is_some());
        assert_eq!(is_moved, failing > Step::Settle, "{failing:?}: {moved:?}");
        let cut_over = moved.as_ref().is_err_and(|stopped| stopped.cut_over);
        assert_eq!(cut_over, failing == Step::Settle, "{failing:?}: {moved:?}");
        let noted = usize::from(failing > Step::CutOver);
        assert_eq!(volume.outstanding(), noted, "{failing:?}");
        let objects = if [Step::Settle, Step::Remove].contains(&failing) { 6 } else { 3 };
        assert_eq!(local_files(dir, "objects").len(), objects, "{failing:?}");
        drop(volume);
        assert_eq!(read(&mounted(dir), "file"), content(), "{failing:?}");
    }
}

/// Regression: of a file that refers to nonsense for the moment both objects went, its own included.
#[test]
fn of_a_file_that_refers_to_nonsense_both_objects_stay() {
    let scratch = killed_volume(Step::CutOver);
    let dir = scratch.path();
    let path = dir.join("namespace/file");
    let mut number = vec![0; 64];
    let len = rustix::fs::getxattr(&path, OBJECT, &mut number).unwrap();
    let set =
        |value: &[u8]| rustix::fs::setxattr(&path, OBJECT, value, XattrFlags::REPLACE).unwrap();
    set(b"junk");
    let clear = || {
        let cleared = to_move(dir).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        (cleared.removed, cleared.left)
    };
    assert_eq!(clear(), (0, 1));
    set(&number[..len]);
    assert_eq!(clear(), (1, 0));
    assert_eq!(read(&mounted(dir), "file"), content());
}

/// So many unfinished moves mean that something is wrong which nobody has looked at.
#[test]
fn notes_have_a_limit_and_those_about_nothing_are_forgotten() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let note = |from: u32, to: u32| {
        let lines = (from..to).map(|it| format!("{it:032x} {it:031x}1v\n"));
        lines.collect::<Vec<_>>().concat().into_bytes()
    };
    // One line of an earlier version has counted on the first server alone.
    for (server, text) in [(0, note(0, 1)), (2, note(0, 1000))] {
        let path = dir.join(format!("server-{server}/halocline-moving"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let volume = to_move(dir).unwrap();
    assert_eq!(volume.outstanding(), 1000);
    let found = relayout::look(volume.origin(), &[two_parts()], true).unwrap().remove(0);
    let stopped = volume.relayout(&found, &mut |_| Ok(()), &mut |_| ()).unwrap_err();
    assert!(stopped.error.to_string().contains("1000 moves left objects"), "{}", stopped.error);
    assert!(!stopped.cut_over);
    let cleared = volume.clear_moves(&mut |_| Ok(())).unwrap();
    assert_eq!((cleared.removed, cleared.left), (0, 0));
    volume.relayout(&found, &mut |_| Ok(()), &mut |_| ()).unwrap();
    volume.settle_removals().unwrap();
    drop(volume);
    for server in [0, 2] {
        let notes = fs::read(dir.join(format!("server-{server}/halocline-moving"))).unwrap();
        assert!(notes.is_empty(), "server {server}");
    }
    assert_eq!(read(&mounted(dir), "file"), content());
}

/// Regression: both objects were removed of a file that was moved out of the tree for a while, or was on a file system below it
/// that was not mounted.
#[test]
fn what_a_killed_move_left_stays_while_its_file_is_away() {
    for stop in STEPS {
        let scratch = killed_volume(stop);
        let dir = scratch.path();
        let (file, aside) = (dir.join("namespace/file"), dir.join("aside"));
        fs::rename(&file, &aside).unwrap();
        let objects = local_files(dir, "objects");
        let noted = usize::from(stop > Step::Note);
        for _ in 0..2 {
            let volume = to_move(dir).unwrap();
            let left = Leftovers::of(volume.origin()).unwrap();
            assert!(left.objects().is_empty(), "{stop:?}");
            let cleared = volume.clear_moves(&mut |_| Ok(())).unwrap();
            assert_eq!((cleared.removed, cleared.left), (0, noted), "{stop:?}");
            assert_eq!(local_files(dir, "objects"), objects, "{stop:?}");
        }
        fs::rename(&aside, &file).unwrap();
        let cleared = to_move(dir).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        let has_any = stop > Step::Layout && stop < Step::Forget;
        assert_eq!((cleared.removed, cleared.left), (usize::from(has_any), 0), "{stop:?}");
        assert_eq!(read(&mounted(dir), "file"), content(), "{stop:?}");
        assert_eq!(local_files(dir, "objects").len(), 3, "{stop:?}");
    }
}

/// What is left of a file that is gone for good stays noted until somebody who knows that has it removed.
#[test]
fn a_note_about_a_removed_file_goes_with_its_objects() {
    let scratch = killed_volume(Step::Settle);
    let dir = scratch.path();
    fs::remove_file(dir.join("namespace/file")).unwrap();
    let clear = || {
        let cleared = to_move(dir).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        (cleared.removed, cleared.left)
    };
    assert_eq!(clear(), (0, 1));
    let origin = Origin::open_alone(dir).unwrap().unwrap();
    for id in origin.orphans().unwrap().keys() {
        origin.remove_orphan(*id).unwrap();
    }
    drop(origin);
    assert_eq!(clear(), (0, 0));
    assert_eq!(to_move(dir).unwrap().outstanding(), 0);
}

/// Its first object is found by the third one, which the note of the second move names, whether that ended or not.
#[test]
fn all_former_objects_of_a_file_that_moved_again_are_its_own() {
    let back = wish("file", &[(0, [8192, 4096, 4096])]);
    for stop in [Step::CutOver, Step::Remove, Step::Forget, Step::Note] {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        drop(volume(dir));
        let volume = to_move(dir).unwrap();
        let look = |wish: &Wish| {
            let wishes = std::slice::from_ref(wish);
            relayout::look(volume.origin(), wishes, true).unwrap().remove(0)
        };
        let stopped = |stop: Option<Step>| {
            move |step| {
                let error = io::Error::from(io::ErrorKind::ReadOnlyFilesystem).into();
                if stop == Some(step) { Err(error) } else { Ok(()) }
            }
        };
        let first =
            volume.relayout(&look(&two_parts()), &mut stopped(Some(Step::Remove)), &mut |_| ());
        assert!(first.unwrap().left.is_some());
        // Not at all, where it stops at no step.
        let second = Some(stop).filter(|stop| *stop != Step::Note);
        let _ = volume.relayout(&look(&back), &mut stopped(second), &mut |_| ());
        assert_eq!(volume.outstanding(), 1, "{stop:?}");
        drop(volume);
        let volume = to_move(dir).unwrap();
        let cleared = volume.clear_moves(&mut |_| Ok(())).unwrap();
        let superfluous = if stop == Step::Remove { 2 } else { 1 };
        assert_eq!((cleared.removed, cleared.left), (superfluous, 0), "{stop:?}");
        drop(volume);
        assert_eq!(read(&mounted(dir), "file"), content(), "{stop:?}");
        assert_eq!(local_files(dir, "objects").len(), 3, "{stop:?}");
    }
}

/// A file that never had data has no object that would tell a killed move's from others.
#[test]
fn a_killed_move_of_a_file_without_data_is_found_by_it_too() {
    for stop in [Step::Layout, Step::Copy, Step::CutOver, Step::Remove] {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        drop(create(&volume(dir), "empty"));
        let empty = Wish { path: "empty".into(), ..two_parts() };
        killed_before(stop, dir, &empty);
        let cleared = to_move(dir).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!(cleared.left, 0, "{stop:?}");
        assert!(moved(dir, &empty).agrees(), "{stop:?}");
        assert_eq!(local_files(dir, "layouts").len(), 1, "{stop:?}");
    }
}

/// Regression: a file of holes alone got a byte to be known by in a copy before it named it, so that after a kill it was taken for one
/// that names data which it has no more.
#[test]
fn a_killed_move_of_a_file_of_holes_leaves_holes() {
    for stop in [Step::Sync, Step::CutOver, Step::Settle, Step::Remove, Step::Forget] {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        create(&volume(dir), "holes").truncate(5000).unwrap();
        moved(dir, &wish("holes", &[(0, [0, 0, 8192])]));
        let back = wish("holes", &[(0, [SHAPE.stripe; 3])]);
        killed_before(stop, dir, &back);
        assert_eq!(read(&mounted(dir), "holes"), vec![0; 5000], "{stop:?}");
        assert!(moved(dir, &back).agrees(), "{stop:?}");
        assert_eq!(read(&mounted(dir), "holes"), vec![0; 5000], "{stop:?}");
    }
}

/// Regression: a file that had been emptied and had grown, without data since, was refused after a killed move as one that names the
/// data of another: its own former object was still there. The remedy that was told would have removed bytes that the cache had of it.
#[test]
fn a_killed_move_of_a_file_that_lost_its_data_leaves_its_holes() {
    let plain = wish("file", &[(0, [SHAPE.stripe; 3])]);
    for (from, to) in [(None, two_parts()), (Some(two_parts()), plain)] {
        for stop in STEPS {
            let scratch = tempfile::tempdir().unwrap();
            let dir = scratch.path();
            drop(volume(dir));
            if let Some(from) = &from {
                moved(dir, from);
            }
            for size in [0, 70_000] {
                open(&mounted(dir), "file").truncate(size).unwrap();
            }
            killed_before(stop, dir, &to);
            let mut want = vec![0; 70_000];
            assert_eq!(read(&mounted(dir), "file"), want, "{stop:?}");
            let named = Origin::open_alone(dir).unwrap().unwrap().named_objects().unwrap();
            assert!(
                named.unreadable.is_empty() && named.misnamed.is_empty(),
                "{stop:?}: {named:?}"
            );
            want[30_000..30_005].copy_from_slice(b"dirty");
            open(&mounted(dir), "file").write_at(30_000, b"dirty").unwrap();
            assert!(moved(dir, &to).agrees(), "{stop:?}");
            assert_eq!(read(&mounted(dir), "file"), want, "{stop:?}");
            assert!(Origin::open_alone(dir).unwrap().unwrap().orphans().unwrap().is_empty());
        }
    }
}

/// The number that a file had before its last move leads to no zeros, also while the note of the move is there.
#[test]
fn a_former_number_is_not_that_of_a_file_of_holes() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    drop(volume(dir));
    let name = dir.join("namespace/file");
    let former = number_of(&name);
    killed_before(Step::Forget, dir, &two_parts());
    let now = number_of(&name);
    let set = |number: &str| {
        setxattr(&name, OBJECT, number.as_bytes(), XattrFlags::REPLACE).unwrap();
    };
    set(&former);
    let told = open(&mounted(dir), "file").read_at(0, &mut [0]).unwrap_err().to_string();
    assert!(told.contains("names the data of another file"), "{told}");
    let named = Origin::open_alone(dir).unwrap().unwrap().named_objects().unwrap();
    assert_eq!(named.misnamed.len(), 1, "{named:?}");
    set(&now);
    assert_eq!(read(&mounted(dir), "file"), content());
}

fn copied(dir: &Path, copy: &Path) {
    let done = Command::new("cp").arg("-a").args([dir, copy]).status().unwrap();
    assert!(done.success());
}

/// Regression: in a copy the rest of a killed move was nobody's, so that `apply` cleared it no more.
#[test]
fn in_a_copy_what_a_killed_move_left_is_cleared_as_in_the_original() {
    for stop in [Step::Copy, Step::CutOver, Step::Settle, Step::Remove] {
        let scratch = killed_volume(stop);
        let copies = tempfile::tempdir().unwrap();
        let copy = copies.path().join("copy");
        if getxattr(scratch.path().join("namespace/file"), ATTESTED, &mut [0; 64]).is_err() {
            return skip("only root can set trusted attributes");
        }
        copied(scratch.path(), &copy);
        drop(mounted(&copy));
        assert_eq!(read(&mounted(&copy), "file"), content(), "{stop:?}");
        assert_eq!(unnamed_objects(&copy).unwrap(), [], "{stop:?}");
        let cleared = to_move(&copy).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!((cleared.removed, cleared.left), (1, 0), "{stop:?}");
        assert_eq!(read(&mounted(&copy), "file"), content(), "{stop:?}");
        assert!(moved(&copy, &two_parts()).agrees());
        assert_eq!(local_files(&copy, "layouts").len(), 1, "{stop:?}");
        assert_eq!(read(&mounted(&copy), "file"), content(), "{stop:?}");
        // Who names both, or whoever names one, decides nothing.
        let two = copies.path().join("two");
        let name = scratch.path().join("namespace/file");
        let number = number_of(&name);
        let forged = scratch.path().join("namespace/forged");
        fs::File::create_new(&forged).unwrap();
        setxattr(&forged, OBJECT, number.as_bytes(), XattrFlags::empty()).unwrap();
        setxattr(&forged, ATTESTED, number.as_bytes(), XattrFlags::empty()).unwrap();
        copied(scratch.path(), &two);
        drop(mounted(&two));
        let cleared = to_move(&two).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!((cleared.removed, cleared.left), (0, 1), "{stop:?}");
    }
}

/// Regression: in a copy a file that had never had data was refused for good if a move of it had been killed.
#[test]
fn in_a_copy_a_killed_move_of_a_file_of_holes_leaves_holes() {
    let plain = wish("holes", &[(0, [SHAPE.stripe; 3])]);
    let other = Wish { path: "holes".into(), ..two_parts() };
    for (from, to) in [(None, &other), (Some(&other), &plain)] {
        for stop in STEPS {
            let (scratch, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (dir, copy) = (scratch.path(), copies.path().join("copy"));
            create(&volume(dir), "holes").truncate(70_000).unwrap();
            if let Some(from) = from {
                moved(dir, from);
            }
            killed_before(stop, dir, to);
            if getxattr(dir.join("namespace/file"), ATTESTED, &mut [0; 64]).is_err() {
                return skip("only root can set trusted attributes");
            }
            copied(dir, &copy);
            for dir in [dir, &copy] {
                let holes = vec![0; 70_000];
                assert_eq!(read(&mounted(dir), "holes"), holes, "{stop:?}");
                let named = Origin::open_alone(dir).unwrap().unwrap().named_objects().unwrap();
                assert!(named.unreadable.is_empty() && named.misnamed.is_empty(), "{stop:?}");
                assert!(moved(dir, to).agrees(), "{stop:?}");
                assert_eq!(read(&mounted(dir), "holes"), holes, "{stop:?}");
                assert_eq!(read(&mounted(dir), "file"), content(), "{stop:?}");
                let orphans = Origin::open_alone(dir).unwrap().unwrap().orphans().unwrap();
                assert!(orphans.is_empty(), "{stop:?}: {orphans:?}");
            }
        }
    }
}

fn number_of(path: &Path) -> String {
    let mut value = [0; 64];
    let len = getxattr(path, OBJECT, &mut value).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

/// In a copy where nothing is attested nothing tells whose the rest of a killed move is: it was told as what may be the data of files
/// that were moved out.
#[test]
fn in_a_copy_what_a_killed_move_left_is_told_as_that() {
    for stop in [Step::CutOver, Step::Settle, Step::Remove] {
        let scratch = killed_volume(stop);
        let (dir, copies) = (scratch.path(), tempfile::tempdir().unwrap());
        let copy = copies.path().join("copy");
        if removexattr(dir.join("namespace/file"), ATTESTED).is_err() {
            return skip("only root can set trusted attributes");
        }
        fs::remove_file(dir.join("server-0/halocline-tree")).unwrap();
        copied(dir, &copy);
        // Its objects are bound to its files.
        drop(mounted(&copy));
        let cleared = to_move(&copy).unwrap().clear_moves(&mut |_| Ok(())).unwrap();
        assert_eq!((cleared.removed, cleared.left, cleared.likely), (0, 1, 1), "{stop:?}");
        let unnamed = unnamed_objects(&copy).unwrap();
        assert_eq!(unnamed.len(), 1, "{stop:?}: {unnamed:?}");
        assert!(unnamed.iter().all(|it| it.left_by_move), "{stop:?}: {unnamed:?}");
        // What may be a file's is not: neither of the two is named.
        fs::rename(copy.join("namespace/file"), copy.join("aside")).unwrap();
        let unnamed = unnamed_objects(&copy).unwrap();
        assert_eq!(unnamed.len(), 2, "{stop:?}: {unnamed:?}");
        assert!(unnamed.iter().all(|it| !it.left_by_move), "{stop:?}: {unnamed:?}");
        assert_eq!(unnamed_objects(dir).unwrap(), [], "{stop:?}: known where it was made");
    }
}
