//! Moves files from one side of a tier to the other, piece by piece while programs run.

use std::collections::VecDeque;

use halocline_model::request::{ByteRange, Direction};

use super::Tier;

/// Bytes read at a time, while the previous piece is written.
const PIECE_BYTES: u64 = 8 << 20;
/// Limit of the pieces of a file. Others' traces may have files of exbibytes, which would move for years; only files of
/// more than 64 GiB move in pieces that are longer than a mount's.
const PIECES_MAX: u64 = 1 << 13;

/// Files that move one after another.
#[derive(Debug, Default)]
pub(super) struct Move {
    /// Each with whether it moves to the SSD, and its bytes.
    files: VecDeque<(u32, bool, u64)>,
    /// Bytes of the first one that are already there, or being written.
    copied: u64,
    /// The piece that was read after those.
    read: Option<ByteRange>,
    ready_ns: u64,
}

impl Move {
    /// A move of no files yet, at `now_ns`.
    pub(super) fn begun(now_ns: u64) -> Self {
        Self { ready_ns: now_ns, ..Self::default() }
    }

    /// Adds `bytes` bytes of a file, to be moved after all others.
    pub(super) fn add(&mut self, file: u32, to_ssd: bool, bytes: u64) {
        self.files.push_back((file, to_ssd, bytes));
    }

    /// Whether all files have been moved.
    pub(super) fn is_done(&self) -> bool {
        self.files.is_empty()
    }
}

impl Tier {
    /// Performs the due steps of the move for which requests to `file` wait; returns until when they wait, if they do.
    pub(super) fn waits_until(&mut self, now_ns: u64, file: u32) -> Option<u64> {
        let mut moving = self.files.get_mut(&file)?.moving.take()?;
        while moving.ready_ns <= now_ns && !moving.is_done() {
            self.step(&mut moving);
        }
        let ready_ns = moving.ready_ns;
        if !moving.is_done() || ready_ns > now_ns {
            self.files.get_mut(&file)?.moving = Some(moving);
            return Some(ready_ns);
        }
        None
    }

    /// Performs background moves until `now_ns`.
    pub(super) fn move_until(&mut self, now_ns: u64) {
        let mut going = std::mem::take(&mut self.demotion);
        while going.ready_ns <= now_ns && !going.is_done() {
            self.step(&mut going);
        }
        self.demotion = going;
    }

    /// Writes the piece that was read, and reads the next one meanwhile: the step ends when both have, as in a mount's
    /// own copies.
    fn step(&mut self, moving: &mut Move) {
        let Some(&(file, to_ssd, len)) = moving.files.front() else { return };
        let at_ns = moving.ready_ns;
        if let Some(piece) = moving.read.take() {
            moving.ready_ns = self.transfer(at_ns, file, piece, to_ssd, Direction::Write);
            moving.copied = piece.end;
        }
        if moving.copied < len {
            let bytes = PIECE_BYTES.max(len.div_ceil(PIECES_MAX));
            let piece = ByteRange::new(moving.copied, len.min(moving.copied.saturating_add(bytes)));
            let read_ns = self.transfer(at_ns, file, piece, !to_ssd, Direction::Read);
            moving.ready_ns = moving.ready_ns.max(read_ns);
            moving.read = Some(piece);
        } else {
            moving.files.pop_front();
            moving.copied = 0;
        }
        self.moved_ns = self.moved_ns.max(moving.ready_ns);
    }
}
