//! The rules of the local DMT one by one: what may be evicted and discarded when, which races a
//! generation decides, names, ownership, refusals, and many threads at once.

#![expect(clippy::cast_possible_truncation, reason = "four parts of a small file")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_meta::load::Shutdown;
use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{BLOCK, CriticalRange, FileId, OriginKey, Stamp};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_os::error::Error;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const THERE: Placement = Placement { layout: Layout::OneDv, group: 2 };
const LIMIT: u64 = 16 * BLOCK;
const A: FileId = FileId(1);
const B: FileId = FileId(2);

fn options() -> Options {
    static CLOCK: AtomicU64 = AtomicU64::new(1_000_000);
    Options {
        clock: Box::new(|| CLOCK.fetch_add(1, Relaxed)),
        ..Options::new(LIMIT, Box::<Lru>::default(), 16)
    }
}

fn cache() -> (tempfile::TempDir, ExtentTable) {
    let dir = tempfile::tempdir().unwrap();
    let (dmt, _) = ExtentTable::open(dir.path(), options()).unwrap();
    for (inode, path) in [(1, "a"), (2, "b")] {
        dmt.files().register(OriginKey { inode, born_ns: 0 }, Path::new(path)).unwrap();
    }
    (dir, dmt)
}

fn blocks(first: u64, count: u64) -> ByteRange {
    ByteRange::at(first * BLOCK, count * BLOCK)
}

fn write(dmt: &ExtentTable, file: FileId, range: ByteRange, dirty: bool) {
    assert!(dmt.blocks().reserve(file, range, HERE));
    dmt.changes().map(file, range, HERE, dirty).unwrap();
}

fn flush(dmt: &ExtentTable, file: FileId) -> u64 {
    let dirty = dmt.index().dirty(file, ByteRange::new(0, u64::MAX), usize::MAX);
    let list: Vec<_> = dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
    dmt.changes().mark_clean(file, &list).unwrap()
}

fn barrier(dmt: &ExtentTable) {
    dmt.cut();
    dmt.barrier().unwrap();
}

/// Evicts with every lock granted; returns what is freed as (file, first block, blocks).
fn evict(dmt: &ExtentTable, count: u64) -> Vec<(FileId, u64, u64)> {
    let freed = dmt.evictor().evict(count * BLOCK, None, &mut |_, _| true).unwrap();
    freed.iter().map(|d| (d.file, d.range.start / BLOCK, d.range.len() / BLOCK)).collect()
}

#[test]
fn i3_a_flushed_extent_is_evictable_after_the_barrier_that_follows() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    assert_eq!(evict(&dmt, 1), [], "dirty");
    dmt.cut();
    assert_eq!(flush(&dmt, A), BLOCK);
    dmt.barrier().unwrap();
    assert_eq!(evict(&dmt, 1), [], "cleaned after the cut: the barrier did not cover it");
    barrier(&dmt);
    assert_eq!(evict(&dmt, 1), [(A, 0, 1)]);
}

#[test]
fn a_fetched_extent_is_evictable_at_once_unless_a_dirty_record_may_come_back() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    barrier(&dmt);
    dmt.changes().unmap(A, blocks(0, 1)).unwrap();
    write(&dmt, A, blocks(0, 1), false);
    assert_eq!(evict(&dmt, 1), [], "power loss could bring the dirty record back");
    write(&dmt, A, blocks(1, 1), false);
    assert_eq!(evict(&dmt, 1), [(A, 1, 1)]);
    barrier(&dmt);
    assert_eq!(evict(&dmt, 1), [(A, 0, 1)]);
}

#[test]
fn a_clean_neighbour_in_the_block_of_an_unmapped_dirty_range_waits_too() {
    let (_dir, dmt) = cache();
    write(&dmt, A, ByteRange::new(0, 100), true);
    write(&dmt, A, ByteRange::new(100, BLOCK), false);
    barrier(&dmt);
    dmt.changes().unmap(A, ByteRange::new(0, 100)).unwrap();
    assert_eq!(evict(&dmt, 1), []);
    barrier(&dmt);
    assert_eq!(evict(&dmt, 1), [(A, 0, 1)]);
}

