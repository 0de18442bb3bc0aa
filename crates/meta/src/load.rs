//! Loads the tables from the records, and determines what is still valid after a clean close, a crash or a power loss.
//!
//! After a crash of the process everything acknowledged is there (I4). After a power loss the records are a consistent
//! prefix, but the data may be older than they say: clean extents are dropped, and so are dirty ones that no barrier
//! has covered; each loss is listed (I6).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::batch::Batch;
use super::block_accounting::Space;
use super::cdt::Cdt;
use super::eviction_queue::{EvictionQueue, LoadedUse};
use super::files::{FileState, Files};
use super::rangemap::{Entry, RangeMap};
use super::record::{self, ExtentRecord, Malformed, State};
use super::records::{self, RecordStore};
use super::{FileId, FileRecord, Removal};
use halocline_os::error::{Error, Result};

/// Records are dropped in batches of this many.
const DROP_BATCH: usize = 4096;

/// How the last session of the cache ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
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
    /// Bytes recorded as dirty that no fsync had covered: they are lost (I6), except for clean ones next to them that
    /// the origin has ([`INTENT_BYTES`](super::write_intent::INTENT_BYTES)).
    pub dirty_bytes: u64,
}

/// What was found when the cache was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// How the last session of the cache ended.
    pub last_shutdown: Shutdown,
    /// Files found.
    pub files: u64,
    /// Extents kept.
    pub extents: u64,
    /// What was dropped, by path.
    pub dropped: Vec<Dropped>,
    /// Why the records are incomplete, if salvaging damaged ones was requested
    /// ([`Access::Salvage`](super::table::Access::Salvage)).
    pub damage: Option<String>,
    /// Cache objects may hold blocks that no extent and no counter accounts for: the caller MUST punch everything
    /// outside the extents, and remove objects of unknown files, before it writes, and then call `trimmed` (I5).
    pub trim: bool,
}

/// The state in memory, as loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) files: Files,
    pub(crate) eviction_queue: EvictionQueue,
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

/// Where records are loaded from, and the accounting of their bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) records: &'a dyn RecordStore,
    /// Their path, for errors.
    pub(crate) path: &'a Path,
    pub(crate) space: &'a Space,
}

impl Source<'_> {
    fn damaged(&self, what: &str) -> Error {
        records::damaged(self.path, what)
    }
}

/// Loads everything and makes what is kept durable; `boot_id` distinguishes a crash from a power loss.
pub(crate) fn load(
    source: Source<'_>,
    eviction_queue: EvictionQueue,
    cdt: Cdt,
    boot_id: &str,
) -> Result<Loaded> {
    let mut loader = Loader::new(source, eviction_queue, cdt, boot_id);
    source.records.scan(&mut |key, value| loader.take(key, value))?;
    let (found, lost) = loader.end()?;
    begin(source.records, &found, lost, boot_id)?;
    Ok(found)
}

fn last_shutdown(state: &State, boot_id: &str) -> Shutdown {
    if state.closed {
        Shutdown::Closed
    } else if state.boot_id == boot_id {
        Shutdown::Crashed
    } else {
        Shutdown::PowerLost
    }
}

/// Only here, after every loss was determined, does the store count as opened by this boot. Dirty bytes that are `lost`
/// are removed in the same batch: after an earlier crash the same losses are found again (I6).
fn begin(records: &dyn RecordStore, loaded: &Loaded, lost: Batch, boot_id: &str) -> Result<()> {
    let state = State { closed: false, untrimmed: false, boot_id: boot_id.to_owned() };
    let mut batch = lost;
    batch.put(record::EPOCH_KEY, &record::encode_counter(loaded.completed));
    batch.put(record::STATE_KEY, &record::encode_state(&state));
    records.commit(&batch)?;
    records.sync()
}

/// One file's extents while they are read.
struct Reading {
    state: Arc<FileState>,
    extents: Vec<(u64, Entry)>,
    dropped: Dropped,
}

/// Accepts the records in the order of their keys: critical ranges, files, the state, extents.
struct Loader<'a> {
    source: Source<'a>,
    boot_id: &'a str,
    loaded: Loaded,
    reading: Option<Reading>,
    uses: Vec<LoadedUse>,
    /// Clean extents to drop, and the removal of dirty ones.
    doomed: Vec<[u8; 17]>,
    lost: Batch,
    /// Bytes of all extents: so every partial sum fits, too.
    bytes: u64,
    dropped: HashMap<FileId, Dropped>,
}

