//! Dirty bytes under which the origin was changed by others (I9): after a kill, while the mount lives,
//! and under a cache that is a copy. The origin's version stays the file, ours is saved, and both are
//! told of; what only we changed is not a conflict.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr, SetTime};
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

use crate::fixture::{Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;

/// A file that lies on the origin, with four dirty KiB at 8 KiB.
fn dirty() -> Fixture {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.others = true;
    fixture.write("file", 0, &pattern(1, 0, 32 * KIB));
    fixture.flush();
    fixture.write("file", 8 * KIB, &pattern(2, 8 * KIB, 4 * KIB));
    fixture
}

fn origin_path(fixture: &Fixture) -> PathBuf {
    fixture.origin.path().join("file")
}

/// What others do to the file of [`dirty`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theirs {
    SameBytes,
    OtherBytes,
    Growth,
    Truncation,
    Replacement,
    Removal,
}

use Theirs::{Growth, OtherBytes, Removal, Replacement, SameBytes, Truncation};

const ALL: [Theirs; 6] = [SameBytes, OtherBytes, Growth, Truncation, Replacement, Removal];

impl Theirs {
    fn make(self, fixture: &Fixture) {
        let path = origin_path(fixture);
        let open = || File::options().write(true).open(&path).unwrap();
        match self {
            SameBytes => open().write_all_at(&[0xAB; 100], 9 * KIB).unwrap(),
            OtherBytes => open().write_all_at(&[0xAB; 100], 20 * KIB).unwrap(),
            Growth => open().write_all_at(&[0xAB; 100], 40 * KIB).unwrap(),
            Truncation => open().set_len(10 * KIB).unwrap(),
            Replacement => {
                let other = path.with_extension("new");
                fs::write(&other, [0xAB; 500]).unwrap();
                fs::rename(other, &path).unwrap();
            }
            Removal => fs::remove_file(&path).unwrap(),
        }
    }
}

/// The bytes that were saved, from `offset` on; there is one conflict.
fn saved(fixture: &Fixture, offset: usize, len: usize) -> Vec<u8> {
    let dir = fs::read_dir(fixture.cache.path().join("conflicts")).unwrap();
    let mut files: Vec<_> = dir.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_none());
    assert_eq!(files.len(), 1, "{files:?}");
    fs::read(&files[0]).unwrap()[offset..offset + len].to_vec()
}

fn no_conflict(fixture: &Fixture) {
    let status = fixture.engine().status();
    assert_eq!(status.notes, Vec::<String>::new());
    assert_eq!(status.report.conflicts, 0);
    assert!(!fixture.cache.path().join("conflicts").exists());
}

/// Neither version is lost, they are not mixed, and it is told.
fn one_conflict(fixture: &mut Fixture, theirs: Option<Vec<u8>>) {
    let report = fixture.flush();
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert!(report.conflicts[0].reason.contains("bytes that only the cache had"), "{report:?}");
    assert!(fixture.flush().conflicts.is_empty(), "it is told once");
    let status = fixture.engine().status();
    assert_eq!((status.report.conflicts, status.dirty_bytes), (1, 0));
    assert!(status.notes.iter().any(|note| note.contains("saved in")), "{:?}", status.notes);
    assert_eq!(saved(fixture, 8 << 10, 4 << 10), pattern(2, 8 * KIB, 4 * KIB));
    assert_eq!(fs::read(origin_path(fixture)).ok(), theirs, "the origin's version is the file");
    if let Some(theirs) = &theirs {
        assert_eq!(fixture.read("file", 0, 64 << 10), *theirs);
        // And goes on being one.
        fixture.write("file", 0, &[7; 10]);
    }
    fixture.close();
    if let Some(mut theirs) = theirs {
        theirs[..10].fill(7);
        assert_eq!(fs::read(origin_path(fixture)).unwrap(), theirs);
    }
}

