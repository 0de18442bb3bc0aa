//! Blocks: reserved before they are written, discarded once no record of them can come back (I5).

use std::sync::atomic::Ordering::{Relaxed, Release};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{ExtentTable, change};
use crate::{BLOCK, Discard, FileId};

impl ExtentTable {
    /// Reserves blocks for `range` before its data is written; `false` if the limit does not allow it without
    /// evictions. `map` turns the reservation into use.
    pub fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        let Ok(state) = self.files.known(file) else { return false };
        if range.is_empty() || range.end > change::END_MAX {
            return false;
        }
        let mut mapped = state.mapped.write();
        let mapped = &mut *mapped;
        let reserved = mapped.blocks.reserve(&mapped.extents, &self.space, range, placement);
        self.busy.update(&state, mapped);
        reserved
    }

    /// Releases a reservation. Its blocks may have been written: they are queued for discarding and count as used until
    /// then.
    pub fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        let Some(state) = self.files.state(file) else { return };
        let mut mapped = state.mapped.write();
        let mapped = &mut *mapped;
        mapped.blocks.release(&mapped.extents, range, placement);
        self.busy.update(&state, mapped);
    }

    /// Takes the queued ranges whose unmapping is durable. The caller locks each exclusively, asks `still_due` which
    /// parts are to be freed, frees those, then calls `discarded`.
    pub fn take_discards(&self) -> Vec<Discard> {
        let completed = self.epochs.completed();
        let mut due = Vec::new();
        for file in self.busy.waiting() {
            if let Some(state) = self.files.state(file) {
                state.mapped.write().blocks.take_due(file, completed, &mut due);
            }
        }
        due
    }

    /// The parts of a taken range that were not claimed since. This differs from what `lookup` shows as unmapped: a
    /// part that was mapped again, made durable by a barrier and unmapped again since would come back after a power
    /// loss, and find its data gone.
    pub fn still_due(&self, discard: &Discard) -> Vec<Discard> {
        let Some(state) = self.files.state(discard.file) else { return Vec::new() };
        let mapped = state.mapped.read();
        let parts = mapped.blocks.still_due(discard.range, discard.placement);
        parts.map(|range| Discard { range, ..*discard }).collect()
    }

    /// A range was discarded: its blocks are free again.
    pub fn discarded(&self, discard: &Discard) {
        assert!(discard.range == discard.range.widen_to(BLOCK), "I5: whole blocks only");
        let Some(state) = self.files.state(discard.file) else { return };
        let mut mapped = state.mapped.write();
        mapped.blocks.discarded(&self.space, discard.range, discard.placement);
        self.busy.update(&state, &mapped);
        let done = mapped.blocks.is_empty() && state.forgotten.load(Relaxed);
        drop(mapped);
        if done {
            self.files.remove(discard.file);
        }
    }

    /// The cache holds only what the extents need: the trim that recovery requested is done. Until then every clean
    /// close passes the duty on (I5).
    pub fn trimmed(&self) {
        self.untrimmed.store(false, Release);
    }
}
