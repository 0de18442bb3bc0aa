//! What moves copy: every byte in its place, holes as holes, past the page cache where that goes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use halocline_os::error::Result;
use halocline_tier::Watcher;
use halocline_vfs::{Engine, SetAttr};

use crate::crashes::Countdown;
use crate::fixture::{CALLER, Fixture, limited};

const MIB: usize = 1 << 20;
const PAST: &str = "copying past the page cache";

pub(super) type Fails = (&'static str, Errno);

/// Notes steps, and fails some each time.
#[derive(Debug)]
struct Noted {
    fails: Vec<Fails>,
    seen: Mutex<Vec<&'static str>>,
}

impl Watcher for Noted {
    fn before(&self, _tier: usize, what: &'static str) -> Result<()> {
        self.seen.lock().push(what);
        let fails = self.fails.iter().find(|(step, _)| *step == what);
        fails.map_or(Ok(()), |(_, errno)| Err((*errno).into()))
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

/// Does something and tells of the steps in that, some of which fail.
pub(super) fn noting(fixture: &Fixture, fails: &[Fails], act: impl FnOnce()) -> Vec<&'static str> {
    let noted = Arc::new(Noted { fails: fails.to_vec(), seen: Mutex::default() });
    fixture.watch(noted.clone());
    act();
    fixture.unwatch();
    std::mem::take(&mut noted.seen.lock())
}

/// Contents without any repetition that a misplaced block could hide behind.
fn distinct(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (word, place) in (0xa5a5_a5a5_a5a5_u64..).zip(bytes.chunks_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
    }
    bytes
}

/// A file on the SSD with data where `data` says (begin, length in bytes), holes elsewhere; its
/// whole content.
fn sparse(fixture: &Fixture, path: &str, size: usize, data: &[(usize, usize)]) -> Vec<u8> {
    let (bytes, handle) = (distinct(size), fixture.create(path));
    let mut whole = vec![0; size];
    for &(at, len) in data {
        whole[at..at + len].copy_from_slice(&bytes[at..at + len]);
        fixture.tier().write(&handle, at as u64, &bytes[at..at + len], CALLER).unwrap();
    }
    let sized = SetAttr { size: Some(size as u64), ..SetAttr::default() };
    let vnode = fixture.vnode(path).unwrap();
    fixture.tier().set_attr(&vnode, Some(&handle), &sized, CALLER).unwrap();
    whole
}

/// Long and short stretches of data, unaligned ends, a hole at the end.
const PLACES: &[(usize, usize)] =
    &[(0, 100), (MIB, 3 * MIB + 5000), (6 * MIB, 8192), (8 * MIB, 9 * MIB + 4097)];
const SIZE: usize = 18 * MIB + 77;

/// On a file system that is quick to sync, if there is one.
fn of_places() -> (Fixture, Vec<u8>) {
    with_places(Fixture::quick(limited(64 << 20)))
}

fn with_places(fixture: Fixture) -> (Fixture, Vec<u8>) {
    let whole = sparse(&fixture, "file", SIZE, PLACES);
    (fixture, whole)
}

fn assert_whole(fixture: &Fixture, whole: &[u8], context: &str) {
    let found = fixture.content("file").expect("it is there");
    assert!(found == whole, "{context}: {} bytes are not the {}", found.len(), whole.len());
}

/// What leaves goes past the page cache, what comes does not, and neither changes a byte or fills
/// a hole.
#[test]
fn every_byte_and_every_hole_is_in_its_place() {
    let (fixture, whole) = with_places(Fixture::new(limited(64 << 20)));
    let blocks = fs::metadata(fixture.ssd("file")).unwrap().blocks();
    let steps = noting(&fixture, &[], || assert_eq!(fixture.demote("file").skipped, []));
    assert_whole(&fixture, &whole, "demoted");
    let below = fs::metadata(fixture.hdd("file")).unwrap().blocks();
    assert!(below < blocks + 64, "holes stay holes: {blocks} blocks became {below}");
    // Two stretches are long; the second is copied in two pieces.
    let count = |what| steps.iter().filter(|step| **step == what).count();
    assert_eq!(count("allocating a copy"), 2);
    if let Err(errno) = direct(&fixture) {
        assert_eq!((errno, count(PAST)), (Errno::INVAL, 0));
    } else {
        assert!(count(PAST) == 3, "{steps:?}");
    }
    let steps = noting(&fixture, &[], || assert_eq!(fixture.warm("file").skipped, []));
    assert_whole(&fixture, &whole, "promoted");
    assert!(!steps.contains(&PAST), "it is about to be used: {steps:?}");
    fixture.check_places();
}

/// Whether the lower tier's file system has direct writes.
fn direct(fixture: &Fixture) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::DIRECT;
    openat(CWD, fixture.hdd("file"), flags, Mode::empty()).map(drop)
}

/// File systems without direct writes (tmpfs before Linux 6.6), without `fallocate`, with larger
/// blocks, and devices that fail there: the other ways of copying are taken.
#[test]
fn where_the_page_cache_cannot_be_passed_by_files_move_all_the_same() {
    for what in ["allocating a copy", "opening a copy for direct writes", PAST] {
        for errno in [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSPC, Errno::IO] {
            let (fixture, whole) = of_places();
            let steps = noting(&fixture, &[(what, errno)], || {
                assert_eq!(fixture.demote("file").skipped, [], "{what}: {errno}");
            });
            let tried = steps.iter().filter(|step| **step == what).count();
            assert!(tried <= 1, "what is refused once is not tried again: {steps:?}");
            assert_whole(&fixture, &whole, what);
            fixture.check_places();
        }
    }
}

/// A disk that is full is told of as such, and what was copied is taken back.
#[test]
fn a_full_disk_keeps_a_large_file_where_it_is() {
    let (fixture, whole) = of_places();
    let full = [("allocating a copy", Errno::NOSPC), ("copying in the kernel", Errno::NOSPC)];
    noting(&fixture, &full, || {
        let kept = fixture.demote("file").skipped;
        assert!(kept.len() == 1 && kept[0].reason.contains("no room"), "{kept:?}");
    });
    assert_eq!(fixture.where_is("file"), 0);
    assert_whole(&fixture, &whole, "kept");
    fixture.check_places();
}

/// I10: a kill at any step of a long copy leaves the file where it was, or moved.
#[test]
fn i10_a_kill_while_a_large_file_is_copied_costs_nothing() {
    for count in 0.. {
        let (mut fixture, whole) = of_places();
        fixture.watch(Countdown::of(count));
        let moved = catch_unwind(AssertUnwindSafe(|| fixture.demote("file")));
        fixture.unwatch();
        if moved.is_ok() {
            assert!(count > 8, "only {count} steps");
            break;
        }
        fixture.open();
        fixture.assert_in_order(&|| format!("killed after {count} steps"));
        assert_whole(&fixture, &whole, "killed");
    }
}