impl<'a> Loader<'a> {
    fn new(source: Source<'a>, eviction_queue: EvictionQueue, cdt: Cdt, boot_id: &'a str) -> Self {
        let loaded = Loaded {
            files: Files::default(),
            eviction_queue,
            cdt,
            counts: Counts::default(),
            generation: 0,
            epoch: 0,
            completed: 0,
            recovery: Recovery {
                last_shutdown: Shutdown::Never,
                files: 0,
                extents: 0,
                dropped: Vec::new(),
                damage: None,
                trim: false,
            },
        };
        Self {
            source,
            boot_id,
            loaded,
            reading: None,
            uses: Vec::new(),
            doomed: Vec::new(),
            lost: Batch::default(),
            bytes: 0,
            dropped: HashMap::new(),
        }
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let taken = match (key, key.first()) {
            (_, Some(&record::EXTENT)) => record::decode_extent(key, value)
                .map(|(file, record)| self.take_extent(file, record)),
            (_, Some(&record::FILE)) => {
                record::decode_file(key, value).map(|record| self.take_file(record))
            }
            (_, Some(&record::CRITICAL)) => {
                record::decode_critical(key, value).map(|(wanted, order)| {
                    self.loaded.cdt.restore(wanted, order);
                    Ok(())
                })
            }
            (record::STATE_KEY, _) => record::decode_state(value).map(|state| {
                self.take_state(&state);
                Ok(())
            }),
            (record::EPOCH_KEY, _) => {
                record::decode_counter_within(value, record::EPOCH_MAX).map(|epoch| {
                    (self.loaded.epoch, self.loaded.completed) = (epoch, epoch);
                    Ok(())
                })
            }
            (record::NEXT_FILE_KEY, _) => record::decode_counter_within(value, record::COUNTER_MAX)
                .map(|next| {
                    self.loaded.files.next = self.loaded.files.next.max(next);
                    Ok(())
                }),
            _ => Err(Malformed("a record of an unknown kind")),
        };
        taken.map_err(|bad| self.source.damaged(bad.0))?
    }

    fn take_state(&mut self, state: &State) {
        let recovery = &mut self.loaded.recovery;
        recovery.last_shutdown = last_shutdown(state, self.boot_id);
        recovery.trim = recovery.last_shutdown != Shutdown::Closed || state.untrimmed;
    }

    fn take_file(&mut self, record: FileRecord) -> Result<()> {
        let loaded = &mut self.loaded;
        if loaded.files.find(record.key).is_some() {
            return Err(self.source.damaged("two files with one identity"));
        }
        loaded.files.add(record);
        loaded.recovery.files += 1;
        Ok(())
    }

    fn take_extent(&mut self, file: FileId, mut record: ExtentRecord) -> Result<()> {
        if self.reading.as_ref().is_none_or(|reading| reading.state.id != file) {
            self.finish()?;
            self.reading = Some(self.begin(file)?);
        }
        let reading = self.reading.as_mut().expect("set above");
        let loaded = &mut self.loaded;
        self.bytes = self.bytes.checked_add(record.range.len()).ok_or_else(|| {
            self.source.damaged("its extents have more bytes than can be counted")
        })?;
        if record.dirty {
            loaded.epoch = loaded.epoch.max(record.epoch);
        }
        let lost = loaded.recovery.last_shutdown == Shutdown::PowerLost
            && (!record.dirty || record.epoch > loaded.completed);
        if lost {
            let key = record::extent_key(file, record.range.start);
            if record.dirty {
                self.lost.remove(&key);
                reading.dropped.dirty_bytes += record.range.len();
            } else {
                self.doomed.push(key);
                reading.dropped.clean_bytes += record.range.len();
            }
            return Ok(());
        }
        if !record.dirty {
            // `begin` syncs the store, so no older dirty record can come back.
            record.epoch = 0;
        }
        let slot = loaded.eviction_queue.load(reading.state.id, record.range.start);
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

    fn begin(&self, file: FileId) -> Result<Reading> {
        let Some(state) = self.loaded.files.get(file) else {
            return Err(self.source.damaged("an extent without its file"));
        };
        let path = state.record.lock().path.clone();
        Ok(Reading {
            state: Arc::clone(state),
            extents: Vec::new(),
            dropped: Dropped { file, path, clean_bytes: 0, dirty_bytes: 0 },
        })
    }

    /// Completes the file whose extents were read last.
    fn finish(&mut self) -> Result<()> {
        let Some(reading) = self.reading.take() else { return Ok(()) };
        // Nobody misses what a removed file had.
        let is_removed = reading.state.record.lock().removal == Removal::Done;
        if !is_removed && reading.dropped.clean_bytes + reading.dropped.dirty_bytes > 0 {
            self.dropped.insert(reading.state.id, reading.dropped);
        }
        let extents = RangeMap::from_sorted(reading.extents)
            .ok_or_else(|| self.source.damaged("two extents overlap"))?;
        self.source.space.count_loaded(&extents);
        reading.state.load(extents);
        Ok(())
    }

    fn end(mut self) -> Result<(Loaded, Batch)> {
        self.finish()?;
        for keys in self.doomed.chunks(DROP_BATCH) {
            let mut batch = Batch::default();
            for key in keys {
                batch.remove(key);
            }
            self.source.records.commit(&batch)?;
        }
        let mut loaded = self.loaded;
        loaded.eviction_queue.start(self.uses);
        loaded.files.next = loaded.files.next.max(1);
        if loaded.recovery.last_shutdown == Shutdown::Closed {
            loaded.completed = loaded.epoch;
        }
        let recovery = &mut loaded.recovery;
        recovery.extents = loaded.counts.extents;
        recovery.dropped = self.dropped.into_values().collect();
        recovery.dropped.sort_by(|a, b| (&a.path, a.file).cmp(&(&b.path, b.file)));
        Ok((loaded, self.lost))
    }
}
