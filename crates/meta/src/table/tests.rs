use std::path::{Path, PathBuf};

use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

use super::*;
use crate::load::{Recovery, Shutdown};
use crate::records::memory::Disk;
use crate::{BLOCK, OriginKey, Stamp};

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

/// The tables over records on `disk`, on the same boot each time.
fn open(dir: &Path, disk: &Disk) -> Result<(ExtentTable, Recovery)> {
    let found = Owner::take_with_witness(dir, None)?;
    std::fs::create_dir_all(dir.join(STORE_DIR)).unwrap();
    let options = Options::new(1 << 30, Box::<Lru>::default(), 8);
    ExtentTable::over((found.0, &found.1), Arc::new(disk.open()), options, "boot")
}

fn blocks(first: u64, count: u64) -> ByteRange {
    ByteRange::at(first * BLOCK, count * BLOCK)
}

/// Makes changes of every kind, as far as they are accepted.
fn live(table: &ExtentTable) -> Result<()> {
    let key = |inode| OriginKey { inode, born_ns: 1 };
    let a = table.files().register(key(1), Path::new("d/a"))?;
    let b = table.files().register(key(2), Path::new("d/b"))?;
    for number in 0..4 {
        assert!(table.blocks().reserve(a, blocks(number * 100, 90), HERE));
        table.changes().map(a, blocks(number * 100, 90), HERE, number % 2 == 0)?;
    }
    table.changes().map(b, blocks(0, 4), HERE, true)?;
    table.changes().mark_dirty(a, blocks(110, 20))?;
    table.changes().cut_dirty(a, blocks(0, 50))?;
    table.files().rename(Path::new("d"), Path::new("e"))?;
    table.files().exchange(Path::new("e/a"), Path::new("e/b"))?;
    table.files().stamp(b, Stamp::Closed { size: 1, mtime_ns: 2, ctime_ns: 3 })?;
    table.barrier()?;
    let dirty = table.index().dirty(a, ALL, 9);
    let dirty: Vec<_> = dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
    table.changes().mark_clean(a, &dirty)?;
    table.changes().unmap(a, blocks(40, 100))?;
    table.changes().unmap(b, ALL)?;
    table.files().forget(b)?;
    table.barrier()?;
    let evicted = table.evictor().evict(BLOCK, None, &mut |_, _| true)?;
    for discard in &evicted {
        table.blocks().discarded(discard);
    }
    Ok(())
}

/// A file's identity and path, and what is recorded of it.
type Known = (OriginKey, PathBuf, Vec<(ByteRange, Placement, Option<u64>)>);

fn known(table: &ExtentTable) -> Vec<Known> {
    let files = table.files().all().into_iter();
    files.map(|file| (file.key, file.path, table.index().recorded(file.id))).collect()
}

/// Memory is never ahead of the records, nor they of memory: whichever write is refused, the next opening finds what
/// was shown.
#[test]
fn i4_a_store_that_fails_at_any_write_has_what_is_shown() {
    let mut writes = 0;
    loop {
        let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
        let (table, _) = open(dir.path(), &disk).unwrap();
        disk.fail_after(Some(writes));
        let ended = live(&table);
        let shown = known(&table);
        drop(table);
        disk.fail_after(None);
        let (table, recovery) = open(dir.path(), &disk).unwrap();
        assert_eq!(recovery.last_shutdown, Shutdown::Crashed);
        assert_eq!(known(&table), shown, "write {writes} was refused");
        if ended.is_ok() {
            break;
        }
        writes += 1;
    }
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    live(&open(dir.path(), &disk).unwrap().0).unwrap();
    assert!(writes > 15 && disk.batches() > 15, "only {writes} writes were made");
}

/// Regression: a node that gave up the bytes of a file which its last close had just forgotten got an error about a
/// defect of the program, and could not give the file up at all.
#[test]
fn a_file_that_was_forgotten_has_nothing_to_unmap() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (table, _) = open(dir.path(), &disk).unwrap();
    let file = table.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("f")).unwrap();
    assert!(table.blocks().reserve(file, blocks(0, 4), HERE));
    table.changes().map(file, blocks(0, 4), HERE, true).unwrap();
    table.changes().unmap(file, ALL).unwrap();
    table.files().forget(file).unwrap();
    table.changes().unmap(file, ALL).unwrap();
    assert!(
        table.changes().map(file, blocks(0, 4), HERE, true).is_err(),
        "nothing is mapped of it again"
    );
}

/// If an opening cannot record what a power loss took, the next one finds the loss again.
#[test]
fn i6_a_loss_that_could_not_be_recorded_is_listed_again() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (table, _) = open(dir.path(), &disk).unwrap();
    live(&table).unwrap();
    let file = table.files().find(OriginKey { inode: 1, born_ns: 1 }).unwrap();
    table.changes().map(file, blocks(900, 1), HERE, true).unwrap();
    drop(table);
    let reopen = || {
        let found = Owner::take_with_witness(dir.path(), None).unwrap();
        let options = Options::new(1 << 30, Box::<Lru>::default(), 8);
        let records = Arc::new(disk.open());
        ExtentTable::over((found.0, &found.1), records, options, "next boot")
    };
    for sound in 0..2 {
        disk.fail_after(Some(sound));
        reopen().unwrap_err();
    }
    disk.fail_after(None);
    let (_, recovery) = reopen().unwrap();
    assert_eq!((recovery.last_shutdown, recovery.dropped.len()), (Shutdown::PowerLost, 1));
    assert_eq!(recovery.dropped[0].dirty_bytes, BLOCK);
}

/// Tables with a file that has two dirty blocks.
fn dirty() -> (ExtentTable, crate::FileId, tempfile::TempDir) {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let (table, _) = open(dir.path(), &disk).unwrap();
    let file = table.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("a")).unwrap();
    assert!(table.blocks().reserve(file, blocks(0, 2), HERE));
    table.changes().map(file, blocks(0, 2), HERE, true).unwrap();
    (table, file, dir)
}

#[test]
#[should_panic(expected = "I3: dirty data is never evicted")]
fn i3_what_is_dirty_is_not_evicted_whoever_asks() {
    let (table, file, _dir) = dirty();
    let state = table.index().files().state(file).unwrap();
    table.index().edit(&state).evict(0, &mut Vec::new());
}

#[test]
#[should_panic(expected = "I3: dirty extents do not become clean by merging")]
fn i3_what_is_dirty_does_not_become_clean_by_merging() {
    let (table, file, _dir) = dirty();
    let state = table.index().files().state(file).unwrap();
    let intent = crate::write_intent::WriteIntent { range: blocks(0, 2), epoch: 1 };
    let index = table.index();
    let mut edit = index.edit(&state);
    edit.add_intent(intent);
    edit.merge(intent, 1);
}

#[test]
#[should_panic(expected = "I2: no byte has two extents")]
fn i2_a_byte_has_one_extent() {
    let (table, file, _dir) = dirty();
    let state = table.index().files().state(file).unwrap();
    let found = table.index().recorded(file);
    assert_eq!(found.len(), 1);
    let record = state.mapped().extents.entries().next().unwrap().1.record(blocks(0, 2));
    table.index().edit(&state).map(record);
}

#[test]
#[should_panic(expected = "I5: whole blocks only")]
fn i5_only_whole_blocks_are_free_again() {
    let (table, file, _dir) = dirty();
    table.blocks().discarded(&crate::Discard {
        file,
        range: ByteRange::new(1, BLOCK),
        placement: HERE,
    });
}
