//! Moves files from one side of a tier to the other, piece by piece while programs run.

use std::collections::VecDeque;

use halocline_model::request::{ByteRange, Direction};

use super::devices::Devices;

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

    /// When the next step is due, or the last one ended.
    pub(super) const fn ready_ns(&self) -> u64 {
        self.ready_ns
    }

    /// Performs the steps that are due at `now_ns`. Returns when the last of them ends, if there was any.
    pub(super) fn advance(&mut self, now_ns: u64, devices: &mut Devices) -> Option<u64> {
        let mut stepped_ns = None;
        while self.ready_ns <= now_ns && !self.is_done() {
            self.step(devices);
            stepped_ns = Some(self.ready_ns);
        }
        stepped_ns
    }

    /// Writes the piece that was read, and reads the next one meanwhile: the step ends when both have, as in a mount's
    /// own copies.
    fn step(&mut self, devices: &mut Devices) {
        let Some(&(file, to_ssd, len)) = self.files.front() else { return };
        let at_ns = self.ready_ns;
        if let Some(piece) = self.read.take() {
            self.ready_ns = devices.transfer(at_ns, file, piece, to_ssd, Direction::Write);
            self.copied = piece.end;
        }
        if self.copied < len {
            let bytes = PIECE_BYTES.max(len.div_ceil(PIECES_MAX));
            let piece = ByteRange::new(self.copied, len.min(self.copied.saturating_add(bytes)));
            let read_ns = devices.transfer(at_ns, file, piece, !to_ssd, Direction::Read);
            self.ready_ns = self.ready_ns.max(read_ns);
            self.read = Some(piece);
        } else {
            self.files.pop_front();
            self.copied = 0;
        }
    }
}
