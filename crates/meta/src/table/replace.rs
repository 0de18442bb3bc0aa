//! How one extent is replaced in a change, and how that is recorded.

use crate::FileId;
use crate::batch::Batch;
use crate::record::{self, ExtentRecord};
use crate::write_intent::HELD;

/// The replacement of one extent: `pieces` in its place, in order.
#[derive(Debug)]
pub(super) struct Replace {
    pub(super) start: u64,
    pub(super) pieces: Vec<Piece>,
}

/// A part of the extent, as it is after the change.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) record: ExtentRecord,
    pub(super) generation: u64,
}

impl Replace {
    /// Replaces the extent at `start` by `pieces` in any order.
    pub(super) fn new(start: u64, pieces: impl Iterator<Item = Piece>) -> Self {
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_by_key(|piece| piece.record.range);
        Self { start, pieces }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.record.range.len()).sum()
    }

    /// Lets pieces that were held be evicted after the barrier of `epoch`.
    pub(super) fn release(&mut self, epoch: u64) {
        for piece in &mut self.pieces {
            if piece.record.epoch == HELD {
                piece.record.epoch = epoch;
            }
        }
    }
}

impl Piece {
    pub(super) fn held(mut self) -> Self {
        self.record.epoch = HELD;
        self
    }
}

/// Records the replacement.
pub(super) fn write_replace(changes: &mut Batch, file: FileId, replace: &Replace) {
    if replace.pieces.first().is_none_or(|piece| piece.record.range.start != replace.start) {
        changes.remove(&record::extent_key(file, replace.start));
    }
    for piece in &replace.pieces {
        let key = record::extent_key(file, piece.record.range.start);
        let record = match piece.record {
            // It is no longer held once this is recorded.
            record @ ExtentRecord { epoch: HELD, .. } => ExtentRecord { epoch: 0, ..record },
            record => record,
        };
        changes.put(&key, &record::encode_extent(&record));
    }
}
