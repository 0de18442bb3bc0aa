//! What moves copy: every byte in its place, holes as holes, past the page cache where that goes.

use std::cell::RefCell;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::crashes::Countdown;
use super::*;
use crate::copy::{self, End, Expected};
use crate::steps::Steps;
use crate::steps::watch::{self, Watch};
use halocline_vfs::SetAttr;

const MIB: usize = 1 << 20;
const PAST: &str = "copying past the page cache";

pub(super) type Fails = (&'static str, Errno);

/// Notes steps, and fails some each time.
struct Noted {
    fails: Vec<Fails>,
    seen: Rc<RefCell<Vec<&'static str>>>,
}

impl Watch for Noted {
    fn before(&mut self, _tier: usize, what: &'static str) -> Option<Errno> {
        self.seen.borrow_mut().push(what);
        self.fails.iter().find(|(step, _)| *step == what).map(|(_, errno)| *errno)
    }
}

/// Does something and tells of its steps, some of which fail.
pub(super) fn noting(fails: &[Fails], act: impl FnOnce()) -> Vec<&'static str> {
    let seen = Rc::default();
    watch::set(Some(Box::new(Noted { fails: fails.to_vec(), seen: Rc::clone(&seen) })));
    act();
    watch::set(None);
    seen.take()
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
    let node = fixture.node(path).unwrap();
    fixture.tier().set_attr(&node, Some(&handle), &sized, CALLER).unwrap();
    whole
}

/// Long and short stretches of data, unaligned ends, a hole at the end.
const PLACES: &[(usize, usize)] =
    &[(0, 100), (MIB, 3 * MIB + 5000), (6 * MIB, 8192), (8 * MIB, 9 * MIB + 4097)];
const SIZE: usize = 18 * MIB + 77;

/// On a file system that is quick to sync, if there is one.
fn of_places() -> (Fixture, Vec<u8>) {
    let quick = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    within(quick)
}

fn within(dir: TempDir) -> (Fixture, Vec<u8>) {
    let fixture = Fixture::within(dir, &["ssd", "hdd"], limited(64 << 20));
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
    let (fixture, whole) = within(tempfile::tempdir().unwrap());
    let blocks = fs::metadata(fixture.ssd("file")).unwrap().blocks();
    let steps = noting(&[], || assert_eq!(fixture.demote("file").skipped, []));
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
    let steps = noting(&[], || assert_eq!(fixture.warm("file").skipped, []));
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
            let steps = noting(&[(what, errno)], || {
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
    noting(&full, || {
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
        watch::set(Some(Box::new(Countdown(count))));
        let moved = catch_unwind(AssertUnwindSafe(|| fixture.demote("file")));
        watch::set(None);
        if moved.is_ok() {
            assert!(count > 8, "only {count} steps");
            break;
        }
        fixture.open();
        fixture.assert_in_order(&|| format!("killed after {count} steps"));
        assert_whole(&fixture, &whole, "killed");
    }
}

/// A program adds bytes behind a hole while the file is copied: they are none of the copy's.
#[test]
fn data_behind_the_end_that_a_file_had_is_left_out() {
    let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    from.write_all_at(b"added", 8 << 20).unwrap();
    let steps = Steps::new(1);
    let end = |file| End { file, steps: &steps };
    copy::contents(end(&from), end(&to), 1 << 20, Expected::NotSoon, &mut |_| true).unwrap();
    assert_eq!(to.metadata().unwrap().len(), 1 << 20);
}
