//! HPIO: each process moves a number of regions of one size, with gaps between them; the regions of the processes
//! alternate in the file.

use halocline_trace::Op;

use super::{Access, Workload, fits, positive};

/// Parameters of HPIO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hpio {
    processes: u32,
    count: u64,
    size: u64,
    spacing: u64,
    op: Op,
}

impl Hpio {
    /// `count` regions of `size` bytes for each of `processes`, each followed by `spacing` unused bytes.
    ///
    /// # Errors
    /// A size other than the spacing is 0, or the file is too large.
    pub fn new(
        processes: u32,
        count: u64,
        size: u64,
        spacing: u64,
        op: Op,
    ) -> Result<Self, String> {
        let processes_ = ("the number of processes", u64::from(processes));
        positive(&[processes_, ("the number of regions", count), ("the region size", size)])?;
        let unit = size.checked_add(spacing).ok_or("the spacing is too large")?;
        fits(&[u64::from(processes), count, unit])?;
        Ok(Self { processes, count, size, spacing, op })
    }
}

impl Workload for Hpio {
    fn processes(&self) -> u32 {
        self.processes
    }

    fn files(&self) -> u32 {
        1
    }

    fn steps(&self, _process: u32) -> u64 {
        self.count
    }

    fn access(&self, process: u32, step: u64) -> Access {
        let region = step * u64::from(self.processes) + u64::from(process);
        let offset = region * (self.size + self.spacing);
        Access { file: 0, op: self.op, offset, length: self.size }
    }
}
