//! A migration leaves the times of directories alone (docs/SEMANTICS.md).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halocline_vfs::{Engine, Make, SetAttr, SetTime, Stat};

use crate::fixture::{BY, CALLER, Fixture, limited};

/// Times of a directory as programs see them.
fn times(stat: &Stat) -> [(i64, i64); 2] {
    let raw = &stat.raw;
    [(raw.st_mtime, raw.st_mtime_nsec), (raw.st_ctime, raw.st_ctime_nsec)]
}

fn looked_at(fixture: &Fixture, dir: &str) -> [(i64, i64); 2] {
    let vnode = fixture.vnode(dir).unwrap();
    let found = times(&fixture.tier().stat(&vnode, None).unwrap());
    if !dir.is_empty() {
        let (parent, name) = fixture.at(dir);
        let (_, stat) = fixture.tier().lookup(&parent, name).unwrap();
        assert_eq!(times(&stat), found, "however it is looked at");
    }
    found
}

fn in_a_directory() -> Fixture {
    let fixture = Fixture::new(limited(64 << 20));
    let tier = fixture.tier();
    tier.make((&tier.root(), "d".as_ref()), Make::Directory(0o755), BY).unwrap();
    fixture.write("d/file", b"bytes");
    fixture
}

/// Clocks of file systems may stand still for some milliseconds.
fn a_tick() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn moves_leave_the_times_of_directories_alone() {
    let mut fixture = in_a_directory();
    let before = looked_at(&fixture, "d");
    for _ in 0..3 {
        a_tick();
        assert_eq!(fixture.demote("d/file").files, 1);
        assert_eq!(looked_at(&fixture, "d"), before, "after a demote");
        a_tick();
        assert_eq!(fixture.warm("d/file").files, 1);
        assert_eq!(looked_at(&fixture, "d"), before, "after a promote");
    }
    assert_eq!(fixture.demote("d/file").files, 1);
    fixture.open();
    assert_eq!(looked_at(&fixture, "d")[0], before[0], "also after the next mount");
    let real = fs::metadata(fixture.ssd("d")).unwrap();
    assert_eq!((real.mtime(), real.mtime_nsec()), before[0], "and without us");
}

#[test]
fn programs_see_the_directory_times_of_their_own_changes() {
    let fixture = in_a_directory();
    let tier = fixture.tier();
    fixture.demote("d/file");
    let before = looked_at(&fixture, "d");
    a_tick();
    fixture.write("d/new", b"");
    let created = looked_at(&fixture, "d");
    assert!(created[0] > before[0] && created[1] > before[1], "{before:?} {created:?}");
    a_tick();
    fixture.warm("d/file");
    assert_eq!(looked_at(&fixture, "d"), created);
    a_tick();
    let vnode = fixture.vnode("d").unwrap();
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let changed = times(&tier.set_attr(&vnode, None, &mode, CALLER).unwrap());
    assert!(changed[0] == created[0] && changed[1] > created[1], "a mode is not a modification");
    assert_eq!(looked_at(&fixture, "d"), changed);
    a_tick();
    fixture.demote("d/file");
    assert_eq!(looked_at(&fixture, "d"), changed);
}

/// A mode that was changed in the same tick of the clock as a move has the move's own time.
#[test]
fn a_change_in_the_tick_of_a_move_is_seen() {
    let fixture = in_a_directory();
    let tier = fixture.tier();
    let vnode = fixture.vnode("d").unwrap();
    for _ in 0..20 {
        a_tick();
        let before = looked_at(&fixture, "d");
        fixture.demote("d/file");
        let change = SetAttr { uid: Some(0), ..SetAttr::default() };
        tier.set_attr(&vnode, None, &change, CALLER).unwrap();
        assert!(looked_at(&fixture, "d")[1] > before[1], "an owner was set");
        fixture.warm("d/file");
    }
}

/// Never an older time after a newer change, and none but that of a change.
#[test]
fn a_directorys_time_never_goes_back_while_files_move() {
    let fixture = in_a_directory();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                fixture.demote("d/file");
                fixture.warm("d/file");
            }
        });
        let (tier, vnode) = (fixture.tier(), fixture.vnode("d").unwrap());
        for round in 0..150 {
            let name = format!("d/{round}");
            fixture.write(&name, b"");
            let created = looked_at(&fixture, "d");
            let new = tier.stat(&fixture.vnode(&name).unwrap(), None).unwrap();
            let born = (new.raw.st_mtime, new.raw.st_mtime_nsec);
            assert!(created[0] >= born, "round {round}: {created:?} is older than {born:?}");
            for _ in 0..5 {
                assert_eq!(looked_at(&fixture, "d"), created, "round {round}");
            }
            let old = SetAttr {
                mtime: Some(SetTime::At(std::time::UNIX_EPOCH + Duration::from_secs(round))),
                ..SetAttr::default()
            };
            tier.set_attr(&vnode, None, &old, CALLER).unwrap();
            assert_eq!(looked_at(&fixture, "d")[0], (round.cast_signed(), 0), "a set time stays");
        }
        ended.store(true, Ordering::Release);
    });
}
