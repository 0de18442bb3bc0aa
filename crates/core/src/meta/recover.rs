//! Opening a table: what the last session left, and what of it still holds.
//!
//! After `kill -9` everything that was committed is there and counts (I4): the records are in the
//! operating system's hands, and so is the data. After a power loss only what a barrier covered
//! counts: clean extents are dropped (the origin has them), and so are dirty extents that were
//! mapped after the last barrier, since their data may not be what was written. Those are listed,
//! file by file (I6).

use std::path::Path;

use halocline_model::request::ByteRange;
use parking_lot::RwLock;

use super::FileId;
use super::journal::{self, Batch, Journal};
use super::local::{Epochs, FileState, LocalDmt, Lost, Options, Recovery};
use super::owner::{self, Owner};
use super::rangemap::{NO_SLOT, Piece, RangeMap};
use super::record::{self, Damaged, ExtentRecord, Session, kind};
use super::space::{FileSpace, blocks_of};
use crate::error::Result;

/// Records removed in one batch.
const REMOVALS: usize = 65_536;

/// What the extents say all together.
#[derive(Debug, Default)]
struct Loaded {
    files: Vec<(FileId, Vec<Piece>)>,
    newest_epoch: u64,
    /// What a power loss took: to be removed from the store.
    dropped: Vec<(FileId, ExtentRecord)>,
}

/// Opens the table in `dir`.
pub(super) fn open(dir: &Path, options: Options) -> Result<(LocalDmt, Recovery)> {
    let owner = Owner::take(dir)?;
    let store = dir.join("dmt");
    let journal = Journal::open(&store)?;
    let last = read(&journal, &store, kind::SESSION, record::session)?;
    let durable = read(&journal, &store, kind::BARRIER, record::number)?.unwrap_or(0);
    let next = read(&journal, &store, kind::NEXT_FILE, record::number)?.unwrap_or(1);
    let boot = owner::boot_id();
    let unclean = last.as_ref().is_some_and(|session| !session.clean);
    let mut recovery = Recovery {
        unclean,
        power_loss: unclean
            && last.as_ref().is_some_and(|session| session.boot != boot || boot.is_empty()),
        stray_blocks: last.is_some_and(|session| !session.clean || session.stray_blocks),
        ..Recovery::default()
    };
    let loaded = load(&journal, &store, &recovery, durable)?;
    let mut table = LocalDmt::empty(journal, owner, options, next);
    read_files(&table, &store)?;
    list_losses(&table, &loaded.dropped, &mut recovery);
    forget_records(&table.journal, &loaded.dropped)?;
    table.epochs = Epochs::starting_at(loaded.newest_epoch.max(durable) + 1, durable);
    fill(&table, loaded.files);
    read_wanted(&table, &store)?;
    begin_session(&table.journal, boot)?;
    // What was found is durable now, and with it that it is clean.
    table.order.lock().promote(loaded.newest_epoch);
    recovery.files = table.names.read().all().count() as u64;
    recovery.extents = super::Dmt::usage(&table).extents;
    Ok((table, recovery))
}

fn read<T>(
    journal: &Journal,
    store: &Path,
    kind: u8,
    decode: impl FnOnce(&[u8], &[u8]) -> Result<T, Damaged>,
) -> Result<Option<T>> {
    let key = [kind];
    let Some(value) = journal.get(&key)? else { return Ok(None) };
    decode(&key, &value).map(Some).map_err(|error| journal::damaged(store, &error.to_string()))
}

fn scan_kind(
    journal: &Journal,
    store: &Path,
    kind: u8,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), Damaged>,
) -> Result<()> {
    journal.scan(&[kind], &[kind + 1], &mut |key, value| {
        visit(key, value).map_err(|error| journal::damaged(store, &error.to_string()))
    })
}

fn load(journal: &Journal, store: &Path, recovery: &Recovery, durable: u64) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    let mut done = (FileId(0), 0);
    scan_kind(journal, store, kind::EXTENT, &mut |key, value| {
        let (file, extent) = record::extent(key, value)?;
        if done.0 == file && extent.range.start < done.1 {
            return Err(Damaged("two extents overlap"));
        }
        done = (file, extent.range.end);
        if recovery.power_loss && (!extent.dirty || extent.epoch > durable) {
            loaded.dropped.push((file, extent));
            return Ok(());
        }
        loaded.newest_epoch = loaded.newest_epoch.max(extent.epoch);
        if loaded.files.last().is_none_or(|(last, _)| *last != file) {
            loaded.files.push((file, Vec::new()));
        }
        if let Some((_, pieces)) = loaded.files.last_mut() {
            pieces.push(piece_of(&extent));
        }
        Ok(())
    })?;
    Ok(loaded)
}

