//! Eviction: clean, durable, unpinned extents in the policy's order, as many as are needed or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::request::ByteRange;

use super::epochs::Epochs;
use super::extent_index::ExtentIndex;
use crate::batch::Batch;
use crate::eviction_queue::Offered;
use crate::files::{FileState, Files};
use crate::records::RecordStore;
use crate::write_intent::HELD;
use crate::{BLOCK, Discard, FileId, record};
use halocline_os::error::Result;

type Lock<'a> = &'a mut dyn FnMut(FileId, ByteRange) -> bool;

/// The victims found in one file.
#[derive(Debug)]
struct Victims {
    state: Arc<FileState>,
    starts: BTreeSet<u64>,
    /// What the caller has locked: disjoint and ordered.
    locked: Vec<ByteRange>,
}

/// A search for victims.
struct Search<'a> {
    files: &'a Files,
    completed: u64,
    keep: Option<(FileId, ByteRange)>,
    lock: Lock<'a>,
    wanted: u64,
    freed: u64,
    found: BTreeMap<FileId, Victims>,
}

/// Takes extents off the cache.
#[derive(Debug)]
pub struct Evictor {
    records: Arc<dyn RecordStore>,
    index: Arc<ExtentIndex>,
    epochs: Arc<Epochs>,
    /// Whether space was needed that is taken by held extents.
    crowded: AtomicBool,
}

impl Evictor {
    pub(super) fn new(
        records: &Arc<dyn RecordStore>,
        index: &Arc<ExtentIndex>,
        epochs: &Arc<Epochs>,
    ) -> Self {
        let (records, index, epochs) = (Arc::clone(records), Arc::clone(index), Arc::clone(epochs));
        Self { records, index, epochs, crowded: false.into() }
    }

    /// Whether, since the last call, space was needed that is taken by extents that dirty neighbours hold.
    pub(super) fn was_crowded(&self) -> bool {
        self.crowded.swap(false, Relaxed)
    }

    /// Protects a file's extents from eviction, or allows it again. Not durable: the engine applies its globs at each
    /// mount.
    pub fn pin(&self, file: FileId, pinned: bool) {
        let Some(state) = self.index.files().state(file) else { return };
        let was = state.pinned.swap(pinned, Relaxed);
        if was && !pinned {
            self.index.unpark(&state);
        }
    }

    /// Unmaps clean, durable, unpinned extents in the policy's order until `bytes` are freed, but none that overlaps
    /// `keep`, and returns what the caller must now discard before it calls `discarded`. `lock` is called with the
    /// whole blocks of each extent, never twice for the same byte, and must not wait: `false` skips the extent. The
    /// caller holds what `lock` locked until it has discarded the blocks, so that no reader loses bytes (I2). If there
    /// are not enough evictable bytes, evicts nothing and returns an empty list.
    pub fn evict(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: Lock<'_>,
    ) -> Result<Vec<Discard>> {
        self.records.usable()?;
        if bytes == 0 || self.index.evictable_at_most() < bytes {
            return Ok(Vec::new());
        }
        let found = {
            let files = self.index.files().read();
            let mut search = Search {
                files: &files,
                completed: self.epochs.completed(),
                keep,
                lock,
                wanted: bytes,
                freed: 0,
                found: BTreeMap::new(),
            };
            self.index.search(|file, start| search.judge(file, start));
            if search.freed < bytes {
                if self.index.any_held() {
                    self.crowded.store(true, Relaxed);
                }
                return Ok(Vec::new());
            }
            search.found
        };
        self.drop_victims(&found)
    }

    /// Unmaps the victims as one batch and hands their blocks out for discarding.
    fn drop_victims(&self, found: &BTreeMap<FileId, Victims>) -> Result<Vec<Discard>> {
        let completed = self.epochs.completed();
        let _changes: Vec<_> = found.values().map(|victims| victims.state.change.lock()).collect();
        let mut changes = Batch::default();
        let mut doomed = Vec::new();
        for (&file, victims) in found {
            let mapped = victims.state.mapped();
            for &start in &victims.starts {
                let still = mapped.extents.get(start);
                if still.is_some_and(|entry| !entry.dirty() && entry.epoch <= completed) {
                    changes.remove(&record::extent_key(file, start));
                    doomed.push((file, start));
                }
            }
        }
        self.records.commit(&changes)?;
        let mut discards = Vec::new();
        for (file, start) in doomed {
            self.index.edit(&found[&file].state).evict(start, &mut discards);
        }
        Ok(discards)
    }
}

impl Search<'_> {
    fn judge(&mut self, file: FileId, start: u64) -> Offered {
        let Some(state) = self.files.get(file) else { return Offered::Skip };
        let Some(mapped) = state.try_mapped() else { return Offered::Skip };
        let Some(entry) = mapped.extents.get(start) else { return Offered::Skip };
        if entry.dirty() || entry.epoch == HELD || state.pinned.load(Relaxed) {
            return Offered::Park;
        }
        let range = ByteRange::new(start, entry.end);
        let kept = self.keep.is_some_and(|(kept, part)| kept == file && part.overlaps(range));
        if kept || entry.epoch > self.completed {
            return Offered::Skip;
        }
        let blocks = range.widen_to(BLOCK);
        let victims = self.found.entry(file).or_insert_with(|| Victims {
            state: Arc::clone(state),
            starts: BTreeSet::new(),
            locked: Vec::new(),
        });
        if !lock_rest(&mut victims.locked, blocks, |part| (self.lock)(file, part)) {
            return Offered::Skip;
        }
        victims.starts.insert(start);
        let freed =
            mapped.blocks.uncovered_without(&mapped.extents, blocks, entry.placement, |other| {
                victims.starts.contains(&other)
            });
        self.freed += freed.iter().map(|part| part.len()).sum::<u64>();
        if self.freed >= self.wanted { Offered::TakeLast } else { Offered::Take }
    }
}

/// Locks the parts of `range` that are not yet in `locked`: neighbours share blocks, and the caller could not lock
/// again what it already holds.
fn lock_rest(
    locked: &mut Vec<ByteRange>,
    range: ByteRange,
    mut lock: impl FnMut(ByteRange) -> bool,
) -> bool {
    let mut at = range.start;
    while at < range.end {
        let next = locked.partition_point(|held| held.end <= at);
        match locked.get(next) {
            Some(held) if held.start <= at => at = held.end,
            held => {
                let end = held.map_or(range.end, |held| held.start.min(range.end));
                let part = ByteRange::new(at, end);
                if !lock(part) {
                    return false;
                }
                locked.insert(next, part);
                at = end;
            }
        }
    }
    true
}
