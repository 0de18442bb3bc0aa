//! Blocks: reserved before they are written, discarded once no record of them can come back (I5).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::change;
use super::epochs::Epochs;
use super::extent_index::ExtentIndex;
use crate::{BLOCK, Discard, FileId};

/// The blocks that no extent uses: reserved for one, or not discarded yet.
#[derive(Debug)]
pub struct UnmappedBlocks {
    index: Arc<ExtentIndex>,
    epochs: Arc<Epochs>,
    /// Whether objects may contain blocks that are not accounted for here, until the caller has trimmed them.
    untrimmed: AtomicBool,
}

impl UnmappedBlocks {
    pub(super) fn new(index: &Arc<ExtentIndex>, epochs: &Arc<Epochs>, untrimmed: bool) -> Self {
        let (index, epochs) = (Arc::clone(index), Arc::clone(epochs));
        Self { index, epochs, untrimmed: untrimmed.into() }
    }

    /// Reserves blocks for `range` before its data is written; `false` if the limit does not allow it without
    /// evictions. `map` turns the reservation into use.
    pub fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        let Ok(state) = self.index.files().known(file) else { return false };
        if range.is_empty() || range.end > change::END_MAX {
            return false;
        }
        self.index.edit(&state).reserve(range, placement)
    }

    /// Releases a reservation. Its blocks may have been written: they are queued for discarding and count as used until
    /// then.
    pub fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        let Some(state) = self.index.files().state(file) else { return };
        self.index.edit(&state).release(range, placement);
    }

    /// Takes the queued ranges whose unmapping is durable. The caller locks each exclusively, asks `still_due` which
    /// parts are to be freed, frees those, then calls `discarded`.
    pub fn take_discards(&self) -> Vec<Discard> {
        let completed = self.epochs.completed();
        let mut due = Vec::new();
        for file in self.index.waiting_files() {
            if let Some(state) = self.index.files().state(file) {
                self.index.edit(&state).take_due(completed, &mut due);
            }
        }
        due
    }

    /// The parts of a taken range that were not claimed since. This differs from what `lookup` shows as unmapped: a
    /// part that was mapped again, made durable by a barrier and unmapped again since would come back after a power
    /// loss, and find its data gone.
    pub fn still_due(&self, discard: &Discard) -> Vec<Discard> {
        let Some(state) = self.index.files().state(discard.file) else { return Vec::new() };
        let mapped = state.mapped();
        let parts = mapped.blocks.still_due(discard.range, discard.placement);
        parts.map(|range| Discard { range, ..*discard }).collect()
    }

    /// A range was discarded: its blocks are free again.
    pub fn discarded(&self, discard: &Discard) {
        assert!(discard.range == discard.range.widen_to(BLOCK), "I5: whole blocks only");
        let Some(state) = self.index.files().state(discard.file) else { return };
        let none_left = self.index.edit(&state).free(discard.range, discard.placement);
        if none_left && state.forgotten.load(Relaxed) {
            self.index.files().remove(discard.file);
        }
    }

    /// The cache holds only what the extents need: the trim that recovery requested is done. Until then every clean
    /// close passes the duty on (I5).
    pub fn trimmed(&self) {
        self.untrimmed.store(false, Release);
    }

    /// Whether the next opening must request a trim.
    pub(super) fn are_to_be_trimmed(&self) -> bool {
        let states = self.index.files().states();
        self.untrimmed.load(Acquire) || states.iter().any(|state| !state.mapped().blocks.is_empty())
    }
}
