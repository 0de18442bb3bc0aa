//! Processes that go over one file several times: what a cache meets (ours).

use halocline_trace::Op;
use serde::Serialize;

use super::permutation::{mix, permuted};
use super::{Access, Workload, fits, positive};

/// In which order the processes ask for the requests of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each process its own part, from the beginning to the end.
    Sequential,
    /// All side by side: of as many requests as there are processes each takes one, then of the next.
    Strided,
    /// Dealt to the processes, in an order that looks random and is another in each pass.
    Random,
}

/// Processes that touch each byte of a file once in each pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sweeps {
    /// How many processes.
    pub processes: u32,
    /// Bytes of each request.
    pub request: u64,
    /// Requests of each process in a pass.
    pub steps: u64,
    /// How often the file is gone over.
    pub passes: u64,
    /// In which order.
    pub order: Order,
    /// Requests of a hundred that read; the others write. Which is which differs from pass to pass.
    pub read_percent: u64,
    /// Tells workloads apart that are equal otherwise.
    pub seed: u64,
}

impl Sweeps {
    /// Bytes of the file.
    ///
    /// # Errors
    /// Something is 0, or the file is larger than any can be.
    pub fn file_bytes(&self) -> Result<u64, String> {
        positive(&[
            ("the number of processes", u64::from(self.processes)),
            ("the request", self.request),
            ("the number of steps", self.steps),
            ("the number of passes", self.passes),
        ])?;
        fits(&[u64::from(self.processes), self.request, self.steps])
    }
}

impl Workload for Sweeps {
    fn processes(&self) -> u32 {
        self.processes
    }

    fn files(&self) -> u32 {
        1
    }

    fn steps(&self, _process: u32) -> u64 {
        self.steps * self.passes
    }

    fn access(&self, process: u32, step: u64) -> Access {
        let (pass, index) = (step / self.steps, step % self.steps);
        let (process, processes) = (u64::from(process), u64::from(self.processes));
        let own = process * self.steps + index;
        let place = match self.order {
            Order::Sequential => own,
            Order::Strided => index * processes + process,
            Order::Random => permuted(own, processes * self.steps, mix(self.seed ^ pass)),
        };
        let die = mix(self.seed ^ mix(pass << 48 ^ place)) % 100;
        let op = if die < self.read_percent { Op::Read } else { Op::Write };
        Access { file: 0, op, offset: place * self.request, length: self.request }
    }
}
