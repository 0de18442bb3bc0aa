//! Opening the store: what is still true after a clean close, a crash or a power loss.
//!
//! After a crash of the process everything acknowledged is there (I4). After a power loss the
//! records are a consistent prefix, but the data may be older than they say: clean extents are
//! dropped, and so are dirty ones that no barrier has covered; each loss is listed (I6).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::cdt::Cdt;
use super::files::{FileState, Files};
use super::journal::Journal;
use super::order::{LoadedUse, Order};
use super::rangemap::{Entry, RangeMap};
use super::record::{self, ExtentRecord, State};
use super::{FileId, space::Space};
use crate::error::Result;

/// Records are dropped in batches of this many.
const DROP_BATCH: usize = 4096;

/// How the cache was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It is new.
    Never,
    /// It was closed.
    Closed,
    /// Its process ended without closing it.
    Crashed,
    /// The machine went down without closing it.
    PowerLost,
}

/// What a power loss took from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The file.
    pub file: FileId,
    /// Its path as last seen.
    pub path: PathBuf,
    /// Bytes of clean extents: the origin has them.
    pub clean_bytes: u64,
    /// Bytes recorded as dirty that no fsync had covered: they are lost (I6), but for clean ones
    /// beside them that the origin has ([`MARK_BYTES`](super::marks::MARK_BYTES)).
    pub dirty_bytes: u64,
}

/// What was found when the cache was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// How it was left.
    pub left: Left,
    /// Files found.
    pub files: u64,
    /// Extents kept.
    pub extents: u64,
    /// What was dropped, by path.
    pub dropped: Vec<Dropped>,
    /// Cache objects may hold blocks that no extent and no count knows: the caller MUST punch
    /// everything outside the extents, and remove objects of unknown files, before it writes, and
    /// tell `trimmed` (I5).
    pub trim: bool,
}

/// The state in memory, as loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) files: Files,
    pub(crate) order: Order,
    pub(crate) cdt: Cdt,
    pub(crate) counts: Counts,
    pub(crate) generation: u64,
    /// The last epoch in use.
    pub(crate) epoch: u64,
    /// The last epoch whose barrier completed.
    pub(crate) completed: u64,
    pub(crate) recovery: Recovery,
}

/// Sums over all extents.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) mapped: u64,
    pub(crate) dirty: u64,
    pub(crate) extents: u64,
    pub(crate) dirty_extents: u64,
}

/// Loads everything and makes what is kept durable; `boot_id` tells a crash from a power loss.
pub(crate) fn load(
    journal: &Journal,
    space: &Space,
    order: Order,
    cdt: Cdt,
    boot_id: &str,
) -> Result<Loaded> {
    let state = journal.get(record::STATE_KEY)?;
    let state = state
        .map(|value| record::decode_state(&value).map_err(|bad| journal.damaged(bad.0)))
        .transpose()?;
    let left = how_left(state.as_ref(), boot_id);
    let completed = counter(journal, record::EPOCH_KEY, record::EPOCH_MAX)?;
    let mut loaded = Loaded {
        files: load_files(journal)?,
        order,
        cdt,
        counts: Counts::default(),
        generation: 0,
        epoch: completed,
        completed,
        recovery: Recovery {
            left,
            files: 0,
            extents: 0,
            dropped: Vec::new(),
            trim: left != Left::Never
                && (left != Left::Closed || state.is_some_and(|state| state.untrimmed)),
        },
    };
    loaded.recovery.files = loaded.files.all().count() as u64;
    load_extents(journal, space, &mut loaded)?;
    if left == Left::Closed {
        loaded.completed = loaded.epoch;
    }
    load_critical(journal, &mut loaded)?;
    begin(journal, &loaded, boot_id)?;
    Ok(loaded)
}

fn how_left(state: Option<&State>, boot_id: &str) -> Left {
    match state {
        None => Left::Never,
        Some(state) if state.closed => Left::Closed,
        Some(state) if state.boot_id == boot_id => Left::Crashed,
        Some(_) => Left::PowerLost,
    }
}

/// Only now, with every loss decided and recorded, does the store count as opened by this boot;
/// a crash before this line finds the same losses again.
fn begin(journal: &Journal, loaded: &Loaded, boot_id: &str) -> Result<()> {
    let state = State { closed: false, untrimmed: false, boot_id: boot_id.to_owned() };
    let mut changes = journal.changes();
    changes.put(record::EPOCH_KEY, &record::encode_counter(loaded.completed));
    changes.put(record::STATE_KEY, &record::encode_state(&state));
    changes.commit()?;
    journal.sync()
}

fn counter(journal: &Journal, key: &[u8], most: u64) -> Result<u64> {
    let Some(value) = journal.get(key)? else { return Ok(0) };
    record::decode_counter_within(&value, most).map_err(|bad| journal.damaged(bad.0))
}

fn load_files(journal: &Journal) -> Result<Files> {
    let mut files = Files::default();
    journal.scan(record::FILE, |key, value| {
        let record = record::decode_file(key, value).map_err(|bad| journal.damaged(bad.0))?;
        if files.find(record.key).is_some() {
            return Err(journal.damaged("two files with one identity"));
        }
        files.add(record);
        Ok(())
    })?;
    let next = counter(journal, record::NEXT_FILE_KEY, record::COUNTER_MAX)?;
    files.next = files.next.max(next).max(1);
    Ok(files)
}

