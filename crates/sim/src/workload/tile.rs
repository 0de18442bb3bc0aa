//! MPI-Tile-IO: a dense two-dimensional array of elements in a file, row after row. Each process moves one tile of it;
//! adjacent tiles may overlap.

use halocline_trace::Op;

use super::{Access, Workload, fits, positive};

/// Parameters of MPI-Tile-IO, named as its options without `nr_` and `sz_`. Pairs are (x, y), x along a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    tiles: (u32, u32),
    size: (u64, u64),
    element: u64,
    overlap: (u64, u64),
    op: Op,
}

impl Tile {
    /// `tiles` of `size` elements of `element` bytes, with `overlap` elements shared by neighbours.
    ///
    /// # Errors
    /// A size other than the overlap is 0, a tile is not larger than its overlap, or the file is too large.
    pub fn new(
        tiles: (u32, u32),
        size: (u64, u64),
        element: u64,
        overlap: (u64, u64),
        op: Op,
    ) -> Result<Self, String> {
        let processes = tiles.0.checked_mul(tiles.1).ok_or("too many tiles")?;
        positive(&[
            ("the number of tiles", u64::from(processes)),
            ("the tile's width", size.0),
            ("the tile's height", size.1),
            ("the element size", element),
        ])?;
        if overlap.0 >= size.0 || overlap.1 >= size.1 {
            return Err("the overlap is as large as a tile".into());
        }
        fits(&[u64::from(processes), size.0, size.1, element])?;
        Ok(Self { tiles, size, element, overlap, op })
    }

    /// Elements of a row of the array.
    fn width(&self) -> u64 {
        u64::from(self.tiles.0) * (self.size.0 - self.overlap.0) + self.overlap.0
    }
}

impl Workload for Tile {
    fn processes(&self) -> u32 {
        self.tiles.0 * self.tiles.1
    }

    fn files(&self) -> u32 {
        1
    }

    fn steps(&self, _process: u32) -> u64 {
        // Tiles as wide as the array are contiguous.
        if self.tiles.0 == 1 { 1 } else { self.size.1 }
    }

    fn access(&self, process: u32, step: u64) -> Access {
        let column = u64::from(process % self.tiles.0) * (self.size.0 - self.overlap.0);
        let row = u64::from(process / self.tiles.0) * (self.size.1 - self.overlap.1) + step;
        let offset = (row * self.width() + column) * self.element;
        let rows = if self.tiles.0 == 1 { self.size.1 } else { 1 };
        Access { file: 0, op: self.op, offset, length: rows * self.size.0 * self.element }
    }
}
