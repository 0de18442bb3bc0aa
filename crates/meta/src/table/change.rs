//! Changes of one file's extents: each is planned on the index, committed to the store as one batch, then applied to the
//! index.

mod write_intents;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::cleaned::Cleaned;
use super::epochs::Epochs;
use super::extent_index::ExtentIndex;
use super::replace::{Piece, Replace, write_replace};
use crate::batch::Batch;
use crate::files::FileState;
use crate::owner::Owner;
use crate::record::{self, ExtentRecord};
use crate::records::RecordStore;
use crate::write_intent::{HELD, WriteIntent, outside};
use crate::{BLOCK, FileId};
use halocline_os::error::{Error, Result};

/// Upper bound of the ends of extents: the largest file offset, rounded down to a block.
pub(super) const END_MAX: u64 = i64::MAX as u64 / BLOCK * BLOCK;

/// The changes that a write makes.
#[derive(Debug, Default)]
struct Dirtied {
    /// In the store.
    record: Vec<Replace>,
    /// In memory.
    replace: Vec<Replace>,
    /// Stretches that the store records as dirty although only parts of them are.
    intents: Vec<WriteIntent>,
}

/// The changes of extents, and their records.
///
/// What must hold: memory is never ahead of the store, except by what needs no record.
#[derive(Debug)]
pub struct ExtentChanges {
    records: Arc<dyn RecordStore>,
    index: Arc<ExtentIndex>,
    epochs: Arc<Epochs>,
    /// Marks the origin before a first byte is dirty.
    owner: Arc<Owner>,
    cleaned: Cleaned,
    intent_bytes: u64,
}

impl ExtentChanges {
    /// Changes of what is in `index`; a first write into a clean extent records an aligned stretch of `intent_bytes` as dirty.
    pub(super) fn new(
        records: &Arc<dyn RecordStore>,
        index: &Arc<ExtentIndex>,
        epochs: &Arc<Epochs>,
        owner: &Arc<Owner>,
        intent_bytes: u64,
    ) -> Self {
        let (records, index, epochs) = (Arc::clone(records), Arc::clone(index), Arc::clone(epochs));
        let (owner, cleaned) = (Arc::clone(owner), Cleaned::default());
        Self { records, index, epochs, owner, cleaned, intent_bytes }
    }

    /// Fails if the store refuses changes because a write to it failed, with that failure. Lookups and writes to dirty
    /// extents still work; nothing can be mapped, cleaned or unmapped.
    pub fn usable(&self) -> Result<()> {
        self.records.usable()
    }

    /// Makes all records so far durable, without declaring any data durable: not a barrier.
    pub fn persist(&self) -> Result<()> {
        let noted = self.cleaned.noted();
        self.records.sync()?;
        self.cleaned.synced(noted);
        Ok(())
    }

    /// Ensures that no power loss brings back as dirty what is not dirty now: other nodes may be about to get it, and to
    /// write newer bytes to the origin. Does nothing where no such record can be on the disk.
    pub fn persist_cleaned(&self) -> Result<()> {
        if self.cleaned.may_come_back(self.cleaned.noted()) { self.persist() } else { Ok(()) }
    }

    /// Publishes `range`, whose data is on the cache at `placement`. The range MUST be unmapped.
    pub fn map(
        &self,
        file: FileId,
        range: ByteRange,
        placement: Placement,
        dirty: bool,
    ) -> Result<()> {
        if dirty {
            self.owner.mark().set();
        }
        let state = self.index.files().known(file)?;
        let _change = state.change.lock();
        check_mappable(&state, range)?;
        let now = self.index.now_ms();
        let record = ExtentRecord {
            range,
            placement,
            dirty,
            // Its data was written before this call, so the sync of this epoch's barrier, which
            // follows its cut, covers it.
            epoch: if dirty { self.epochs.current() } else { 0 },
            dirty_since_ms: if dirty { now } else { 0 },
            last_use_ms: now,
        };
        let mut batch = Batch::default();
        batch.put(&record::extent_key(file, range.start), &record::encode_extent(&record));
        self.records.commit(&batch)?;
        self.index.edit(&state).map(record);
        Ok(())
    }