/// One file's extents while they are read.
struct Reading {
    state: Arc<FileState>,
    extents: Vec<(u64, Entry)>,
    dropped: Dropped,
}

struct Loader<'a> {
    journal: &'a Journal,
    space: &'a Space,
    loaded: &'a mut Loaded,
    uses: Vec<LoadedUse>,
    doomed: Vec<[u8; 17]>,
    /// Bytes of all extents: every sum of some of them fits, too.
    bytes: u64,
    dropped: HashMap<FileId, Dropped>,
}

fn load_extents(journal: &Journal, space: &Space, loaded: &mut Loaded) -> Result<()> {
    let mut reader = Loader {
        journal,
        space,
        loaded,
        uses: Vec::new(),
        doomed: Vec::new(),
        bytes: 0,
        dropped: HashMap::new(),
    };
    let mut reading: Option<Reading> = None;
    journal.scan(record::EXTENT, |key, value| {
        let (file, record) =
            record::decode_extent(key, value).map_err(|bad| journal.damaged(bad.0))?;
        if reading.as_ref().is_none_or(|reading| reading.state.id != file) {
            reader.finish(reading.take())?;
            reading = Some(reader.begin(file)?);
        }
        let reading = reading.as_mut().expect("set above");
        reader.take(reading, record)
    })?;
    reader.finish(reading)?;
    reader.end()
}

impl Loader<'_> {
    fn begin(&self, file: FileId) -> Result<Reading> {
        let Some(state) = self.loaded.files.get(file) else {
            return Err(self.journal.damaged("an extent without its file"));
        };
        let path = state.record.lock().path.clone();
        Ok(Reading {
            state: Arc::clone(state),
            extents: Vec::new(),
            dropped: Dropped { file, path, clean_bytes: 0, dirty_bytes: 0 },
        })
    }

    fn take(&mut self, reading: &mut Reading, mut record: ExtentRecord) -> Result<()> {
        let loaded = &mut *self.loaded;
        self.bytes = self.bytes.checked_add(record.range.len()).ok_or_else(|| {
            self.journal.damaged("its extents have more bytes than can be counted")
        })?;
        if record.dirty {
            loaded.epoch = loaded.epoch.max(record.epoch);
        }
        let lost = loaded.recovery.left == Left::PowerLost
            && (!record.dirty || record.epoch > loaded.completed);
        if lost {
            self.doomed.push(record::extent_key(reading.state.id, record.range.start));
            let bytes = if record.dirty {
                &mut reading.dropped.dirty_bytes
            } else {
                &mut reading.dropped.clean_bytes
            };
            *bytes += record.range.len();
            return Ok(());
        }
        if !record.dirty {
            // `begin` syncs the store, so no older dirty record can come back.
            record.epoch = 0;
        }
        let slot = loaded.order.load(reading.state.id, record.range.start);
        let (last_use_ms, bytes) = (record.last_use_ms, record.range.len());
        self.uses.push(LoadedUse { last_use_ms, slot, bytes });
        loaded.generation += 1;
        let entry = Entry::new(&record, loaded.generation, slot);
        reading.extents.push((record.range.start, entry));
        loaded.counts.extents += 1;
        loaded.counts.mapped += record.range.len();
        if record.dirty {
            loaded.counts.dirty_extents += 1;
            loaded.counts.dirty += record.range.len();
        }
        Ok(())
    }

    fn finish(&mut self, reading: Option<Reading>) -> Result<()> {
        let Some(reading) = reading else { return Ok(()) };
        if reading.dropped.clean_bytes + reading.dropped.dirty_bytes > 0 {
            self.dropped.insert(reading.state.id, reading.dropped);
        }
        let extents = RangeMap::from_sorted(reading.extents)
            .ok_or_else(|| self.journal.damaged("two extents overlap"))?;
        let mut mapped = reading.state.mapped.write();
        self.space.count_loaded(&extents);
        mapped.extents = extents;
        Ok(())
    }

    fn end(self) -> Result<()> {
        for keys in self.doomed.chunks(DROP_BATCH) {
            let mut changes = self.journal.changes();
            for key in keys {
                changes.remove(key);
            }
            changes.commit()?;
        }
        self.loaded.order.start(self.uses);
        let recovery = &mut self.loaded.recovery;
        recovery.extents = self.loaded.counts.extents;
        recovery.dropped = self.dropped.into_values().collect();
        recovery.dropped.sort_by(|a, b| (&a.path, a.file).cmp(&(&b.path, b.file)));
        Ok(())
    }
}

fn load_critical(journal: &Journal, loaded: &mut Loaded) -> Result<()> {
    journal.scan(record::CRITICAL, |key, value| {
        let (wanted, order) =
            record::decode_critical(key, value).map_err(|bad| journal.damaged(bad.0))?;
        loaded.cdt.restore(wanted, order);
        Ok(())
    })
}
