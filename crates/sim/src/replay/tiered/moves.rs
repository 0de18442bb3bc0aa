//! Files on their way from one side of a tier to the other, piece by piece beside the programs.

use std::collections::VecDeque;

use halocline_model::request::{ByteRange, Direction};

use super::Tier;

/// Bytes that are read at a time, while those before them are written.
const PIECE_BYTES: u64 = 8 << 20;

/// Files that move one after the other.
#[derive(Debug, Default)]
pub(super) struct Move {
    /// With whether they come to the SSD, and their bytes.
    files: VecDeque<(u32, bool, u64)>,
    /// Bytes of the first one that are there already, or on their way there.
    copied: u64,
    /// What was read of it after those.
    read: Option<ByteRange>,
    ready_ns: u64,
}

impl Move {
    /// One of no files, at `now_ns`.
    pub(super) fn begun(now_ns: u64) -> Self {
        Self { ready_ns: now_ns, ..Self::default() }
    }

    /// Moves `bytes` bytes of a file after all others.
    pub(super) fn add(&mut self, file: u32, to_ssd: bool, bytes: u64) {
        self.files.push_back((file, to_ssd, bytes));
    }

    /// Whether all files are where they shall be.
    pub(super) fn is_done(&self) -> bool {
        self.files.is_empty()
    }
}

impl Tier {
    /// Does what is due of the move that requests to `file` wait for; answers until when they wait, if they do.
    pub(super) fn wait_for(&mut self, now_ns: u64, file: u32) -> Option<u64> {
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

    /// Lets what leaves in the background do so before `now_ns`.
    pub(super) fn move_until(&mut self, now_ns: u64) {
        let mut going = std::mem::take(&mut self.demotion);
        while going.ready_ns <= now_ns && !going.is_done() {
            self.step(&mut going);
        }
        self.demotion = going;
    }

    /// Writes the piece that was read, and reads the next one meanwhile: the step is over with both, as in a mount's own
    /// copies.
    fn step(&mut self, moving: &mut Move) {
        let Some(&(file, to_ssd, len)) = moving.files.front() else { return };
        let at_ns = moving.ready_ns;
        if let Some(piece) = moving.read.take() {
            moving.ready_ns = self.transfer(at_ns, file, piece, to_ssd, Direction::Write);
            moving.copied = piece.end;
        }
        if moving.copied < len {
            let piece = ByteRange::new(moving.copied, len.min(moving.copied + PIECE_BYTES));
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