/// Dirty bytes went over newer ones of the origin, without a word: every dirty file was taken for one
/// that we were writing when we were killed.
#[test]
fn i9_what_others_wrote_after_a_kill_stays() {
    for theirs in ALL {
        let mut fixture = dirty();
        fixture.crash();
        theirs.make(&fixture);
        let found = fs::read(origin_path(&fixture)).ok();
        fixture.open();
        one_conflict(&mut fixture, found);
    }
}

/// The same on a mount that lives: nothing was compared before a flush.
#[test]
fn i9_what_others_wrote_before_a_flush_stays() {
    for theirs in ALL {
        for read_first in [false, true] {
            let mut fixture = dirty();
            theirs.make(&fixture);
            let found = fs::read(origin_path(&fixture)).ok();
            if read_first && let Some(found) = &found {
                assert_eq!(fixture.read("file", 0, 64 << 10), *found, "{theirs:?}");
            }
            one_conflict(&mut fixture, found);
        }
    }
}

/// The same while a program has the file open, and writes to the origin's side of it, too.
#[test]
fn i9_what_others_wrote_under_an_open_file_stays() {
    for theirs in [SameBytes, OtherBytes, Growth] {
        let mut fixture = dirty();
        let handle = fixture.handle("file");
        theirs.make(&fixture);
        let engine = fixture.engine();
        engine.allocate(&handle, 0, 1, Allocate::ReserveKeepSize).unwrap();
        engine.write(&handle, 9 * KIB, &pattern(2, 9 * KIB, KIB), ME).unwrap();
        let found = fs::read(origin_path(&fixture)).unwrap();
        fixture.flush();
        drop(handle);
        assert_eq!(fs::read(origin_path(&fixture)).unwrap(), found, "{theirs:?}");
        assert_eq!(saved(&fixture, 8 << 10, 4 << 10), pattern(2, 8 * KIB, 4 * KIB));
        fixture.close();
        assert_eq!(fs::read(origin_path(&fixture)).unwrap(), found, "{theirs:?}");
    }
}

/// Regression: our own change of the origin's file, which became larger or got the time of the write, went on until the
/// handle was released, some time after the program's `close`; others' changes in between passed for it.
#[test]
fn i9_what_others_wrote_right_after_a_close_stays() {
    for from in [9 * KIB, 32 * KIB] {
        for theirs in [SameBytes, OtherBytes, Growth, Truncation] {
            let fixture = dirty();
            let handle = fixture.handle("file");
            fixture.engine().write(&handle, from, &pattern(2, from, KIB), ME).unwrap();
            Engine::flush(&**fixture.engine(), &handle).unwrap();
            let path = origin_path(&fixture);
            let ours = fixture.engine().stat(&fixture.vnode("file"), None).unwrap().raw;
            let on_origin = fs::metadata(&path).unwrap();
            assert_eq!(
                (ours.st_mtime, ours.st_mtime_nsec),
                (on_origin.mtime(), on_origin.mtime_nsec())
            );
            theirs.make(&fixture);
            let found = fs::read(&path).unwrap();
            drop(handle);
            assert_eq!(fixture.flush().conflicts.len(), 1, "{theirs:?} after a write at {from}");
            assert_eq!(fs::read(&path).unwrap(), found, "{theirs:?} after a write at {from}");
        }
    }
}

/// An open file whose name others took lives on for its programs, as on any file system; what was dirty
/// then is saved.
#[test]
fn i9_programs_go_on_with_a_file_whose_name_others_took() {
    let mut fixture = dirty();
    let handle = fixture.handle("file");
    Replacement.make(&fixture);
    fixture.flush();
    let mut want = pattern(1, 0, 32 * KIB);
    want[8 << 10..12 << 10].copy_from_slice(&pattern(2, 8 * KIB, 4 * KIB));
    let mut buf = vec![0; 40 << 10];
    let got = fixture.engine().read(&handle, 0, &mut buf, ME).unwrap();
    assert_eq!(buf[..got], want);
    assert_eq!(saved(&fixture, 8 << 10, 4 << 10), pattern(2, 8 * KIB, 4 * KIB));
    drop(handle);
    fixture.close();
    assert_eq!(fs::read(origin_path(&fixture)).unwrap(), [0xAB; 500]);
}

