//! BTIO of the NAS parallel benchmarks: the solution of a block-tridiagonal solver, five doubles for each cell of a
//! cube, is appended to a file every five time steps, and read back at the end.

use halocline_trace::Op;

use super::{Access, Workload};

/// Bytes of a point: five doubles.
const POINT: u64 = 40;
/// Time steps between two dumps.
const INTERVAL: u64 = 5;
/// Bytes that an aggregator of ROMIO's collective buffering writes at once (`cb_buffer_size`).
const BUFFER: u64 = 16 << 20;

/// Problem class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 12 points a side, 60 steps.
    S,
    /// 24 points a side, 200 steps.
    W,
    /// 64 points a side, 200 steps.
    A,
    /// 102 points a side, 200 steps.
    B,
    /// 162 points a side, 200 steps.
    C,
    /// 408 points a side, 250 steps.
    D,
}

impl Class {
    /// Points along a side of the cube, and time steps.
    const fn size(self) -> (u64, u64) {
        match self {
            Self::S => (12, 60),
            Self::W => (24, 200),
            Self::A => (64, 200),
            Self::B => (102, 200),
            Self::C => (162, 200),
            Self::D => (408, 250),
        }
    }
}

/// How the solution is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Collective buffering: each process is an aggregator and writes its share of a dump in pieces of 16 MiB.
    Full,
    /// Each row of each of its cells is a separate request.
    Simple,
}

/// Parameters of BTIO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Btio {
    points: u64,
    dumps: u64,
    /// Cells along a side of the cube: the square root of the number of processes.
    cells: u64,
    variant: Variant,
    verify: bool,
}

impl Btio {
    /// BTIO on `processes`, a square number; with `verify` all dumps are read back at the end.
    ///
    /// # Errors
    /// The number of processes is not a square, or there are more cells along a side than points.
    pub fn new(
        class: Class,
        processes: u32,
        variant: Variant,
        verify: bool,
    ) -> Result<Self, String> {
        let (points, steps) = class.size();
        let cells = u64::from(processes.isqrt());
        if cells == 0 || cells * cells != u64::from(processes) {
            return Err(format!("{processes} processes: BTIO runs on a square number of them"));
        }
        if cells > points {
            return Err(format!("{processes} processes are too many for {points} points a side"));
        }
        Ok(Self { points, dumps: steps / INTERVAL, cells, variant, verify })
    }

    /// First point and number of points of a cell along a side (`make_set.f`).
    const fn extent(&self, cell: u64) -> (u64, u64) {
        let (size, excess) = (self.points / self.cells, self.points % self.cells);
        if cell < excess { (cell * (size + 1), size + 1) } else { (cell * size + excess, size) }
    }

    /// Coordinates (x, y, z) of cell `index` of a process: diagonal multi-partitioning (`make_set.f`).
    fn cell(&self, process: u32, index: u64) -> [u64; 3] {
        let (p, process) = (self.cells, u64::from(process));
        [(process % p + index) % p, (process / p + p - index % p) % p, index]
    }

    /// Bytes of one dump.
    const fn dump(&self) -> u64 {
        self.points.pow(3) * POINT
    }

    /// An aggregator's share of a dump: first byte and length.
    fn share(&self, process: u32) -> (u64, u64) {
        let share = self.dump().div_ceil(self.cells * self.cells);
        let first = (share * u64::from(process)).min(self.dump());
        (first, share.min(self.dump() - first))
    }

    /// Requests of a process for one dump.
    fn in_dump(&self, process: u32) -> u64 {
        match self.variant {
            Variant::Full => self.share(process).1.div_ceil(BUFFER),
            Variant::Simple => (0..self.cells).map(|index| self.rows(process, index)).sum(),
        }
    }

    fn rows(&self, process: u32, index: u64) -> u64 {
        let [_, y, z] = self.cell(process, index);
        self.extent(y).1 * self.extent(z).1
    }

    /// Position of a row within a dump, and its length.
    fn row(&self, process: u32, mut row: u64) -> (u64, u64) {
        let mut index = 0;
        while row >= self.rows(process, index) {
            row -= self.rows(process, index);
            index += 1;
        }
        let [along, across, down] = self.cell(process, index).map(|cell| self.extent(cell));
        let (y, z) = (across.0 + row % across.1, down.0 + row / across.1);
        ((along.0 + self.points * (y + self.points * z)) * POINT, along.1 * POINT)
    }
}

impl Workload for Btio {
    fn processes(&self) -> u32 {
        u32::try_from(self.cells * self.cells).expect("as many as were asked for")
    }

    fn files(&self) -> u32 {
        1
    }

    fn steps(&self, process: u32) -> u64 {
        self.in_dump(process) * self.dumps * (1 + u64::from(self.verify))
    }

    fn access(&self, process: u32, step: u64) -> Access {
        let (dump, step) = (step / self.in_dump(process), step % self.in_dump(process));
        let op = if dump < self.dumps { Op::Write } else { Op::Read };
        let (within, length) = match self.variant {
            Variant::Simple => self.row(process, step),
            Variant::Full => {
                let (first, share) = self.share(process);
                (first + step * BUFFER, BUFFER.min(share - step * BUFFER))
            }
        };
        Access { file: 0, op, offset: dump % self.dumps * self.dump() + within, length }
    }
}
