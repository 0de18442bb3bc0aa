//! Merges write intents when all of an intent is clean, and records them piece by piece when that is necessary.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::ExtentTable;
use super::replace::{Piece, Replace, write_replace};
use crate::FileId;
use crate::batch::Batch;
use crate::files::{FileState, Mapped};
use crate::rangemap::{Entry, RangeMap};
use crate::record::ExtentRecord;
use crate::write_intent::WriteIntent;
use halocline_os::error::Result;

/// The intents with one of the extents in `starts` in which nothing is dirty except what is in `cleaned`.
pub(super) fn all_clean(
    mapped: &Mapped,
    cleaned: impl Fn(u64) -> bool,
    starts: impl Iterator<Item = u64>,
) -> Vec<WriteIntent> {
    let touched = starts.filter_map(|start| mapped.intents.at(start));
    let touched: BTreeMap<u64, WriteIntent> =
        touched.map(|intent| (intent.range.start, intent)).collect();
    let clean = |intent: &WriteIntent| {
        let mut extents = mapped.extents.overlapping(intent.range);
        extents.all(|(start, entry)| !entry.dirty() || cleaned(start))
    };
    touched.into_values().filter(clean).collect()
}

/// A clean intent as one extent, last used when the last of its pieces was.
fn merged(extents: &RangeMap, intent: WriteIntent, epoch: u64) -> ExtentRecord {
    let pieces = || extents.overlapping(intent.range).map(|(_, entry)| entry);
    let first = pieces().next().expect("an intent is covered");
    ExtentRecord {
        range: intent.range,
        placement: first.placement,
        dirty: false,
        epoch,
        dirty_since_ms: 0,
        last_use_ms: pieces().map(|entry| entry.last_use_ms.load(Relaxed)).max().unwrap_or(0),
    }
}

impl ExtentTable {
    /// Records that extents are clean: those outside intents, and the intents in `all_clean`.
    pub(super) fn commit_clean(
        &self,
        state: &FileState,
        plan: &[Replace],
        all_clean: &[WriteIntent],
    ) -> Result<()> {
        let mut changes = Batch::default();
        let mapped = state.mapped.read();
        for replace in plan.iter().filter(|replace| mapped.intents.at(replace.start).is_none()) {
            write_replace(&mut changes, state.id, replace);
        }
        for &intent in all_clean {
            let record = merged(&mapped.extents, intent, 0);
            let piece = Piece { record, generation: 0 };
            let start = intent.range.start;
            write_replace(&mut changes, state.id, &Replace { start, pieces: vec![piece] });
        }
        drop(mapped);
        self.commit_unless_empty(&changes)
    }

    /// Turns an intent in which nothing is dirty any more, recorded in `epoch`, into one extent. It takes the place in
    /// the eviction queue of the piece that was used last.
    pub(super) fn merge(&self, mapped: &mut Mapped, intent: WriteIntent, epoch: u64) {
        debug_assert!(intent.is_covered_by(&mapped.extents), "an intent without its extents");
        let record = merged(&mapped.extents, intent, epoch);
        let starts: Vec<u64> = mapped.extents.overlapping(intent.range).map(|(at, _)| at).collect();
        let mut queue = self.eviction_queue.lock();
        let mut heir: Option<(u64, u32)> = None;
        for start in starts {
            let entry = mapped.extents.remove(start).expect("it was just seen");
            let piece = entry.record(ByteRange::new(start, entry.end));
            assert!(!piece.dirty, "I3: dirty extents do not become clean by merging");
            self.sums.count(&piece, -1);
            let beaten = match heir {
                Some((last_use_ms, _)) if last_use_ms >= piece.last_use_ms => Some(entry.slot),
                _ => heir.replace((piece.last_use_ms, entry.slot)).map(|(_, slot)| slot),
            };
            if let Some(slot) = beaten {
                queue.remove(slot);
            }
        }
        let (_, slot) = heir.expect("an intent is covered");
        queue.renamed(slot, intent.range.start);
        queue.unpark(slot, intent.range.len());
        drop(queue);
        self.sums.count(&record, 1);
        let entry = Entry::new(&record, self.next_generation(), slot);
        mapped.extents.insert(intent.range.start, entry);
        mapped.intents.remove(intent);
    }

    /// Records the pieces of every intent as they are: the clean ones can be evicted after the next barrier.
    pub(super) fn settle_intents(&self) -> Result<()> {
        let states = self.files.states();
        for state in states {
            let _change = state.change.lock();
            let intents: Vec<_> = state.mapped.read().intents.all().collect();
            for intent in intents {
                self.settle(&state, intent)?;
            }
        }
        Ok(())
    }

    /// The same for one intent. The caller holds `change`.
    fn settle(&self, state: &FileState, intent: WriteIntent) -> Result<()> {
        let mut plan = Vec::new();
        for (start, entry) in state.mapped.read().extents.overlapping(intent.range) {
            let record = entry.record(ByteRange::new(start, entry.end));
            let piece = Piece { record, generation: entry.generation.load(Relaxed) };
            plan.push(Replace { start, pieces: vec![piece] });
        }
        self.commit(state.id, &plan)?;
        let epoch = self.epochs.current();
        let mut mapped = state.mapped.write();
        for mut replace in plan {
            replace.release(epoch);
            self.apply(state.id, &mut mapped, &mut self.eviction_queue.lock(), replace);
        }
        mapped.intents.remove(intent);
        Ok(())
    }

    /// A file's extents as recorded, with the epoch of the dirty ones: what a crash now would leave. For tests.
    pub fn recorded(&self, file: FileId) -> Vec<(ByteRange, Placement, Option<u64>)> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        assert!(mapped.intents.agree_with(&mapped.extents), "intents and extents disagree");
        let mut recorded: Vec<_> = Vec::new();
        for (start, entry) in mapped.extents.entries() {
            match mapped.intents.at(start) {
                Some(intent) if intent.range.start < start => {}
                Some(intent) => recorded.push((intent.range, entry.placement, Some(intent.epoch))),
                None => {
                    let epoch = entry.dirty().then_some(entry.epoch);
                    recorded.push((ByteRange::new(start, entry.end), entry.placement, epoch));
                }
            }
        }
        recorded
    }
}
