//! Merges write intents when all of an intent is clean, and records them piece by piece when that is necessary.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::request::ByteRange;

use super::ExtentChanges;
use crate::batch::Batch;
use crate::files::{FileState, Mapped};
use crate::table::extent_index::merged;
use crate::table::replace::{Piece, Replace, write_replace};
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

impl ExtentChanges {
    /// Records that extents are clean: those outside intents, and the intents in `all_clean`.
    pub(super) fn commit_clean(
        &self,
        state: &FileState,
        plan: &[Replace],
        all_clean: &[WriteIntent],
    ) -> Result<()> {
        let mut changes = Batch::default();
        let mapped = state.mapped();
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

    /// Records the pieces of every intent as they are: the clean ones can be evicted after the next barrier.
    pub(in crate::table) fn settle_intents(&self) -> Result<()> {
        let states = self.index.files().states();
        for state in states {
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
        let mut plan = Vec::new();
        for (start, entry) in state.mapped().extents.overlapping(intent.range) {
            let record = entry.record(ByteRange::new(start, entry.end));
            let piece = Piece { record, generation: entry.generation.load(Relaxed) };
            plan.push(Replace { start, pieces: vec![piece] });
        }
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
}