#[test]
fn i2_unmapped_blocks_are_discarded_after_a_barrier_and_only_if_nothing_needs_them() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 3), true);
    dmt.changes().unmap(A, ByteRange::new(100, 3 * BLOCK)).unwrap();
    assert_eq!(dmt.blocks().take_discards(), [], "the unmapping is not durable");
    assert_eq!(dmt.index().usage().used, 3 * BLOCK, "I5: still on disk");
    barrier(&dmt);
    write(&dmt, A, blocks(2, 1), true);
    let due = dmt.blocks().take_discards();
    assert_eq!(due.iter().map(|d| d.range).collect::<Vec<_>>(), [blocks(1, 1)]);
    assert_eq!(dmt.blocks().take_discards(), [], "handed out once");
    dmt.blocks().discarded(&due[0]);
    assert_eq!(dmt.index().usage().used, 2 * BLOCK);
}

#[test]
fn i5_a_block_claimed_and_given_up_again_waits_for_its_own_discard() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    dmt.changes().unmap(A, blocks(0, 1)).unwrap();
    barrier(&dmt);
    let overtaken = dmt.blocks().take_discards();
    write(&dmt, A, blocks(0, 1), true);
    dmt.changes().unmap(A, blocks(0, 1)).unwrap();
    dmt.blocks().discarded(&overtaken[0]);
    assert_eq!(dmt.index().usage().used, BLOCK, "what was written since is still on disk");
    barrier(&dmt);
    dmt.blocks().discarded(&dmt.blocks().take_discards()[0]);
    assert_eq!(dmt.index().usage().used, 0);
}

#[test]
fn i5_a_block_counts_once_an_object_and_never_above_the_limit() {
    let (_dir, dmt) = cache();
    write(&dmt, A, ByteRange::new(0, 10), true);
    write(&dmt, A, ByteRange::new(20, 30), true);
    assert_eq!(dmt.index().usage().used, BLOCK, "shared");
    assert!(dmt.blocks().reserve(A, ByteRange::new(10, 20), THERE));
    assert_eq!(dmt.index().usage().used, 2 * BLOCK, "another object");
    assert!(!dmt.blocks().reserve(B, blocks(0, 15), HERE), "one block too many");
    assert!(dmt.blocks().reserve(B, blocks(0, 14), HERE));
    dmt.blocks().release(B, blocks(0, 14), HERE);
    assert_eq!(dmt.index().usage().used, LIMIT, "it may have been written");
    for discard in dmt.blocks().take_discards() {
        dmt.blocks().discarded(&discard);
    }
    assert_eq!(dmt.index().usage().used, 2 * BLOCK);
}

#[test]
fn i3_a_flush_clears_nothing_that_was_written_meanwhile() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    write(&dmt, A, blocks(1, 1), true);
    let read = dmt.index().dirty(A, blocks(0, 2), 9);
    dmt.changes().mark_dirty(A, ByteRange::at(5, 1)).unwrap();
    let list: Vec<_> = read.iter().map(|extent| (extent.range, extent.generation)).collect();
    assert_eq!(dmt.changes().mark_clean(A, &list).unwrap(), BLOCK);
    assert_eq!(dmt.index().dirty(A, blocks(0, 2), 9).len(), 1);
    assert_eq!(dmt.index().dirty(A, blocks(0, 2), 9)[0].range, blocks(0, 1));
}

#[test]
fn eviction_is_in_order_of_last_use_through_flushes_splits_and_restarts() {
    let (dir, dmt) = cache();
    for block in 0..4 {
        write(&dmt, A, blocks(block, 1), block % 2 == 0);
    }
    dmt.index().touch(A, blocks(1, 1));
    let mut found = Vec::new();
    dmt.index().lookup_used(A, blocks(3, 2), &mut found);
    assert_eq!(found.len(), 2, "a block that is mapped, and one that is not: {found:?}");
    flush(&dmt, A);
    barrier(&dmt);
    assert_eq!(evict(&dmt, 1), [(A, 0, 1)]);
    assert_eq!(evict(&dmt, 1), [(A, 2, 1)]);
    drop(dmt);
    let (dmt, _) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!(evict(&dmt, 2), [(A, 1, 1), (A, 3, 1)], "as far as the records know");
}

