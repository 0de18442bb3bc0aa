//! Changes of one file's extents: each is planned, committed as one batch, then applied.

use std::sync::atomic::Ordering::Relaxed;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::replace::{Piece, Replace, write_replace};
use super::{ExtentTable, write_intents};
use crate::batch::Batch;
use crate::eviction_queue::EvictionQueue;
use crate::files::{FileState, Mapped};
use crate::rangemap::Entry;
use crate::record::{self, ExtentRecord};
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

impl ExtentTable {
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
        let state = self.files.known(file)?;
        let _change = state.change.lock();
        check_mappable(&state, range)?;
        let now = self.now_ms();
        let mut record = ExtentRecord {
            range,
            placement,
            dirty,
            // Its data was written before this call, so the sync of this epoch's barrier, which
            // follows its cut, covers it.
            epoch: if dirty { self.epochs.current() } else { 0 },
            dirty_since_ms: if dirty { now } else { 0 },
            last_use_ms: now,
        };
        let key = record::extent_key(file, range.start);
        self.put(&key, &record::encode_extent(&record))?;

        let mut mapped = state.mapped.write();
        let Mapped { extents, blocks, .. } = &mut *mapped;
        let epoch = blocks.occupy(extents, &self.space, range, placement);
        if !dirty {
            record.epoch = epoch;
        }
        let slot = self.eviction_queue.lock().insert(file, range.start, range.len());
        extents.insert(range.start, Entry::new(&record, self.next_generation(), slot));
        self.sums.count(&record, 1);
        self.busy.update(&state, &mapped);
        Ok(())
    }

    /// Sets `D_flag` on the mapped bytes of `range`, splitting clean extents at its bounds, and gives them a new
    /// generation; extents that are already dirty stay whole.
    pub fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.owner.mark().set();
        let state = self.files.known(file)?;
        // Before `redirty` looks: a flush that ends now must see the new generation or be over.
        let _change = state.change.lock();
        if self.redirty(&state, range) {
            // Nothing must be recorded, so a failed store does not matter: if this were refused, the write would go to
            // the origin under a dirty extent and be undone by the next flush.
            return Ok(());
        }
        let Dirtied { record, replace, intents } = self.plan_dirty(&state, range);
        self.commit(file, &record)?;
        let mut mapped = state.mapped.write();
        for replace in replace {
            self.apply(file, &mut mapped, &mut self.eviction_queue.lock(), replace);
        }
        for intent in intents {
            mapped.intents.insert(intent);
            debug_assert!(intent.is_covered_by(&mapped.extents), "an intent without its extents");
        }
        self.busy.update(&state, &mapped);
        Ok(())
    }

    /// The changes that a write to `range` makes. The caller holds `change`.
    fn plan_dirty(&self, state: &FileState, range: ByteRange) -> Dirtied {
        let now = self.now_ms();
        let epoch = self.epochs.current();
        let mut dirtied = Dirtied::default();
        let mapped = state.mapped.read();
        for (start, entry) in mapped.extents.overlapping(range) {
            if entry.dirty() {
                entry.generation.store(self.next_generation(), Relaxed);
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
                generation: self.next_generation(),
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
        let mapped = state.mapped.read();
        // In one descent of the tree: an extent before the first clean one gets another generation from
        // `plan_dirty`, and it may change as often as it likes.
        mapped.extents.overlapping(range).all(|(_, entry)| {
            if entry.dirty() {
                entry.generation.store(self.next_generation(), Relaxed);
            }
            entry.dirty()
        })
    }

    /// Whether a barrier has covered a dirty extent under `range`: it survives a power loss, so what replaces it must
    /// be durable before it is unmapped (I4).
    pub fn promised(&self, file: FileId, range: ByteRange) -> bool {
        let Some(state) = self.files.state(file) else { return false };
        let completed = self.epochs.completed();
        let mapped = state.mapped.read();
        let mut extents = mapped.extents.overlapping(range);
        extents.any(|(_, entry)| entry.dirty() && entry.epoch <= completed)
    }

    /// Cuts dirty extents at the bounds of `range`, so that the part inside can be flushed or kept separately; returns
    /// whether there was one to cut.
    pub fn cut_dirty(&self, file: FileId, range: ByteRange) -> Result<bool> {
        let state = self.files.known(file)?;
        let _change = state.change.lock();
        let mut plan = Vec::new();
        let mapped = state.mapped.read();
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
        let mut mapped = state.mapped.write();
        for replace in plan {
            self.apply(file, &mut mapped, &mut self.eviction_queue.lock(), replace);
        }
        self.busy.update(&state, &mapped);
        Ok(cut)
    }

    /// Clears `D_flag` of every extent inside `range` whose generation equals the given one; returns the number of
    /// bytes. They become evictable at the next `barrier`.
    pub fn mark_clean(&self, file: FileId, cleaned: &[(ByteRange, u64)]) -> Result<u64> {
        let state = self.files.known(file)?;
        let _change = state.change.lock();
        let mapped = state.mapped.read();
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
        drop(mapped);
        self.commit_clean(&state, &plan, &all_clean)?;
        if may_come_back {
            self.cleaned.note();
        }
        // Read after the commit: a barrier that completes this epoch syncs the commit.
        let epoch = self.epochs.current();
        let mut mapped = state.mapped.write();
        for mut replace in plan {
            let marked = mapped.intents.at(replace.start).is_some();
            replace.pieces[0].record.epoch = if marked { HELD } else { epoch };
            self.apply(file, &mut mapped, &mut self.eviction_queue.lock(), replace);
        }
        for intent in all_clean {
            self.merge(&mut mapped, intent, epoch);
        }
        self.busy.update(&state, &mapped);
        Ok(bytes)
    }

    /// Unmaps all of `range`, dirty or not, and queues its space for discarding. For a file that was forgotten
    /// meanwhile this does nothing: a caller that drops its bytes need not know which of the two came first.
    pub fn unmap(&self, file: FileId, range: ByteRange) -> Result<()> {
        let Ok(state) = self.files.known(file) else { return Ok(()) };
        let _change = state.change.lock();
        let intents: Vec<_> = state.mapped.read().intents.overlapping(range).collect();
        // The rest of an intent is recorded as it is.
        let around = intents.iter().fold(range, |all, intent| {
            ByteRange::new(all.start.min(intent.range.start), all.end.max(intent.range.end))
        });
        let (mut plan, gone) = Self::plan_unmap(&state, range, around);
        self.commit(file, &plan)?;
        let is_dirty = |record: &ExtentRecord| record.dirty && self.epochs.may_cover(record.epoch);
        if gone.iter().any(|record| record.epoch == HELD || is_dirty(record)) {
            self.cleaned.note();
        }
        let epoch = self.epochs.current();
        for replace in &mut plan {
            replace.release(epoch);
        }
        {
            let mut mapped = state.mapped.write();
            for intent in intents {
                mapped.intents.remove(intent);
            }
        }
        self.apply_unmap(&state, plan, gone, epoch);
        Ok(())
    }

    /// The replacements among the extents `around` it when `range` is unmapped, and the records of the removed bytes.
    /// The caller holds `change`.
    pub(super) fn plan_unmap(
        state: &FileState,
        range: ByteRange,
        around: ByteRange,
    ) -> (Vec<Replace>, Vec<ExtentRecord>) {
        let mut plan = Vec::new();
        let mut gone = Vec::new();
        for (start, entry) in state.mapped.read().extents.overlapping(around) {
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

    /// Unmaps in memory what was planned and recorded in `epoch`.
    pub(super) fn apply_unmap(
        &self,
        state: &FileState,
        plan: Vec<Replace>,
        gone: Vec<ExtentRecord>,
        epoch: u64,
    ) {
        let mut mapped = state.mapped.write();
        for replace in plan {
            self.apply(state.id, &mut mapped, &mut self.eviction_queue.lock(), replace);
        }
        for record in gone {
            // Punching may begin once no record of these bytes can come back.
            let due = if record.dirty || record.epoch == HELD { epoch } else { record.epoch };
            retire(&mut mapped, &record, due);
        }
        self.busy.update(state, &mapped);
    }

    /// Commits a plan for one file as one batch.
    pub(super) fn commit(&self, file: FileId, plan: &[Replace]) -> Result<()> {
        let mut changes = Batch::default();
        for replace in plan {
            write_replace(&mut changes, file, replace);
        }
        // A failed store does not prevent a change that needs no record.
        self.commit_unless_empty(&changes)
    }

    /// Applies a committed replacement. The first piece that was not used just now keeps the extent's place in the
    /// eviction queue.
    pub(super) fn apply(
        &self,
        file: FileId,
        mapped: &mut Mapped,
        queue: &mut EvictionQueue,
        replace: Replace,
    ) {
        let old = mapped.extents.remove(replace.start).expect("planned under `change`");
        let old_record = old.record(ByteRange::new(replace.start, old.end));
        self.sums.count(&old_record, -1);
        let heir = replace
            .pieces
            .iter()
            .position(|piece| piece.record.last_use_ms == old_record.last_use_ms)
            .unwrap_or(0);
        if replace.pieces.is_empty() {
            queue.remove(old.slot);
        }
        for (index, piece) in replace.pieces.into_iter().enumerate() {
            let ByteRange { start, end } = piece.record.range;
            let slot = if index == heir {
                queue.renamed(old.slot, start);
                if piece.record.last_use_ms != old_record.last_use_ms {
                    queue.touch(old.slot);
                }
                old.slot
            } else {
                queue.insert(file, start, end - start)
            };
            if !piece.record.dirty && piece.record.epoch != HELD {
                queue.unpark(slot, end - start);
            }
            self.sums.count(&piece.record, 1);
            mapped.extents.insert(start, Entry::new(&piece.record, piece.generation, slot));
        }
    }
}

/// Makes the blocks of an unmapped range wait for `epoch`. A clean neighbour that still needs some of these blocks
/// waits, too: it must not be evicted earlier.
fn retire(mapped: &mut Mapped, record: &ExtentRecord, epoch: u64) {
    let Mapped { extents, blocks, .. } = mapped;
    blocks.retire(extents, record.range, record.placement, epoch);
    let neighbours: Vec<u64> = extents
        .overlapping(record.range.widen_to(BLOCK))
        .filter(|(_, entry)| entry.placement == record.placement && !entry.dirty())
        .map(|(start, _)| start)
        .collect();
    for start in neighbours {
        let entry = extents.get_mut(start).expect("it was just seen");
        entry.epoch = entry.epoch.max(epoch);
    }
}

fn check_mappable(state: &FileState, range: ByteRange) -> Result<()> {
    let fault = |what: &str| {
        let what = format!("bytes {}..{} of file {} {what}", range.start, range.end, state.id.0);
        Err(Error::invalid(what, "this is a fault of the program"))
    };
    if range.is_empty() || range.end > END_MAX || range.len() > record::EXTENT_LEN_MAX {
        return fault("cannot be one extent");
    }
    if state.mapped.read().extents.overlapping(range).next().is_some() {
        return fault("are mapped already");
    }
    Ok(())
}
