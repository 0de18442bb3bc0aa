//! Room: reservations, evictions and what is to be freed.

use std::collections::{BTreeMap, HashSet};

use halocline_model::evict::Walk;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{FileState, LocalDmt, put_change};
use crate::error::Result;
use crate::meta::journal::Batch;
use crate::meta::rangemap::{Change, Located, Piece};
use crate::meta::space::{FileSpace, Hold, blocks_of};
use crate::meta::{BLOCK, Discard, FileId};

/// Extents that were chosen to leave, by slot.
#[derive(Debug, Default)]
struct Chosen {
    slots: HashSet<u32>,
    extents: Vec<Located>,
}

impl LocalDmt {
    pub(super) fn reserve_blocks(
        &self,
        file: FileId,
        range: ByteRange,
        placement: Placement,
    ) -> bool {
        if range.is_empty() {
            return true;
        }
        if self.journal.has_failed() {
            return false;
        }
        let state = self.state_or_new(file);
        let mut state = state.write();
        let FileState { map, space } = &mut *state;
        // Blocks that are being freed right now would take the new data with them.
        if space.is_in_hand(placement, range) {
            return false;
        }
        let fits = self.space.take(space.missing(map, placement, range));
        if fits {
            space.reserve(placement, range);
        }
        fits
    }

    pub(super) fn release_blocks(&self, file: FileId, range: ByteRange, placement: Placement) {
        let Some(state) = self.state(file) else { return };
        let epoch = self.epochs.gate.read();
        let mut state = state.write();
        let FileState { map, space } = &mut *state;
        if space.unreserve(placement, range) {
            // Some of it may have been written, and some of it may be what an unmapped dirty
            // extent left behind: it counts until it is freed, and waits like that.
            space.queue(map, placement, range, Hold::Queued(*epoch));
            self.note_discards(file, space);
        }
    }

    pub(super) fn evict_extents(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
    ) -> Result<Vec<Discard>> {
        let mut chosen = Chosen::default();
        let mut target = bytes;
        while bytes > 0 {
            let all = !self.choose(target, keep, lock, &mut chosen);
            match self.leave(bytes, &chosen)? {
                Ok(discards) => return Ok(discards),
                Err(_) if all => break,
                // Blocks that stay because neighbours need them count for nothing.
                Err(freed) => target += bytes - freed,
            }
        }
        Ok(Vec::new())
    }

    /// Chooses extents whose blocks are at most `target` bytes; `false` if there are not so many.
    fn choose(
        &self,
        target: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
        chosen: &mut Chosen,
    ) -> bool {
        let mut order = self.order.lock();
        for slot in std::mem::take(&mut *self.late_uses.lock()) {
            order.touch(slot);
        }
        if order.evictable() < target && chosen.extents.is_empty() {
            return false;
        }
        let mut sum = 0;
        order.walk(&mut |slot, at| {
            if sum >= target {
                return Walk::Stop;
            }
            if !chosen.slots.contains(&slot) {
                let kept = keep.is_some_and(|(file, r)| file == at.file && r.overlaps(at.range));
                if kept || !lock(at.file, at.range) {
                    return Walk::Skip;
                }
                chosen.slots.insert(slot);
                chosen.extents.push(at);
            }
            sum += at.range.widen_to(BLOCK).len();
            Walk::Take
        });
        sum >= target
    }

    /// Unmaps the chosen extents if that frees `bytes`, else says how many it would free.
    fn leave(&self, bytes: u64, chosen: &Chosen) -> Result<Result<Vec<Discard>, u64>> {
        let mut files: BTreeMap<FileId, Vec<ByteRange>> = BTreeMap::new();
        for at in &chosen.extents {
            files.entry(at.file).or_default().push(at.range);
        }
        let states: Vec<_> =
            files.keys().filter_map(|&file| Some((file, self.state(file)?))).collect();
        let _epoch = self.epochs.gate.read();
        let mut leaving = Vec::with_capacity(states.len());
        let (mut freed, mut batch) = (0, Batch::default());
        for (file, state) in &states {
            let state = state.write();
            let pieces = still_there(&state, &files[file]);
            let starts: HashSet<u64> = pieces.iter().map(|piece| piece.range.start).collect();
            for (placement, blocks) in blocks_of(&pieces) {
                freed += state.space.would_free(&state.map, placement, blocks, |piece| {
                    starts.contains(&piece.range.start)
                });
            }
            let change = Change { before: pieces, after: Vec::new() };
            put_change(&mut batch, *file, &change);
            leaving.push((*file, state, change));
        }
        if freed < bytes {
            return Ok(Err(freed));
        }
        self.journal.commit(batch)?;
        let mut discards = Vec::new();
        for (file, mut state, change) in leaving {
            let blocks = blocks_of(&change.before);
            self.show(file, &mut state, change);
            let FileState { map, space } = &mut *state;
            for (placement, blocks) in blocks {
                let free = space.queue(map, placement, blocks, Hold::InHand);
                discards.extend(free.into_iter().map(|range| Discard { file, range, placement }));
            }
        }
        Ok(Ok(discards))
    }

    pub(super) fn take_queued(&self) -> Vec<Discard> {
        let durable = self.epochs.durable();
        let mut taken = Vec::new();
        let waiting: Vec<FileId> = self.discards.lock().iter().copied().collect();
        for file in waiting {
            let Some(state) = self.state(file) else { continue };
            state.write().space.take(durable, |placement, range| {
                taken.push(Discard { file, range, placement });
            });
        }
        taken
    }

    pub(super) fn confirm_discard(&self, discard: &Discard) -> Vec<Discard> {
        let Some(state) = self.state(discard.file) else { return Vec::new() };
        let mut state = state.write();
        let FileState { map, space } = &mut *state;
        let parts = space.confirm(map, discard.placement, discard.range);
        self.note_discards(discard.file, space);
        parts.into_iter().map(|range| Discard { range, ..*discard }).collect()
    }

    pub(super) fn free_blocks(&self, discard: &Discard) {
        let Some(state) = self.state(discard.file) else { return };
        let mut state = state.write();
        self.space.give(state.space.freed(discard.placement, discard.range));
        self.note_discards(discard.file, &state.space);
        let idle = state.map.is_empty() && state.space.is_empty();
        drop(state);
        if idle {
            self.drop_if_idle(discard.file);
        }
    }

    /// Keeps the list of files with something to discard.
    pub(super) fn note_discards(&self, file: FileId, space: &FileSpace) {
        let mut discards = self.discards.lock();
        if space.has_pending() {
            discards.insert(file);
        } else {
            discards.remove(&file);
        }
    }
}

/// The extents at `ranges` that are still there and clean.
fn still_there(state: &FileState, ranges: &[ByteRange]) -> Vec<Piece> {
    let at = ranges.iter().filter_map(|range| {
        state.map.at(range.start).filter(|piece| piece.range == *range && !piece.dirty)
    });
    at.collect()
}
