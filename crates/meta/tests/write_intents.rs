//! Write intents: the first write into a clean extent records a stretch around it as dirty, and the next
//! ones there record nothing.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_meta::load::Shutdown;
use halocline_meta::table::{ExtentTable, Options, STORE_DIR};
use halocline_meta::{BLOCK, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const FILE: FileId = FileId(1);
const ALL: ByteRange = ByteRange::new(0, u64::MAX);
/// Blocks in a write intent, and in the cache.
const INTENT: u64 = 8;
const LIMIT: u64 = 32;

fn open(dir: &Path, boot: &str) -> (ExtentTable, Shutdown) {
    static CLOCK: AtomicU64 = AtomicU64::new(1_000_000);
    let options = Options {
        intent_bytes: INTENT * BLOCK,
        clock: Box::new(|| CLOCK.fetch_add(1, Relaxed)),
        ..Options::new(LIMIT * BLOCK, Box::<Lru>::default(), 16)
    };
    let (dmt, recovery) = ExtentTable::open_on_boot(dir, options, boot).unwrap();
    (dmt, recovery.last_shutdown)
}

/// A cache with one clean extent of the file's first `count` blocks.
fn with_clean(count: u64) -> (tempfile::TempDir, ExtentTable) {
    let dir = tempfile::tempdir().unwrap();
    let (dmt, _) = open(dir.path(), "boot");
    assert_eq!(
        dmt.files().register(OriginKey { inode: 1, born_ns: 0 }, Path::new("a")).unwrap(),
        FILE
    );
    assert!(dmt.blocks().reserve(FILE, blocks(0, count), HERE));
    dmt.changes().map(FILE, blocks(0, count), HERE, false).unwrap();
    (dir, dmt)
}

const fn blocks(first: u64, count: u64) -> ByteRange {
    ByteRange::at(first * BLOCK, count * BLOCK)
}

/// Extents as (first block, blocks, dirty).
fn extents(dmt: &ExtentTable) -> Vec<(u64, u64, bool)> {
    let extents = dmt.index().extents(FILE).into_iter();
    extents.map(|e| (e.range.start / BLOCK, e.range.len() / BLOCK, e.dirty)).collect()
}

/// The same of what a crash would leave.
fn recorded(dmt: &ExtentTable) -> Vec<(u64, u64, bool)> {
    let records = dmt.index().recorded(FILE).into_iter();
    records.map(|r| (r.0.start / BLOCK, r.0.len() / BLOCK, r.2.is_some())).collect()
}

fn flush(dmt: &ExtentTable) -> u64 {
    let dirty = dmt.index().dirty(FILE, ALL, usize::MAX);
    let list: Vec<_> = dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
    dmt.changes().mark_clean(FILE, &list).unwrap() / BLOCK
}

fn barrier(dmt: &ExtentTable) {
    dmt.cut();
    dmt.barrier().unwrap();
}

fn evicts(dmt: &ExtentTable, count: u64) -> bool {
    !dmt.evictor().evict(count * BLOCK, None, &mut |_, _| true).unwrap().is_empty()
}

#[test]
fn i4_a_write_into_a_clean_extent_records_the_stretch_around_it_first() {
    let (dir, dmt) = with_clean(20);
    dmt.changes().mark_dirty(FILE, blocks(9, 1)).unwrap();
    assert_eq!(
        extents(&dmt),
        [(0, 8, false), (8, 1, false), (9, 1, true), (10, 6, false), (16, 4, false)]
    );
    let with_intent = [(0, 8, false), (8, 8, true), (16, 4, false)];
    assert_eq!(recorded(&dmt), with_intent);
    // More writes into it: exactly they are dirty, and the record says so already.
    dmt.changes().mark_dirty(FILE, blocks(12, 2)).unwrap();
    dmt.changes().mark_dirty(FILE, blocks(8, 1)).unwrap();
    assert_eq!(recorded(&dmt), with_intent);
    let usage = dmt.index().usage();
    assert_eq!((usage.dirty / BLOCK, usage.held / BLOCK), (4, 4));
    drop(dmt);
    let (dmt, left) = open(dir.path(), "boot");
    assert_eq!((left, extents(&dmt)), (Shutdown::Crashed, with_intent.to_vec()));
    assert_eq!(flush(&dmt), 8, "after a crash all of the stretch goes to the origin");
}

#[test]
fn writes_into_a_write_intent_add_no_record() {
    let (dir, dmt) = with_clean(INTENT);
    dmt.changes().mark_dirty(FILE, blocks(0, 1)).unwrap();
    let log = || std::fs::read(dir.path().join(STORE_DIR).join("log-0000000000000001")).unwrap();
    let before = log();
    for block in 1..INTENT - 1 {
        dmt.changes().mark_dirty(FILE, blocks(block, 1)).unwrap();
    }
    assert!(log() == before, "a record was written");
    flush(&dmt);
    assert!(log() != before, "records are written there");
}

#[test]
fn only_what_was_written_is_flushed_and_then_the_stretch_is_one_extent_again() {
    let (dir, dmt) = with_clean(INTENT);
    for block in [1, 4, 5] {
        dmt.changes().mark_dirty(FILE, blocks(block, 1)).unwrap();
    }
    // One is written again during the flush.
    let dirty = dmt.index().dirty(FILE, ALL, usize::MAX);
    let list: Vec<_> = dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
    dmt.changes().mark_dirty(FILE, blocks(4, 1)).unwrap();
    assert_eq!(dmt.changes().mark_clean(FILE, &list).unwrap(), 2 * BLOCK, "I3: it stays dirty");
    assert_eq!(recorded(&dmt), [(0, INTENT, true)]);
    assert_eq!(flush(&dmt), 1);
    assert_eq!((extents(&dmt), dmt.index().usage().held), (vec![(0, INTENT, false)], 0));
    drop(dmt);
    let (dmt, _) = open(dir.path(), "boot");
    assert_eq!(extents(&dmt), [(0, INTENT, false)]);
}

#[test]
fn i2_what_is_recorded_as_dirty_is_not_evicted_before_it_is_recorded_otherwise() {
    let (dir, dmt) = with_clean(INTENT);
    barrier(&dmt);
    dmt.changes().mark_dirty(FILE, blocks(3, 1)).unwrap();
    barrier(&dmt);
    assert!(!evicts(&dmt, 1), "the power could fail, and the record bring it back");
    // Now that somebody wants room, the next barrier makes some.
    dmt.cut();
    assert!(!evicts(&dmt, 1), "recorded, but not durably");
    dmt.barrier().unwrap();
    assert_eq!(recorded(&dmt), [(0, 3, false), (3, 1, true), (4, 4, false)]);
    assert!(evicts(&dmt, 7));
    assert_eq!((extents(&dmt), dmt.index().usage().held), (vec![(3, 1, true)], 0));
    drop(dmt);
    let (dmt, left) = open(dir.path(), "next boot");
    assert_eq!((left, extents(&dmt)), (Shutdown::PowerLost, vec![(3, 1, true)]));
}

#[test]
fn i2_blocks_unmapped_from_a_write_intent_are_freed_after_a_barrier() {
    let (dir, dmt) = with_clean(INTENT);
    dmt.changes().mark_dirty(FILE, blocks(6, 1)).unwrap();
    barrier(&dmt);
    dmt.changes().unmap(FILE, blocks(1, 4)).unwrap();
    assert_eq!(dmt.blocks().take_discards(), [], "the record of them may come back");
    let left = [(0, 1, false), (5, 1, false), (6, 1, true), (7, 1, false)];
    assert_eq!((extents(&dmt), recorded(&dmt)), (left.to_vec(), left.to_vec()));
    assert!(!evicts(&dmt, 1), "so may that of the rest");
    barrier(&dmt);
    let due: Vec<_> = dmt.blocks().take_discards().iter().map(|discard| discard.range).collect();
    assert_eq!(due, [blocks(1, 4)]);
    assert!(evicts(&dmt, 3));
    drop(dmt);
    let (dmt, _) = open(dir.path(), "boot");
    assert_eq!(extents(&dmt), [(6, 1, true)]);
}

#[test]
fn a_clean_close_leaves_no_more_dirty_than_there_is() {
    let (dir, dmt) = with_clean(INTENT);
    dmt.changes().mark_dirty(FILE, blocks(3, 1)).unwrap();
    dmt.close().unwrap();
    drop(dmt);
    let (dmt, left) = open(dir.path(), "boot");
    let exact = vec![(0, 3, false), (3, 1, true), (4, 4, false)];
    assert_eq!((left, extents(&dmt)), (Shutdown::Closed, exact));
}

#[test]
fn what_a_power_loss_keeps_of_a_write_intent_is_what_its_barrier_covered() {
    let (dir, dmt) = with_clean(2 * INTENT);
    dmt.changes().mark_dirty(FILE, blocks(3, 1)).unwrap();
    barrier(&dmt);
    dmt.changes().mark_dirty(FILE, blocks(INTENT + 3, 1)).unwrap();
    // In the first intent, after its barrier: what replaces it must be durable first (I4).
    dmt.changes().mark_dirty(FILE, blocks(5, 1)).unwrap();
    assert!(
        dmt.changes().promised(FILE, blocks(5, 1))
            && !dmt.changes().promised(FILE, blocks(INTENT + 3, 1))
    );
    drop(dmt);
    let (dmt, left) = open(dir.path(), "next boot");
    assert_eq!((left, extents(&dmt)), (Shutdown::PowerLost, vec![(0, INTENT, true)]));
}