#[test]
fn eviction_is_all_or_nothing_and_respects_pins_locks_and_the_request() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 2), false);
    write(&dmt, B, blocks(0, 2), false);
    assert_eq!(evict(&dmt, 5), [], "not enough");
    dmt.evictor().pin(A, true);
    assert_eq!(evict(&dmt, 3), []);
    dmt.evictor().pin(A, false);
    let mut asked = Vec::new();
    let got = dmt
        .evictor()
        .evict(2 * BLOCK, Some((A, ByteRange::new(5, 6))), &mut |file, range| {
            asked.push((file, range));
            false
        })
        .unwrap();
    assert!(got.is_empty(), "no lock, no eviction");
    assert_eq!(asked, [(B, blocks(0, 2))], "what overlaps the request is not even locked");
    assert_eq!(evict(&dmt, 4).len(), 2);
}

#[test]
fn an_exchange_carries_both_trees_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (dmt, _) = ExtentTable::open(dir.path(), options()).unwrap();
    let paths = ["d/x", "d/y/z", "e", "d2"];
    for (inode, path) in (1..).zip(paths) {
        dmt.files().register(OriginKey { inode, born_ns: 0 }, Path::new(path)).unwrap();
    }
    let of = |dmt: &ExtentTable| -> Vec<String> {
        dmt.files().all().iter().map(|file| file.path.display().to_string()).collect()
    };
    dmt.files().exchange(Path::new("d"), Path::new("e")).unwrap();
    assert_eq!(of(&dmt), ["e/x", "e/y/z", "d", "d2"]);
    dmt.files().exchange(Path::new("e/x"), Path::new("not cached")).unwrap();
    assert_eq!(of(&dmt), ["not cached", "e/y/z", "d", "d2"]);
    // The lists by path follow: a later rename finds each where it is now.
    dmt.files().rename(Path::new("e"), Path::new("f")).unwrap();
    drop(dmt);
    let (dmt, _) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!(of(&dmt), ["not cached", "f/y/z", "d", "d2"]);
}

