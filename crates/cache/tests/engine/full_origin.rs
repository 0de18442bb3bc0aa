//! An origin that is nearly full: write-back never accepts what the origin cannot take, and says
//! what to do where the origin refuses a flush.

use std::ffi::OsStr;
use std::fs;
use std::sync::Arc;
use std::thread;

use halocline_api::config::{Config, VolumeKind, VolumeShape};
use halocline_api::control::{Controlled, Health};
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_storage::volume::Origin;
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, Make};

use crate::fixture::{BY, Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An engine over an origin that holds `limit` bytes.
fn small(limit: u64) -> Fixture {
    let mut fixture = Fixture::in_memory(still(64 * MIB, "always"));
    fixture.close();
    fixture.origin_limit = Some(limit);
    fixture.open();
    fixture
}

fn dirty(fixture: &Fixture) -> u64 {
    fixture.engine().status().dirty_bytes
}

/// Writes pieces of `piece` bytes, `step` bytes apart, until the program is told that there is no
/// room; answers how many were accepted.
fn fill(fixture: &Fixture, name: &str, (piece, step): (u64, u64)) -> u64 {
    let handle = fixture.handle(name);
    for turn in 0.. {
        let data = pattern(7, turn * step, piece);
        match fixture.engine().write(&handle, turn * step, &data, ME) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC);
                return turn;
            }
        }
    }
    unreachable!("the origin is small");
}

#[track_caller]
fn is_on_origin(fixture: &Fixture, name: &str, turns: u64, (piece, step): (u64, u64)) {
    let found = fs::read(fixture.origin.path().join(name)).unwrap();
    for turn in 0..turns {
        let part = &found[at(turn * step)..at(turn * step + piece)];
        assert!(part == pattern(7, turn * step, piece), "{name}: piece {turn}");
    }
}

/// 16 MiB were accepted for an origin of 8.
#[test]
fn i4_what_is_accepted_fits_the_origin() {
    for shape in [(64 * KIB, 64 * KIB), (1000, 64 * KIB), (5000, 5000), (100, 8 * KIB)] {
        let mut fixture = small(8 * MIB);
        let turns = fill(&fixture, "file", shape);
        assert!(dirty(&fixture) > 0, "some of it is on the cache");
        let blocks = if shape.1 < 8 * KIB { turns * shape.0 } else { turns * shape.0.max(4 * KIB) };
        assert!(blocks > 7 * MIB, "{shape:?}: the origin is used: {blocks}");
        let report = fixture.flush();
        assert_eq!((report.left_bytes, report.skipped.len()), (0, 0), "{shape:?}: {report:?}");
        is_on_origin(&fixture, "file", turns, shape);
        fixture.close();
    }
}

#[test]
fn i4_what_several_are_told_is_written_fits_the_origin() {
    let mut fixture = small(8 * MIB);
    let shape = (16 * KIB, 16 * KIB);
    let names = ["a", "b", "c", "d"];
    for name in names {
        fixture.write(name, 0, b"made");
    }
    let turns: Vec<u64> = thread::scope(|scope| {
        let fill = |name| {
            let fixture = &fixture;
            scope.spawn(move || fill(fixture, name, shape))
        };
        let all: Vec<_> = names.into_iter().map(fill).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.skipped.len()), (0, 0), "{report:?}");
    for (name, turns) in names.into_iter().zip(turns) {
        is_on_origin(&fixture, name, turns, shape);
    }
    fixture.close();
}

#[test]
fn what_the_origin_has_blocks_for_is_cached_though_it_is_full() {
    let mut fixture = small(8 * MIB);
    let turns = fill(&fixture, "file", (64 * KIB, 64 * KIB));
    fixture.flush();
    fixture.evict("file");
    let newer = pattern(8, 0, MIB);
    fixture.write("file", 0, &newer);
    assert_eq!(dirty(&fixture), MIB, "no new space is needed");
    // Clean ones, too.
    fixture.flush();
    fixture.write("file", 0, &newer);
    assert_eq!(dirty(&fixture), MIB);
    let handle = fixture.handle("file");
    let more = fixture.engine().write(&handle, turns * 64 * KIB, &newer, ME);
    assert_eq!(more.unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(fixture.flush().left_bytes, 0);
    fixture.close();
}

/// A hole that was read is cached as zeros: writing there needs a block nevertheless.
#[test]
fn i4_a_cached_hole_is_no_space() {
    let mut fixture = small(4 * MIB);
    drop(fixture.handle("file"));
    fixture.truncate("file", 16 * MIB);
    fixture.warm("file");
    let turns = fill(&fixture, "file", (64 * KIB, 64 * KIB));
    assert!(turns <= 64, "{turns}");
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.skipped.len()), (0, 0), "{report:?}");
    is_on_origin(&fixture, "file", turns, (64 * KIB, 64 * KIB));
    fixture.close();
}

