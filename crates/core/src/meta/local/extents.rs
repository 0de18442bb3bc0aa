//! Changes of one file's extents.

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{FileState, LocalDmt, now_ms};
use crate::error::{Error, Result};
use crate::meta::FileId;
use crate::meta::rangemap::{Change, NO_SLOT, Piece};
use crate::meta::space::{Hold, blocks_of};

impl LocalDmt {
    pub(super) fn map_extent(
        &self,
        file: FileId,
        range: ByteRange,
        placement: Placement,
        dirty: bool,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let state = self.state_or_new(file);
        let epoch = self.epochs.gate.read();
        let mut state = state.write();
        if state.map.overlapping(range).next().is_some() {
            return Err(Error::invalid(
                format!("bytes {} to {} of a file are mapped already", range.start, range.end),
                "this is a bug in Halocline; please report it",
            ));
        }
        let missing = state.space.missing(&state.map, placement, range);
        if !self.space.take(missing) {
            return Err(Error::invalid(
                format!("bytes {} to {} of a file have no room", range.start, range.end),
                "reserve them before they are mapped",
            ));
        }
        let now = now_ms();
        let piece = Piece {
            range,
            placement,
            dirty,
            generation: self.next_generation(),
            epoch: if dirty { *epoch } else { 0 },
            dirty_since_ms: if dirty { now } else { 0 },
            last_use_ms: now,
            slot: NO_SLOT,
        };
        let change = Change { before: Vec::new(), after: vec![piece] };
        if let Err(error) = self.commit(file, &mut state, change) {
            self.space.give(missing);
            return Err(error);
        }
        let FileState { space, .. } = &mut *state;
        space.unreserve(placement, range);
        space.cancel(placement, range);
        Ok(())
    }

    pub(super) fn set_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        let Some(state) = self.state(file) else { return Ok(()) };
        let epoch = self.epochs.gate.read();
        let mut state = state.write();
        let now = now_ms();
        if !state.map.renew(range, || self.next_generation()) {
            let mut change = Change::default();
            for old in state.map.overlapping(range).filter(|piece| !piece.dirty) {
                let part = old.range.intersect(range).expect("overlapping pieces share bytes");
                let middle = Piece {
                    dirty: true,
                    generation: self.next_generation(),
                    epoch: *epoch,
                    dirty_since_ms: now,
                    last_use_ms: now,
                    ..old.cut(part)
                };
                change.replace(old, part, Some(middle));
            }
            self.commit(file, &mut state, change)?;
        }
        let mut slots = Vec::new();
        state.map.touch(range, now, 0, |slot| slots.push(slot));
        self.use_slots(&slots);
        Ok(())
    }

    pub(super) fn set_clean(&self, file: FileId, extents: &[(ByteRange, u64)]) -> Result<u64> {
        let Some(state) = self.state(file) else { return Ok(0) };
        let epoch = self.epochs.gate.read();
        let mut state = state.write();
        let mut change = Change::default();
        let mut cleared = 0;
        let mut extents = extents.to_vec();
        extents.sort_unstable();
        extents.dedup();
        for (range, generation) in extents {
            let same = |piece: &Piece| {
                piece.dirty && piece.range == range && piece.generation == generation
            };
            if let Some(old) = state.map.at(range.start).filter(same) {
                cleared += range.len();
                change.before.push(old);
                // Evictable only when this record is durable: until then the dirty one could
                // come back after a power loss and find its data gone.
                change.after.push(Piece { dirty: false, dirty_since_ms: 0, epoch: *epoch, ..old });
            }
        }
        self.commit(file, &mut state, change)?;
        Ok(cleared)
    }

    pub(super) fn unmap_range(&self, file: FileId, range: ByteRange) -> Result<()> {
        let Some(state) = self.state(file) else { return Ok(()) };
        let epoch = self.epochs.gate.read();
        let mut state = state.write();
        let mut change = Change::default();
        let mut gone = Vec::new();
        for old in state.map.overlapping(range) {
            let part = old.range.intersect(range).expect("overlapping pieces share bytes");
            gone.push(old.cut(part));
            change.replace(old, part, None);
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.commit(file, &mut state, change)?;
        // A durable record of a dirty extent must not outlive its data; of a clean one it may,
        // since a power loss drops all of those.
        let durable = self.epochs.durable();
        let at_once = gone.iter().all(|piece| !piece.dirty && piece.epoch <= durable);
        let hold = Hold::Queued(if at_once { 0 } else { *epoch });
        let FileState { map, space } = &mut *state;
        for (placement, blocks) in blocks_of(&gone) {
            space.queue(map, placement, blocks, hold);
        }
        self.note_discards(file, space);
        Ok(())
    }
}