fn piece_of(extent: &ExtentRecord) -> Piece {
    Piece {
        range: extent.range,
        placement: extent.placement,
        dirty: extent.dirty,
        generation: 0,
        epoch: extent.epoch,
        dirty_since_ms: if extent.dirty { extent.time_ms } else { 0 },
        last_use_ms: extent.time_ms,
        slot: NO_SLOT,
    }
}

fn read_files(table: &LocalDmt, store: &Path) -> Result<()> {
    let mut names = table.names.write();
    scan_kind(&table.journal, store, kind::FILE, &mut |key, value| {
        names.put(record::file(key, value)?);
        Ok(())
    })
}

fn read_wanted(table: &LocalDmt, store: &Path) -> Result<()> {
    let mut found = Vec::new();
    scan_kind(&table.journal, store, kind::WANTED, &mut |key, value| {
        found.push(record::wanted(key, value)?);
        Ok(())
    })?;
    found.sort_unstable_by_key(|(_, turn)| *turn);
    let (mut cdt, mut batch) = (table.cdt.lock(), Batch::default());
    for (wanted, turn) in found {
        for (file, range) in cdt.restore(wanted, turn).unflagged {
            batch.remove(&record::wanted_key(file, range));
        }
    }
    table.journal.commit(batch)
}

fn list_losses(table: &LocalDmt, dropped: &[(FileId, ExtentRecord)], recovery: &mut Recovery) {
    let names = table.names.read();
    for (file, extent) in dropped {
        if recovery.lost.last().is_none_or(|lost| lost.file != *file) {
            let path = names.get(*file).map(|record| record.path.clone()).unwrap_or_default();
            recovery.lost.push(Lost { file: *file, path, dirty: Vec::new(), clean_bytes: 0 });
        }
        let Some(lost) = recovery.lost.last_mut() else { continue };
        match lost.dirty.last_mut() {
            _ if !extent.dirty => lost.clean_bytes += extent.range.len(),
            Some(last) if last.end == extent.range.start => {
                *last = ByteRange::new(last.start, extent.range.end);
            }
            _ => lost.dirty.push(extent.range),
        }
    }
}

fn forget_records(journal: &Journal, dropped: &[(FileId, ExtentRecord)]) -> Result<()> {
    for some in dropped.chunks(REMOVALS) {
        let mut batch = Batch::default();
        for (file, extent) in some {
            batch.remove(&record::extent_key(*file, extent.range.start));
        }
        journal.commit(batch)?;
    }
    Ok(())
}

/// Builds the range maps, counts the blocks and restores the eviction order.
fn fill(table: &LocalDmt, found: Vec<(FileId, Vec<Piece>)>) {
    let count = found.iter().map(|(_, pieces)| pieces.len()).sum();
    let mut order = table.order.lock();
    order.expect(count);
    let mut uses = Vec::with_capacity(count);
    let (mut files, mut dirty) = (table.files.write(), table.dirty.lock());
    for (file, mut pieces) in found {
        for piece in &mut pieces {
            piece.slot = order.give(file, piece);
            uses.push((piece.last_use_ms, piece.slot));
            table.counts.add(piece);
        }
        table.space.found(blocks_of(&pieces).iter().map(|(_, blocks)| blocks.len()).sum());
        let map = RangeMap::from_sorted(&pieces);
        if let Some(oldest) = map.oldest_dirty_ms() {
            dirty.insert(file, oldest);
        }
        files.insert(file, RwLock::new(FileState { map, space: FileSpace::default() }).into());
    }
    uses.sort_unstable();
    for (_, slot) in uses {
        order.enter(slot);
    }
}

fn begin_session(journal: &Journal, boot: String) -> Result<()> {
    let session = Session { clean: false, stray_blocks: true, boot };
    let key = [kind::SESSION];
    let mut batch = Batch::default();
    batch.put(&key, record::session_value(&key, &session));
    journal.commit(batch)?;
    journal.sync()
}