/// A check opens a crashed cache and closes it, and trims nothing: the next owner must.
#[test]
fn i5_a_close_without_a_trim_passes_the_duty_on() {
    let (dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    drop(dmt);
    let (dmt, recovery) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!((recovery.last_shutdown, recovery.trim), (Shutdown::Crashed, true));
    dmt.close().unwrap();
    drop(dmt);
    let (dmt, recovery) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!((recovery.last_shutdown, recovery.trim), (Shutdown::Closed, true), "nobody trimmed");
    dmt.blocks().trimmed();
    dmt.close().unwrap();
    drop(dmt);
    let (_, recovery) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!((recovery.last_shutdown, recovery.trim), (Shutdown::Closed, false));
}

#[test]
fn renames_carry_directories_and_leave_the_replaced_alone() {
    let (dir, dmt) = cache();
    let register = |inode, path: &str| {
        dmt.files().register(OriginKey { inode, born_ns: 0 }, Path::new(path)).unwrap()
    };
    let (inner, similar, old) = (register(3, "d/x/f"), register(4, "d.txt"), register(5, "e/f"));
    dmt.files().rename(Path::new("d/x"), Path::new("e")).unwrap();
    let path = |dmt: &ExtentTable, id| dmt.files().record(id).unwrap().path.display().to_string();
    assert_eq!((path(&dmt, inner), path(&dmt, similar)), ("e/f".into(), "d.txt".into()));
    dmt.files().rename(Path::new("e"), Path::new("g")).unwrap();
    assert_eq!((path(&dmt, inner), path(&dmt, old)), ("g/f".into(), "e/f".into()), "replaced");
    dmt.files().forget(old).unwrap();
    drop(dmt);
    let (dmt, recovery) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!((path(&dmt, inner), recovery.files), ("g/f".into(), 4));
    assert!(dmt.files().record(old).is_none());
    assert!(
        dmt.files().register(OriginKey { inode: 5, born_ns: 0 }, Path::new("e/f")).unwrap() > old
    );
}

#[test]
fn a_file_is_forgotten_with_its_critical_ranges_but_not_its_waiting_blocks() {
    let (_dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    dmt.critical().note(CriticalRange { file: A, range: blocks(3, 1), placement: HERE }, true);
    assert!(matches!(dmt.files().forget(A), Err(Error::Invalid { .. })), "it has extents");
    dmt.changes().unmap(A, blocks(0, 1)).unwrap();
    dmt.files().forget(A).unwrap();
    assert_eq!((dmt.critical().wanted(9).len(), dmt.files().all().len()), (0, 1));
    assert!(!dmt.blocks().reserve(A, blocks(0, 1), HERE), "it is gone");
    barrier(&dmt);
    let due = dmt.blocks().take_discards();
    assert_eq!((due.len(), dmt.index().usage().used), (1, BLOCK));
    dmt.blocks().discarded(&due[0]);
    assert_eq!(dmt.index().usage().used, 0);
}

#[test]
fn a_closed_store_refuses_changes_and_memory_does_not_run_ahead() {
    let (dir, dmt) = cache();
    write(&dmt, A, blocks(0, 1), true);
    write(&dmt, B, blocks(0, 1), false);
    let empty = dmt.files().register(OriginKey { inode: 3, born_ns: 0 }, Path::new("e")).unwrap();
    assert!(dmt.blocks().reserve(A, blocks(1, 1), HERE));
    let before = (dmt.index().usage(), dmt.files().all(), dmt.index().extents(A));
    dmt.close().unwrap();
    let refused = [
        dmt.changes().map(A, blocks(1, 1), HERE, true),
        dmt.changes().mark_dirty(B, blocks(0, 1)),
        dmt.changes().unmap(A, blocks(0, 1)),
        dmt.files().stamp(A, Stamp::Closed { size: 1, mtime_ns: 1, ctime_ns: 1 }),
        dmt.files().rename(Path::new("a"), Path::new("c")),
        dmt.files().forget(empty),
        dmt.barrier(),
        dmt.files().register(OriginKey { inode: 9, born_ns: 0 }, Path::new("n")).map(drop),
        dmt.evictor().evict(BLOCK, None, &mut |_, _| true).map(drop),
    ];
    for (at, result) in refused.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Store { .. })), "change {at} was not refused");
    }
    assert_eq!((dmt.index().usage(), dmt.files().all(), dmt.index().extents(A)), before);
    drop(dmt);
    let (dmt, recovery) = ExtentTable::open(dir.path(), options()).unwrap();
    assert_eq!(recovery.last_shutdown, Shutdown::Closed);
    assert!(recovery.trim, "a reservation was open: its blocks may have been written");
    assert_eq!(dmt.index().usage().used, 2 * BLOCK);
}

#[test]
fn a_missing_or_gutted_store_is_named_and_nothing_is_made_in_its_place() {
    let (dir, dmt) = cache();
    drop(dmt);
    let store = dir.path().join("meta");
    fs::remove_file(store.join(format!("snapshot-{:016x}", 0))).unwrap();
    let error = ExtentTable::open(dir.path(), options()).unwrap_err().to_string();
    assert!(error.contains("snapshot is missing") && error.contains("restore"), "{error}");
    fs::remove_dir_all(&store).unwrap();
    fs::create_dir(dir.path().join("objects")).unwrap();
    let error = ExtentTable::open(dir.path(), options()).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
    assert!(!store.exists());
}