/// What clean bytes stand beside dirty ones are gone with them: they are of another version.
#[test]
fn i9_versions_are_not_mixed_by_what_is_clean() {
    let mut fixture = dirty();
    fixture.crash();
    OtherBytes.make(&fixture);
    fixture.open();
    let found = fs::read(origin_path(&fixture)).unwrap();
    assert_eq!(fixture.read("file", 0, 64 << 10), found);
    assert_eq!(fixture.engine().status().mapped_bytes, 0);
    fixture.close();
}

fn end(fixture: &mut Fixture, in_order: bool) {
    if in_order {
        fixture.close_dirty();
    } else {
        fixture.crash();
    }
}

/// Copies a directory as a backup does.
fn copy(from: &TempDir) -> TempDir {
    let to = TempDir::new().unwrap();
    let (source, target) = (from.path().join("."), to.path());
    let copied = Command::new("cp").arg("-a").arg(source).arg(target).status().unwrap();
    assert!(copied.success());
    to
}

#[test]
fn i9_an_old_copy_of_a_cache_puts_nothing_old_back() {
    for left_in_order in [false, true] {
        let mut fixture = dirty();
        end(&mut fixture, left_in_order);
        let backup = copy(&fixture.cache);
        fixture.open();
        fixture.write("file", 8 * KIB, &[3; 4096]);
        fixture.close();
        let newer = fs::read(origin_path(&fixture)).unwrap();
        fixture.with_cache(backup);
        fixture.open();
        let status = fixture.engine().status();
        assert!(status.notes.iter().any(|note| note.contains("is a copy")), "{:?}", status.notes);
        one_conflict(&mut fixture, Some(newer));
    }
}

/// A cache may be moved to another device.
#[test]
fn i9_a_copy_under_which_nothing_changed_goes_on() {
    for left_in_order in [false, true] {
        let mut fixture = dirty();
        end(&mut fixture, left_in_order);
        let moved = copy(&fixture.cache);
        fixture.with_cache(moved);
        fixture.open();
        assert!(fixture.flush().conflicts.is_empty());
        fixture.close();
        let mut want = pattern(1, 0, 32 * KIB);
        want[8 << 10..12 << 10].copy_from_slice(&pattern(2, 8 * KIB, 4 * KIB));
        assert_eq!(fs::read(origin_path(&fixture)).unwrap(), want);
    }
}

/// Tells the child that is killed where to work.
const ORDERS: &str = "HALOCLINE_TEST_CONFLICT";

/// Changes the origin under dirty bytes and dies with the file open: how it looks then was not recorded.
#[test]
#[ignore = "run by i9_a_kill_in_the_middle_of_our_own_change_is_dated"]
fn child() {
    let orders = std::env::var(ORDERS).expect("the parent gives orders");
    let (origin, cache) = orders.split_once(':').unwrap();
    let config = still(1 << 20, "always");
    let around = Decorations { data_bytes: Some((1 << 20) - (8 << 10)), ..Decorations::NONE };
    let engine =
        ExtentEngine::open_decorated(Path::new(origin), Path::new(cache), &config, around).unwrap();
    let (vnode, _) = engine.lookup(&engine.root(), "file".as_ref()).unwrap();
    let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
    engine.write(&handle, 8 * KIB, &pattern(2, 8 * KIB, 4 * KIB), ME).unwrap();
    engine.allocate(&handle, 40 * KIB, 1, Allocate::Reserve).unwrap();
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[test]
fn i9_a_kill_in_the_middle_of_our_own_change_is_dated() {
    for others in [false, true] {
        let mut fixture = dirty();
        fixture.close();
        let (origin, cache) = (fixture.origin.path().display(), fixture.cache.path().display());
        let killed = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "conflicts::child", "--ignored"])
            .env(ORDERS, format!("{origin}:{cache}"))
            .output()
            .unwrap();
        assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{killed:?}");
        if others {
            // Longer than the lease goes on after the last change.
            std::thread::sleep(Duration::from_millis(2200));
            OtherBytes.make(&fixture);
        }
        let found = fs::read(origin_path(&fixture)).unwrap();
        assert_eq!(found.len(), (40 << 10) + 1);
        fixture.open();
        if others {
            one_conflict(&mut fixture, Some(found));
        } else {
            no_conflict(&fixture);
            fixture.close();
            let ours = fs::read(origin_path(&fixture)).unwrap();
            assert_eq!(ours[8 << 10..12 << 10], pattern(2, 8 * KIB, 4 * KIB));
        }
    }
}