    /// Sets `D_flag` on the mapped bytes of `range`, splitting clean extents at its bounds, and gives them a new
    /// generation; extents that are already dirty stay whole.
    pub fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.owner.mark().set();
        let state = self.index.files().known(file)?;
        // Before `redirty` looks: a flush that ends now must see the new generation or be over.
        let _change = state.change.lock();
        if self.redirty(&state, range) {
            // Nothing must be recorded, so a failed store does not matter: if this were refused, the write would go to
            // the origin under a dirty extent and be undone by the next flush.
            return Ok(());
        }
        let Dirtied { record, replace, intents } = self.plan_dirty(&state, range);
        self.commit(file, &record)?;
        let mut edit = self.index.edit(&state);
        for replace in replace {
            edit.replace(replace);
        }
        for intent in intents {
            edit.add_intent(intent);
        }
        Ok(())
    }

    /// The changes that a write to `range` makes. The caller holds `change`.
    fn plan_dirty(&self, state: &FileState, range: ByteRange) -> Dirtied {
        let now = self.index.now_ms();
        let epoch = self.epochs.current();
        let mut dirtied = Dirtied::default();
        let mapped = state.mapped();
        for (start, entry) in mapped.extents.overlapping(range) {
            if entry.dirty() {
                entry.generation.store(self.index.next_generation(), Relaxed);
                continue;
            }
            let whole = ByteRange::new(start, entry.end);
            let inside = whole.intersect(range).expect("the extent overlaps");
            let known = mapped.intents.at(start);
            let intent = known.unwrap_or_else(|| {
                let stretch = inside.widen_to(self.intent_bytes).intersect(whole);
                WriteIntent { range: stretch.expect("it holds what is inside"), epoch }
            });
            let generation = entry.generation.load(Relaxed);
            let clean = |part| Piece { record: entry.record(part), generation };
            let dirty = |part| Piece {
                record: ExtentRecord {
                    dirty: true,
                    epoch: intent.epoch,
                    dirty_since_ms: now,
                    last_use_ms: now,
                    ..entry.record(part)
                },
                generation: self.index.next_generation(),
            };
            let marked = intent.range.intersect(whole).expect("the intent holds it");
            if known.is_none() {
                let pieces = outside(whole, marked).map(clean).chain([dirty(marked)]);
                dirtied.record.push(Replace::new(start, pieces));
                if marked != inside {
                    dirtied.intents.push(intent);
                }
            }
            let held = outside(marked, inside).map(clean).map(Piece::held);
            let pieces = outside(whole, marked).map(clean).chain(held).chain([dirty(inside)]);
            dirtied.replace.push(Replace::new(start, pieces));
        }
        dirtied
    }

    /// Gives dirty extents under `range` new generations if all of them are dirty already: then nothing has to be
    /// recorded.
    fn redirty(&self, state: &FileState, range: ByteRange) -> bool {
        let mapped = state.mapped();
        // In one descent of the tree: an extent before the first clean one gets another generation from
        // `plan_dirty`, and it may change as often as it likes.
        mapped.extents.overlapping(range).all(|(_, entry)| {
            if entry.dirty() {
                entry.generation.store(self.index.next_generation(), Relaxed);
            }
            entry.dirty()
        })
    }

    /// Whether a barrier has covered a dirty extent under `range`: it survives a power loss, so what replaces it must
    /// be durable before it is unmapped (I4).
    pub fn promised(&self, file: FileId, range: ByteRange) -> bool {
        let Some(state) = self.index.files().state(file) else { return false };
        let completed = self.epochs.completed();
        let mapped = state.mapped();
        let mut extents = mapped.extents.overlapping(range);
        extents.any(|(_, entry)| entry.dirty() && entry.epoch <= completed)
    }

    /// Cuts dirty extents at the bounds of `range`, so that the part inside can be flushed or kept separately; returns
    /// whether there was one to cut.
    pub fn cut_dirty(&self, file: FileId, range: ByteRange) -> Result<bool> {
        let state = self.index.files().known(file)?;
        let _change = state.change.lock();
        let mut plan = Vec::new();
        let mapped = state.mapped();
        for (start, entry) in mapped.extents.overlapping(range).filter(|(_, e)| e.dirty()) {
            let whole = ByteRange::new(start, entry.end);
            let inside = whole.intersect(range).expect("the extent overlaps");
            let generation = entry.generation.load(Relaxed);
            let piece = |part| Piece { record: entry.record(part), generation };
            if inside != whole {
                plan.push(Replace::new(start, outside(whole, inside).chain([inside]).map(piece)));
            }
        }
        // Extents that an intent records as one stay in one piece.
        let unmarked = plan.iter().filter(|replace| mapped.intents.at(replace.start).is_none());
        let mut changes = Batch::default();
        for replace in unmarked {
            write_replace(&mut changes, file, replace);
        }
        drop(mapped);
        self.commit_unless_empty(&changes)?;
        let cut = !plan.is_empty();
        let mut edit = self.index.edit(&state);
        for replace in plan {
            edit.replace(replace);
        }
        Ok(cut)
    }

    /// Clears `D_flag` of every extent inside `range` whose generation equals the given one; returns the number of
    /// bytes. They become evictable at the next `barrier`.
    pub fn mark_clean(&self, file: FileId, cleaned: &[(ByteRange, u64)]) -> Result<u64> {
        let state = self.index.files().known(file)?;
        let _change = state.change.lock();
        let mapped = state.mapped();
        let mut plan = Vec::new();
        let mut may_come_back = false;
        for &(range, generation) in cleaned {
            for (start, entry) in mapped.extents.overlapping(range) {
                let whole = ByteRange::new(start, entry.end);
                let unchanged = entry.generation.load(Relaxed) == generation;
                if entry.dirty() && unchanged && range.contains(whole) {
                    may_come_back |= self.epochs.may_cover(entry.epoch);
                    let record = ExtentRecord {
                        dirty: false,
                        epoch: 0,
                        dirty_since_ms: 0,
                        ..entry.record(whole)
                    };
                    plan.push(Replace { start, pieces: vec![Piece { record, generation }] });
                }
            }
        }
        plan.sort_by_key(|replace| replace.start);
        plan.dedup_by_key(|replace| replace.start);
        let bytes = plan.iter().map(Replace::bytes).sum();
        // Inside an intent nothing is recorded until all of it is clean.
        let planned = |start| plan.binary_search_by_key(&start, |replace| replace.start).is_ok();
        let touched = plan.iter().map(|replace| replace.start);
        let all_clean = write_intents::all_clean(&mapped, planned, touched);
        let records = write_intents::clean_records(state.id, &mapped, &plan, &all_clean);
        drop(mapped);
        self.commit_unless_empty(&records)?;
        if may_come_back {
            self.cleaned.note();
        }
        // Read after the commit: a barrier that completes this epoch syncs the commit.
        let epoch = self.epochs.current();
        let mut edit = self.index.edit(&state);
        for mut replace in plan {
            let marked = edit.has_intent_at(replace.start);
            replace.pieces[0].record.epoch = if marked { HELD } else { epoch };
            edit.replace(replace);
        }
        for intent in all_clean {
            edit.merge(intent, epoch);
        }
        Ok(bytes)
    }

    /// Unmaps all of `range`, dirty or not, and queues its space for discarding. For a file that was forgotten
    /// meanwhile this does nothing: a caller that drops its bytes need not know which of the two came first.
    pub fn unmap(&self, file: FileId, range: ByteRange) -> Result<()> {
        let Ok(state) = self.index.files().known(file) else { return Ok(()) };
        let _change = state.change.lock();
        let intents: Vec<_> = state.mapped().intents.overlapping(range).collect();
        // The rest of an intent is recorded as it is.
        let around = intents.iter().fold(range, |all, intent| {
            ByteRange::new(all.start.min(intent.range.start), all.end.max(intent.range.end))
        });
        let (mut plan, gone) = plan_unmap(&state, range, around);
        self.commit(file, &plan)?;
        let is_dirty = |record: &ExtentRecord| record.dirty && self.epochs.may_cover(record.epoch);
        if gone.iter().any(|record| record.epoch == HELD || is_dirty(record)) {
            self.cleaned.note();
        }
        let epoch = self.epochs.current();
        for replace in &mut plan {
            replace.release(epoch);
        }
        let mut edit = self.index.edit(&state);
        for intent in intents {
            edit.remove_intent(intent);
        }
        edit.unmap(plan, gone, epoch);
        Ok(())
    }

    /// For a store that is not [`usable`](Self::usable): unmaps `range` in memory, after `distrust` has ensured by other means
    /// that no later opening trusts what the records say about these bytes, which were dirty or not.
    pub(super) fn unmap_unrecorded(
        &self,
        file: FileId,
        range: ByteRange,
        distrust: impl FnOnce(bool) -> Result<()>,
    ) -> Result<()> {
        debug_assert!(self.usable().is_err(), "a store that works records it");
        let state = self.index.files().known(file)?;
        let _change = state.change.lock();
        let (any, dirty) = {
            let mapped = state.mapped();
            let dirty = mapped.extents.dirty(range).any(|extent| extent.range.overlaps(range))
                // Bytes inside an intent are recorded as dirty, and stay so.
                || mapped.intents.overlapping(range).next().is_some();
            (mapped.extents.overlapping(range).next().is_some(), dirty)
        };
        if !any {
            return Ok(());
        }
        // Before the caller may change the bytes, because the records contradict this (I1).
        distrust(dirty)?;
        let (plan, gone) = plan_unmap(&state, range, range);
        let mut edit = self.index.edit(&state);
        edit.cut_intents(range);
        edit.unmap(plan, gone, self.epochs.current());
        Ok(())
    }

    /// Records the pieces of every intent as they are: the clean ones can be evicted after the next barrier.
    pub(super) fn settle_intents(&self) -> Result<()> {
        for state in self.index.files().states() {
            let _change = state.change.lock();
            let intents: Vec<_> = state.mapped().intents.all().collect();
            for intent in intents {
                self.settle(&state, intent)?;
            }
        }
        Ok(())
    }

    /// The same for one intent. The caller holds `change`.
    fn settle(&self, state: &FileState, intent: WriteIntent) -> Result<()> {
        let plan = write_intents::pieces(&state.mapped(), intent);
        self.commit(state.id, &plan)?;
        let epoch = self.epochs.current();
        let mut edit = self.index.edit(state);
        for mut replace in plan {
            replace.release(epoch);
            edit.replace(replace);
        }
        edit.remove_intent(intent);
        Ok(())
    }

    /// Commits a plan for one file as one batch.
    fn commit(&self, file: FileId, plan: &[Replace]) -> Result<()> {
        let mut changes = Batch::default();
        for replace in plan {
            write_replace(&mut changes, file, replace);
        }
        // A failed store does not prevent a change that needs no record.
        self.commit_unless_empty(&changes)
    }

    /// Commits a batch unless it is empty.
    fn commit_unless_empty(&self, batch: &Batch) -> Result<()> {
        if batch.is_empty() { Ok(()) } else { self.records.commit(batch) }
    }
}

