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
pub(super) struct UnmappedBlocks {
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

    /// See [`ExtentTable::reserve`](super::ExtentTable::reserve).
    pub(super) fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        let Ok(state) = self.index.files().known(file) else { return false };
        if range.is_empty() || range.end > change::END_MAX {
            return false;
        }
        self.index.edit(&state).reserve(range, placement)
    }

    /// See [`ExtentTable::release`](super::ExtentTable::release).
    pub(super) fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        let Some(state) = self.index.files().state(file) else { return };
        self.index.edit(&state).release(range, placement);
    }

    /// See [`ExtentTable::take_discards`](super::ExtentTable::take_discards).
    pub(super) fn take_discards(&self) -> Vec<Discard> {
        let completed = self.epochs.completed();
        let mut due = Vec::new();
        for file in self.index.waiting_files() {
            if let Some(state) = self.index.files().state(file) {
                state.mapped.write().blocks.take_due(file, completed, &mut due);
            }
        }
        due
    }

    /// See [`ExtentTable::still_due`](super::ExtentTable::still_due).
    pub(super) fn still_due(&self, discard: &Discard) -> Vec<Discard> {
        let Some(state) = self.index.files().state(discard.file) else { return Vec::new() };
        let mapped = state.mapped.read();
        let parts = mapped.blocks.still_due(discard.range, discard.placement);
        parts.map(|range| Discard { range, ..*discard }).collect()
    }

    /// See [`ExtentTable::discarded`](super::ExtentTable::discarded).
    pub(super) fn discarded(&self, discard: &Discard) {
        assert!(discard.range == discard.range.widen_to(BLOCK), "I5: whole blocks only");
        let Some(state) = self.index.files().state(discard.file) else { return };
        let none_left = self.index.edit(&state).free(discard.range, discard.placement);
        if none_left && state.forgotten.load(Relaxed) {
            self.index.files().remove(discard.file);
        }
    }

    /// See [`ExtentTable::trimmed`](super::ExtentTable::trimmed).
    pub(super) fn trimmed(&self) {
        self.untrimmed.store(false, Release);
    }

    /// Whether the next opening must request a trim.
    pub(super) fn are_to_be_trimmed(&self) -> bool {
        let states = self.index.files().states();
        self.untrimmed.load(Acquire)
            || states.iter().any(|state| !state.mapped.read().blocks.is_empty())
    }
}