/// `fallocate` took what was promised to dirty bytes, and their flush failed.
#[test]
fn i4_reserved_blocks_are_none_that_dirty_bytes_need() {
    for how in [Allocate::Reserve, Allocate::ReserveKeepSize] {
        let mut fixture = small(8 * MIB);
        fixture.write("file", 0, &pattern(1, 0, 6 * MIB));
        assert_eq!(dirty(&fixture), 6 * MIB);
        let other = fixture.handle("other");
        let reserve = |handle, len| fixture.engine().allocate(handle, 0, len, how);
        assert_eq!(reserve(&other, 4 * MIB).unwrap_err().errno(), libc::ENOSPC, "{how:?}");
        reserve(&other, MIB).unwrap();
        drop(other);
        let report = fixture.flush();
        assert_eq!((report.left_bytes, report.skipped.len()), (0, 0), "{how:?}: {report:?}");
        fixture.close();
    }
}

/// What is dirty has its space: a program may make sure of it.
#[test]
fn what_is_dirty_can_be_reserved_though_the_origin_has_no_more() {
    let mut fixture = small(8 * MIB);
    let turns = fill(&fixture, "file", (64 * KIB, 64 * KIB));
    let whole = fixture.handle("file");
    fixture.engine().allocate(&whole, 0, turns * 64 * KIB, Allocate::Reserve).unwrap();
    drop(whole);
    assert_eq!(fixture.flush().left_bytes, 0);
    is_on_origin(&fixture, "file", turns, (64 * KIB, 64 * KIB));
    fixture.close();
}

#[test]
fn i4_names_and_attributes_leave_dirty_bytes_their_room() {
    let mut fixture = small(8 * MIB);
    fill(&fixture, "file", (4 * KIB, 4 * KIB));
    assert!(dirty(&fixture) > 0);
    let (engine, root) = (Arc::clone(fixture.engine()), fixture.engine().root());
    let vnode = fixture.vnode("file");
    let no_room = |answer: halocline_os::error::Result<()>| {
        assert_eq!(answer.unwrap_err().errno(), libc::ENOSPC);
    };
    no_room(engine.make((&root, "dir".as_ref()), Make::Directory(0o755), BY).map(drop));
    no_room(engine.create((&root, "new".as_ref()), 0o644, libc::O_RDWR, BY).map(drop));
    no_room(engine.link(&vnode, &root, "other".as_ref()).map(drop));
    no_room(engine.set_xattr(&vnode, "user.a".as_ref(), b"value", 0));
    assert_eq!(fixture.flush().left_bytes, 0);
    // Nothing is promised any more: the origin answers by itself.
    engine.make((&root, "dir".as_ref()), Make::Directory(0o755), BY).unwrap();
    drop(engine);
    fixture.close();
}

#[test]
fn a_flush_that_the_origin_has_no_room_for_says_what_to_do() {
    for (errno, remedy) in [(libc::ENOSPC, "free some"), (libc::EDQUOT, "raise it")] {
        let mut fixture = small(64 * MIB);
        fixture.write("file", 0, &pattern(1, 0, 64 * KIB));
        fixture.origin_faults.set(Some(Operation::Write), Effect::Errno(errno), When::Always);
        let report = fixture.flush();
        assert_eq!(report.left_bytes, 64 * KIB);
        let said = &report.skipped[0].reason;
        assert!(said.contains(remedy) && said.contains("`halocline flush`"), "{said}");
        let status = fixture.engine().status();
        assert!(matches!(status.health, Health::Full { .. }), "{:?}", status.health);
        assert!(status.notes.iter().any(|note| note.starts_with("file: ")), "{:?}", status.notes);
        fixture.origin_faults.clear();
        // What needs new space goes straight to the origin until a flush is seen to work.
        fixture.write("other", 0, &pattern(2, 0, 64 * KIB));
        assert_eq!(dirty(&fixture), 64 * KIB);
        assert_eq!(fixture.flush().left_bytes, 0);
        fixture.write("third", 0, &pattern(3, 0, 64 * KIB));
        assert_eq!(dirty(&fixture), 64 * KIB, "there is room again");
        assert!(matches!(fixture.engine().status().health, Health::Ok));
        fixture.close();
    }
}

/// Removed data is on the servers until its name is durably gone, which a program that removes and writes does not notice.
#[test]
fn what_was_removed_of_a_full_striped_origin_is_room_for_the_next_write() {
    for policy in ["always", "never"] {
        let origin = VolumeShape { kind: VolumeKind::Striped, servers: 1, stripe: 4 * KIB };
        let mut fixture = Fixture::in_memory(Config { origin, ..still(64 * MIB, policy) });
        fixture.close();
        fixture.origin_limit = Some(8 * MIB);
        fixture.open();
        let data = pattern(3, 0, 5 * MIB);
        for turn in 0..4 {
            let name = format!("file-{turn}");
            fixture.write(&name, 0, &data);
            assert_eq!(fixture.flush().left_bytes, 0, "{policy}, turn {turn}");
            assert!(fixture.read(&name, 0, data.len()) == data);
            // As the kernel does.
            let _known = fixture.vnode(&name);
            fixture.engine().unlink(&fixture.engine().root(), OsStr::new(&name), ME).unwrap();
        }
        fixture.close();
        assert_eq!(Origin::open_volume(fixture.origin.path()).unwrap().object_count().unwrap(), 0);
    }
}