#[test]
fn i8_a_second_owner_in_this_process_is_refused() {
    let (dir, dmt) = cache();
    let error = ExtentTable::open(dir.path(), options()).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    drop(dmt);
    ExtentTable::open(dir.path(), options()).unwrap();
}

/// Four threads change disjoint parts of one file; evictions of each lock parts of all others.
#[test]
fn threads_on_one_file_keep_the_counts_exact() {
    const PART: u64 = 4;
    let (dir, dmt) = cache();
    let locks: Vec<_> = (0..4).map(|_| parking_lot::Mutex::new(())).collect();
    let round = |part: u64, step: u64| {
        let _turn = locks[part as usize].lock();
        let whole = blocks(part * PART, PART);
        let range = ByteRange::new(whole.start + 1000 * (step % 5), whole.end - 700 * (step % 7));
        let mut segments = Vec::new();
        match step % 4 {
            0 => {
                dmt.index().lookup(A, range, &mut segments);
                for hole in segments.iter().filter(|segment| segment.extent.is_none()) {
                    if dmt.blocks().reserve(A, hole.range, HERE) {
                        dmt.changes().map(A, hole.range, HERE, step.is_multiple_of(8)).unwrap();
                    }
                }
            }
            1 => dmt.changes().mark_dirty(A, range).unwrap(),
            2 => {
                let dirty = dmt.index().dirty(A, whole, 99);
                let inside = dirty.iter().filter(|extent| whole.contains(extent.range));
                let list: Vec<_> = inside.map(|extent| (extent.range, extent.generation)).collect();
                dmt.changes().mark_clean(A, &list).unwrap();
            }
            _ => dmt.changes().unmap(A, ByteRange::new(range.start, range.start + 3000)).unwrap(),
        }
    };
    let evict = || {
        let mut held = Vec::new();
        let discards = dmt.evictor().evict(2 * BLOCK, None, &mut |_, range| {
            let part = range.start / (PART * BLOCK);
            assert!(range.end <= (part + 1) * PART * BLOCK);
            let known = held.iter().any(|(p, _)| *p == part);
            known
                || locks[part as usize].try_lock().is_some_and(|guard| {
                    held.push((part, guard));
                    true
                })
        });
        discards.unwrap().iter().for_each(|discard| dmt.blocks().discarded(discard));
    };
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || (0..400).for_each(|step| round(part, step * 7 + part)));
        }
        scope.spawn(|| (0..200).for_each(|_| evict()));
        scope.spawn(|| {
            for _ in 0..50 {
                barrier(&dmt);
                for discard in dmt.blocks().take_discards() {
                    let parts = discard.range.start / (PART * BLOCK)
                        ..=(discard.range.end - 1) / (PART * BLOCK);
                    let _turns: Vec<_> = parts.map(|part| locks[part as usize].lock()).collect();
                    dmt.blocks().discarded(&discard);
                }
            }
        });
    });
    let extents = dmt.index().extents(A);
    let bytes: u64 = extents.iter().map(|extent| extent.range.len()).sum();
    let usage = dmt.index().usage();
    assert_eq!((usage.mapped, usage.extents), (bytes, extents.len() as u64));
    barrier(&dmt);
    dmt.blocks().take_discards().iter().for_each(|discard| dmt.blocks().discarded(discard));
    let touched = |block: &u64| extents.iter().any(|e| e.range.overlaps(blocks(*block, 1)));
    let on_disk = (0..4 * PART).filter(touched).count() as u64 * BLOCK;
    assert_eq!(dmt.index().usage().used, on_disk, "I5 after many threads");
    let recorded = dmt.index().recorded(A).into_iter().map(|r| (r.0, r.2.is_some()));
    let recorded: Vec<_> = recorded.collect();
    drop(dmt);
    let (dmt, _) = ExtentTable::open(dir.path(), options()).unwrap();
    let found: Vec<_> = dmt.index().extents(A).iter().map(|e| (e.range, e.dirty)).collect();
    assert_eq!(found, recorded, "the store saw the same order");
    assert_eq!(dmt.index().usage().used, on_disk);
}