/// The replacements among the extents `around` it when `range` is unmapped, and the records of the removed bytes.
/// The caller holds `change`.
fn plan_unmap(
    state: &FileState,
    range: ByteRange,
    around: ByteRange,
) -> (Vec<Replace>, Vec<ExtentRecord>) {
    let mut plan = Vec::new();
    let mut gone = Vec::new();
    for (start, entry) in state.mapped().extents.overlapping(around) {
        let whole = ByteRange::new(start, entry.end);
        let generation = entry.generation.load(Relaxed);
        let pieces = outside(whole, range)
            .map(|part| Piece { record: entry.record(part), generation })
            .collect();
        plan.push(Replace { start, pieces });
        gone.extend(whole.intersect(range).map(|part| entry.record(part)));
    }
    (plan, gone)
}

fn check_mappable(state: &FileState, range: ByteRange) -> Result<()> {
    let fault = |what: &str| {
        let what = format!("bytes {}..{} of file {} {what}", range.start, range.end, state.id.0);
        Err(Error::invalid(what, "this is a fault of the program"))
    };
    if range.is_empty() || range.end > END_MAX || range.len() > record::EXTENT_LEN_MAX {
        return fault("cannot be one extent");
    }
    if state.mapped().extents.overlapping(range).next().is_some() {
        return fault("are mapped already");
    }
    Ok(())
}