/// Others gave the file an owner's mode or a name: its bytes are what they were.
#[test]
fn i9_other_attributes_are_no_conflict() {
    for live in [false, true] {
        let mut fixture = dirty();
        if !live {
            fixture.crash();
        }
        fs::set_permissions(origin_path(&fixture), fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(origin_path(&fixture), fixture.origin.path().join("other")).unwrap();
        if !live {
            fixture.open();
        }
        no_conflict(&fixture);
        fixture.close();
        let mut want = pattern(1, 0, 32 * KIB);
        want[8 << 10..12 << 10].copy_from_slice(&pattern(2, 8 * KIB, 4 * KIB));
        assert_eq!(fs::read(origin_path(&fixture)).unwrap(), want);
    }
}

/// After a power loss the origin may show an older look than the records do, or a newer one.
#[test]
fn i9_a_power_loss_makes_no_conflict_of_fsynced_bytes() {
    let mut fixture = dirty();
    fixture.boot_id = Some("one".to_owned());
    fixture.crash();
    fixture.open();
    let handle = fixture.handle("file");
    fixture.engine().write(&handle, 8 * KIB, &pattern(2, 8 * KIB, 4 * KIB), ME).unwrap();
    fixture.engine().fsync(&handle, false).unwrap();
    drop(handle);
    fixture.crash();
    let older = std::time::SystemTime::now() - Duration::from_secs(5);
    File::options().write(true).open(origin_path(&fixture)).unwrap().set_modified(older).unwrap();
    fixture.boot_id = Some("two".to_owned());
    fixture.open();
    assert_eq!(fixture.engine().status().report.conflicts, 0);
    fixture.close();
    let mut want = pattern(1, 0, 32 * KIB);
    want[8 << 10..12 << 10].copy_from_slice(&pattern(2, 8 * KIB, 4 * KIB));
    assert_eq!(fs::read(origin_path(&fixture)).unwrap(), want);
}

/// What one program does to its own files, in any order, at once with others, while all of it is flushed in
/// the background, and after kills: with nobody else about nothing of it is a conflict.
#[test]
fn i9_nothing_that_the_mount_does_is_a_conflict() {
    const FILE: u64 = 200 * KIB;
    let config =
        Config { rebuild: true, max_dirty_age: Duration::ZERO, ..still(300 << 10, "always") };
    let mut fixture = Fixture::new(config);
    for round in 0..6_u64 {
        std::thread::scope(|scope| {
            for writer in 0..3_u64 {
                let fixture = &fixture;
                scope.spawn(move || program(fixture, writer, round));
            }
            for _ in 0..5 {
                fixture.flush();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let want: Vec<_> =
            (0..3).map(|writer| fixture.read(NAMES[writer], 0, at(2 * FILE))).collect();
        match round % 3 {
            0 => fixture.crash(),
            1 => fixture.close_dirty(),
            _ => fixture.close(),
        }
        fixture.open();
        for (name, want) in NAMES.iter().zip(want) {
            assert!(fixture.read(name, 0, at(2 * FILE)) == want, "{name} in round {round}");
        }
        no_conflict(&fixture);
    }
    fixture.close();
}

const NAMES: [&str; 3] = ["one", "two", "three"];

fn program(fixture: &Fixture, writer: u64, round: u64) {
    let (engine, name) = (fixture.engine(), NAMES[at(writer)]);
    let (root, other) = (engine.root(), format!("{name}.other"));
    let mut state = writer * 7919 + round * 104_729 + 1;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    drop(fixture.handle(name));
    let mut held = Vec::new();
    for step in 0..300_u32 {
        let seed = u8::try_from(step % 251).unwrap();
        let (offset, len) = (next(180 * KIB), next(20 * KIB) + 1);
        let set =
            |change: SetAttr| engine.set_attr(&fixture.vnode(name), None, &change, ME).unwrap();
        match next(16) {
            0 => _ = set(SetAttr { size: Some(offset), ..SetAttr::default() }),
            1 => {
                let mode = Some(0o600 + u32::from(seed & 7));
                _ = set(SetAttr { mode, ..SetAttr::default() });
            }
            2 => {
                let mtime = Some(SetTime::At(std::time::UNIX_EPOCH + Duration::from_secs(offset)));
                _ = set(SetAttr { mtime, ..SetAttr::default() });
            }
            3 => {
                engine.rename((&root, name.as_ref()), (&root, other.as_ref()), 0, ME).unwrap();
                engine.rename((&root, other.as_ref()), (&root, name.as_ref()), 0, ME).unwrap();
            }
            4 => {
                engine.link(&fixture.vnode(name), &root, other.as_ref()).unwrap();
                engine.unlink(&root, other.as_ref(), ME).unwrap();
            }
            5 => {
                let handle = fixture.handle(name);
                let how = [Allocate::PunchHole, Allocate::Reserve, Allocate::ReserveKeepSize];
                engine.allocate(&handle, offset, len, how[at(next(3))]).unwrap();
            }
            6 => held.push(fixture.handle(name)),
            7 => held.clear(),
            8 => engine.fsync(&fixture.handle(name), false).unwrap(),
            9 => drop(fixture.read(name, offset, at(len))),
            10 if step % 7 == 0 => std::thread::sleep(Duration::from_millis(150)),
            11 => drop(fixture.evict(name)),
            _ => fixture.write(name, offset, &pattern(seed, offset, len)),
        }
    }
}

/// A name that goes moves the time of change of a file that has another: what was cached of it was
/// dropped as "changed behind the mount", at its every opening.
#[test]
fn what_only_the_mount_changed_stays_cached() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.others = true;
    fixture.write("file", 0, &pattern(1, 0, 32 * KIB));
    fixture.flush();
    let mapped = |fixture: &Fixture| fixture.engine().status().mapped_bytes;
    {
        let engine = fixture.engine();
        let (root, vnode) = (engine.root(), fixture.vnode("file"));
        engine.link(&vnode, &root, "second".as_ref()).unwrap();
        engine.link(&vnode, &root, "third".as_ref()).unwrap();
        engine.unlink(&root, "second".as_ref(), ME).unwrap();
        fixture.read("file", 0, 1);
        assert_eq!(mapped(&fixture), 32 * KIB);
        engine.create((&root, "fourth".as_ref()), 0o644, libc::O_RDWR, crate::fixture::BY).unwrap();
        engine.rename((&root, "fourth".as_ref()), (&root, "third".as_ref()), 0, ME).unwrap();
        fixture.read("file", 0, 1);
        assert_eq!(mapped(&fixture), 32 * KIB);
    }
    fixture.close();
    fixture.open();
    fixture.read("file", 0, 1);
    assert_eq!(mapped(&fixture), 32 * KIB);
    fixture.close();

    // A file that others changed once is theirs once.
    let mut file = File::options().append(true).open(origin_path(&fixture)).unwrap();
    file.write_all(b"more").unwrap();
    drop(file);
    fixture.open();
    for _ in 0..2 {
        fixture.read("file", 0, 64 << 10);
        fixture.engine().fetch_wanted().unwrap();
        fixture.close();
        fixture.open();
    }
    fixture.read("file", 0, 1);
    assert_eq!(mapped(&fixture), 32 * KIB + 4);
    fixture.close();
}
