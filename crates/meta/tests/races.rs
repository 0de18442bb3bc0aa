//! Threads that change one table at the same time. The schedules vary, what must hold does not.

use std::path::Path;
use std::sync::Barrier;
use std::thread;

use halocline_meta::load::Shutdown;
use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{BLOCK, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };

fn open(dir: &Path, limit_bytes: u64) -> (ExtentTable, FileId) {
    let options = Options::new(limit_bytes, Box::<Lru>::default(), 8);
    let (table, _) = ExtentTable::open(dir, options).unwrap();
    let file = table.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("a")).unwrap();
    (table, file)
}

fn map(table: &ExtentTable, file: FileId, range: ByteRange, dirty: bool) {
    assert!(table.blocks().reserve(file, range, HERE));
    table.changes().map(file, range, HERE, dirty).unwrap();
}

/// A flush read the data, then a program writes again while the flush clears `D_flag`: whoever is
/// first, the extent must end up dirty, in memory and in the store.
#[test]
fn i3_a_write_during_the_end_of_a_flush_stays_dirty() {
    let dir = tempfile::tempdir().unwrap();
    let (table, file) = open(dir.path(), 1 << 20);
    let range = ByteRange::new(0, BLOCK);
    map(&table, file, range, true);
    let start = Barrier::new(2);
    for round in 0..4000 {
        table.changes().mark_dirty(file, range).unwrap();
        let seen = table.index().dirty(file, range, 1)[0];
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                table.changes().mark_clean(file, &[(seen.range, seen.generation)]).unwrap();
            });
            start.wait();
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            table.changes().mark_dirty(file, range).unwrap();
        });
        assert_eq!(table.index().usage().dirty, BLOCK, "round {round}: the write was forgotten");
    }
    drop(table);
    let (table, _) = open(dir.path(), 1 << 20);
    assert_eq!(table.index().usage().dirty, BLOCK);
}

/// Between taking a discard and freeing it a program may write the range, fsync it and cut it off
/// again. Freed now, its data would be missing if a power loss brought the fsynced record back.
#[test]
fn i4_a_discard_that_was_overtaken_is_not_due() {
    let dir = tempfile::tempdir().unwrap();
    let (table, file) = open(dir.path(), 1 << 20);
    let range = ByteRange::new(0, 3 * BLOCK);
    map(&table, file, range, true);
    table.changes().unmap(file, range).unwrap();
    assert!(table.blocks().take_discards().is_empty(), "the old record could come back");
    table.barrier().unwrap();
    let taken = table.blocks().take_discards();
    assert_eq!(taken.iter().map(|discard| discard.range).collect::<Vec<_>>(), [range]);

    let middle = ByteRange::new(BLOCK + 1, BLOCK + 2);
    map(&table, file, middle, true);
    table.barrier().unwrap();
    table.changes().unmap(file, middle).unwrap();
    let due = table.blocks().still_due(&taken[0]);
    assert_eq!(
        due.iter().map(|part| part.range).collect::<Vec<_>>(),
        [ByteRange::new(0, BLOCK), ByteRange::new(2 * BLOCK, 3 * BLOCK)]
    );
    for part in &due {
        table.blocks().discarded(part);
    }
    assert_eq!(table.index().usage().used, BLOCK);

    assert!(table.blocks().take_discards().is_empty());
    table.barrier().unwrap();
    let taken = table.blocks().take_discards();
    assert_eq!(table.blocks().still_due(&taken[0]), taken);
    table.blocks().discarded(&taken[0]);
    assert_eq!(table.index().usage().used, 0);
}

/// A power loss after a close leaves the store alone: nobody syncs the log then. What was accepted until
/// changes were refused is in the store, or an eviction would free blocks of extents that are back.
#[test]
fn i4_what_is_accepted_during_a_close_is_closed_with_the_rest() {
    for round in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let (table, _) = open(dir.path(), 1 << 20);
        let register = |inode: u64| {
            let path = inode.to_string();
            table.files().register(OriginKey { inode, born_ns: 1 }, Path::new(&path))
        };
        let accepted = thread::scope(|scope| {
            let names =
                scope.spawn(|| (2..1 << 40).take_while(|&inode| register(inode).is_ok()).count());
            while table.files().all().len() < 10 {
                thread::yield_now();
            }
            table.close().unwrap();
            names.join().unwrap()
        });
        drop(table);
        let options = Options::new(1 << 20, Box::<Lru>::default(), 8);
        let (table, recovery) =
            ExtentTable::open_on_boot(dir.path(), options, "next boot").unwrap();
        assert_eq!(recovery.last_shutdown, Shutdown::Closed);
        assert_eq!(table.files().all().len(), accepted + 1, "round {round}");
    }
}

/// Threads fill, empty and evict a small cache: the count never passes the limit, and is what
/// the extents need once all is quiet.
#[test]
fn i5_concurrent_reservations_never_pass_the_limit() {
    const LIMIT: u64 = 64 * BLOCK;
    let dir = tempfile::tempdir().unwrap();
    let (table, _) = open(dir.path(), LIMIT);
    let files: Vec<FileId> = (2..6)
        .map(|inode| {
            let path = format!("f{inode}");
            table.files().register(OriginKey { inode, born_ns: 1 }, Path::new(&path)).unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for &file in &files {
            let table = &table;
            scope.spawn(move || {
                for step in 0..600_u64 {
                    let range = ByteRange::at(step * 7 % 40 * BLOCK + step % 3 * 100, 2 * BLOCK);
                    table.changes().unmap(file, range).unwrap();
                    if table.blocks().reserve(file, range, HERE) {
                        assert!(table.index().usage().used <= LIMIT, "I5");
                        if step % 5 == 0 {
                            table.blocks().release(file, range, HERE);
                        } else {
                            table.changes().map(file, range, HERE, step % 2 == 0).unwrap();
                        }
                    } else {
                        // Only this thread's own file: other threads' ranges are theirs to lock.
                        let own = |of: FileId, _: ByteRange| of == file;
                        for gone in table.evictor().evict(4 * BLOCK, None, &mut { own }).unwrap() {
                            table.blocks().discarded(&gone);
                        }
                    }
                    if step % 50 == 49 {
                        table.barrier().unwrap();
                    }
                }
            });
        }
    });
    table.barrier().unwrap();
    for gone in table.blocks().take_discards() {
        table.blocks().discarded(&gone);
    }
    let mut needed = 0;
    for &file in &files {
        let mut done = 0;
        for extent in table.index().extents(file) {
            let blocks = extent.range.widen_to(BLOCK);
            needed += blocks.end - blocks.start.max(done);
            done = blocks.end;
        }
    }
    assert_eq!(table.index().usage().used, needed, "I5: nothing leaks");
}
