//! What becomes of marks: merged when all is clean, recorded piece by piece when that is needed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::ExtentTable;
use super::replace::{Piece, Replace, write_replace};
use crate::FileId;
use crate::batch::Batch;
use crate::files::{FileState, Mapped};
use crate::marks::Mark;
use crate::rangemap::{Entry, RangeMap};
use crate::record::ExtentRecord;
use halocline_os::error::Result;

/// The marks with one of the extents that `starts` names in which nothing is dirty but what
/// `cleaned` says.
pub(super) fn all_clean(
    mapped: &Mapped,
    cleaned: impl Fn(u64) -> bool,
    starts: impl Iterator<Item = u64>,
) -> Vec<Mark> {
    let touched = starts.filter_map(|start| mapped.marks.at(start));
    let touched: BTreeMap<u64, Mark> = touched.map(|mark| (mark.range.start, mark)).collect();
    let clean = |mark: &Mark| {
        let mut extents = mapped.extents.overlapping(mark.range);
        extents.all(|(start, entry)| !entry.dirty() || cleaned(start))
    };
    touched.into_values().filter(clean).collect()
}

/// A clean mark as one extent, used when the last of its pieces was.
fn merged(extents: &RangeMap, mark: Mark, epoch: u64) -> ExtentRecord {
    let pieces = || extents.overlapping(mark.range).map(|(_, entry)| entry);
    let first = pieces().next().expect("a mark is covered");
    ExtentRecord {
        range: mark.range,
        placement: first.placement,
        dirty: false,
        epoch,
        dirty_since_ms: 0,
        last_use_ms: pieces().map(|entry| entry.last_use_ms.load(Relaxed)).max().unwrap_or(0),
    }
}

impl ExtentTable {
    /// Records that extents are clean: those outside marks, and the marks that are `all_clean`.
    pub(super) fn commit_clean(
        &self,
        state: &FileState,
        plan: &[Replace],
        all_clean: &[Mark],
    ) -> Result<()> {
        let mut changes = Batch::default();
        let mapped = state.mapped.read();
        for replace in plan.iter().filter(|replace| mapped.marks.at(replace.start).is_none()) {
            write_replace(&mut changes, state.id, replace);
        }
        for &mark in all_clean {
            let record = merged(&mapped.extents, mark, 0);
            let piece = Piece { record, generation: 0 };
            let start = mark.range.start;
            write_replace(&mut changes, state.id, &Replace { start, pieces: vec![piece] });
        }
        drop(mapped);
        self.commit_unless_empty(&changes)
    }

    /// Makes one extent of a mark in which nothing is dirty any more, recorded in `epoch`. It takes
    /// the place in the eviction order of the piece that was used last.
    pub(super) fn merge(&self, mapped: &mut Mapped, mark: Mark, epoch: u64) {
        debug_assert!(mark.is_covered_by(&mapped.extents), "a mark without its extents");
        let record = merged(&mapped.extents, mark, epoch);
        let starts: Vec<u64> = mapped.extents.overlapping(mark.range).map(|(at, _)| at).collect();
        let mut order = self.order.lock();
        let mut heir: Option<(u64, u32)> = None;
        for start in starts {
            let entry = mapped.extents.remove(start).expect("it was just seen");
            let piece = entry.record(ByteRange::new(start, entry.end));
            debug_assert!(!piece.dirty, "I3: dirty extents do not become clean by merging");
            self.count(&piece, -1);
            let beaten = match heir {
                Some((last_use_ms, _)) if last_use_ms >= piece.last_use_ms => Some(entry.slot),
                _ => heir.replace((piece.last_use_ms, entry.slot)).map(|(_, slot)| slot),
            };
            if let Some(slot) = beaten {
                order.remove(slot);
            }
        }
        let (_, slot) = heir.expect("a mark is covered");
        order.renamed(slot, mark.range.start);
        order.unpark(slot, mark.range.len());
        drop(order);
        self.count(&record, 1);
        let entry = Entry::new(&record, self.next_generation(), slot);
        mapped.extents.insert(mark.range.start, entry);
        mapped.marks.remove(mark);
    }

    /// Records every mark's pieces as what they are: the clean ones can be evicted after the next
    /// barrier.
    pub(super) fn settle_marks(&self) -> Result<()> {
        let states: Vec<_> = self.files.read().all().cloned().collect();
        for state in states {
            let _change = state.change.lock();
            let marks: Vec<_> = state.mapped.read().marks.all().collect();
            for mark in marks {
                self.settle(&state, mark)?;
            }
        }
        Ok(())
    }

    /// The same for one mark. The caller holds `change`.
    fn settle(&self, state: &FileState, mark: Mark) -> Result<()> {
        let mut plan = Vec::new();
        for (start, entry) in state.mapped.read().extents.overlapping(mark.range) {
            let record = entry.record(ByteRange::new(start, entry.end));
            let piece = Piece { record, generation: entry.generation.load(Relaxed) };
            plan.push(Replace { start, pieces: vec![piece] });
        }
        self.commit(state.id, &plan)?;
        let epoch = self.epochs.current.load(Acquire);
        let mut mapped = state.mapped.write();
        for mut replace in plan {
            replace.release(epoch);
            self.apply(state.id, &mut mapped, &mut self.order.lock(), replace);
        }
        mapped.marks.remove(mark);
        Ok(())
    }

    /// A file's extents as the store has them, with the epoch of the dirty ones: what a crash now
    /// would leave. For tests.
    pub fn recorded(&self, file: FileId) -> Vec<(ByteRange, Placement, Option<u64>)> {
        let Some(state) = self.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        assert!(mapped.marks.agree_with(&mapped.extents), "marks and extents disagree");
        let mut recorded: Vec<_> = Vec::new();
        for (start, entry) in mapped.extents.entries() {
            match mapped.marks.at(start) {
                Some(mark) if mark.range.start < start => {}
                Some(mark) => recorded.push((mark.range, entry.placement, Some(mark.epoch))),
                None => {
                    let epoch = entry.dirty().then_some(entry.epoch);
                    recorded.push((ByteRange::new(start, entry.end), entry.placement, epoch));
                }
            }
        }
        recorded
    }
}
