//! The naive model: a cell for each byte of each file, and sets of blocks.

use std::collections::BTreeSet;

use halocline_meta::BLOCK;
use halocline_model::request::ByteRange;

use super::{BYTES, FILES};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) place: bool,
    /// Dirty, and since which epoch.
    pub(crate) dirty: Option<u64>,
}

pub(crate) type Block = (u64, bool, u64);

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) cells: Vec<Vec<Option<Cell>>>,
    pub(crate) pinned: Vec<bool>,
    pub(crate) reserved: Vec<(u64, ByteRange, bool)>,
    pub(crate) waiting: BTreeSet<Block>,
    /// Of these, what was handed out and not claimed since.
    pub(crate) handed_out: BTreeSet<Block>,
    pub(crate) epoch: u64,
    pub(crate) cut: u64,
    pub(crate) completed: u64,
    /// Whether something was cleaned or unmapped since the last completed cut.
    pub(crate) unsettled: bool,
    pub(crate) power_losses: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            cells: vec![vec![None; BYTES]; FILES as usize],
            pinned: vec![false; FILES as usize],
            epoch: 1,
            ..Self::default()
        }
    }

    /// Ends a run whose dirty extents were recorded up to this epoch; returns its last one.
    pub(crate) fn end_run(&mut self, recorded: Option<u64>) -> u64 {
        let last = recorded.unwrap_or(0).max(self.completed);
        for cell in self.cells.iter_mut().flatten().flatten() {
            cell.dirty = cell.dirty.map(|epoch| epoch.min(last));
        }
        last
    }

    /// What no barrier covered is gone.
    pub(crate) fn lose_power(&mut self) {
        let completed = self.completed;
        for cell in self.cells.iter_mut().flatten() {
            *cell = cell.filter(|c| c.dirty.is_some_and(|epoch| epoch <= completed));
        }
    }

    pub(crate) fn bytes(&mut self, file: u64, range: ByteRange) -> &mut [Option<Cell>] {
        &mut self.cells[file as usize][range.start as usize..range.end as usize]
    }

    pub(crate) fn unmapped(&self, file: u64, range: ByteRange) -> Vec<ByteRange> {
        let cells = &self.cells[file as usize];
        let mut parts: Vec<ByteRange> = Vec::new();
        for at in range.start..range.end {
            if cells[at as usize].is_none() {
                match parts.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => parts.push(ByteRange::new(at, at + 1)),
                }
            }
        }
        parts
    }

    /// Blocks that an extent or a reservation touches.
    pub(crate) fn covered(&self) -> BTreeSet<Block> {
        let mut covered = BTreeSet::new();
        for (file, cells) in self.cells.iter().enumerate() {
            for (at, cell) in cells.iter().enumerate() {
                if let Some(cell) = cell {
                    covered.insert((file as u64, cell.place, at as u64 / BLOCK));
                }
            }
        }
        for &(file, range, place) in &self.reserved {
            covered.extend(blocks(file, range, place));
        }
        covered
    }

    pub(crate) fn retire(&mut self, touched: impl IntoIterator<Item = Block>) {
        let covered = self.covered();
        self.waiting.extend(touched.into_iter().filter(|block| !covered.contains(block)));
    }

    pub(crate) fn used(&self) -> u64 {
        let covered = self.covered();
        assert!(covered.is_disjoint(&self.waiting));
        (covered.len() + self.waiting.len()) as u64 * BLOCK
    }

    pub(crate) fn forget_unstored(&mut self) {
        self.reserved.clear();
        self.waiting.clear();
        self.handed_out.clear();
        self.pinned = vec![false; FILES as usize];
    }
}

pub(crate) fn blocks(file: u64, range: ByteRange, place: bool) -> impl Iterator<Item = Block> {
    let wide = range.widen_to(BLOCK);
    (wide.start / BLOCK..wide.end / BLOCK).map(move |block| (file, place, block))
}
