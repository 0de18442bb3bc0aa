//! Processes that pass over one file several times: typical requests to a cache (ours).

use halocline_trace::Op;
use serde::Serialize;

use super::permutation::{mix, permuted};
use super::{Access, Workload, fits, positive};

/// The order in which the processes request the parts of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each process its own part, from beginning to end.
    Sequential,
    /// All interleaved: of each group of as many requests as there are processes, each process takes one.
    Strided,
    /// Distributed among the processes in a pseudo-random order, which differs from pass to pass.
    Random,
}

/// Processes that access each byte of a file once in each pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sweeps {
    /// How many processes.
    pub processes: u32,
    /// Bytes of each request.
    pub request: u64,
    /// Requests of each process in a pass.
    pub steps: u64,
    /// Number of passes over the file.
    pub passes: u64,
    /// The order of requests.
    pub order: Order,
    /// Percentage of requests that read; the others write. Which ones do differs from pass to pass.
    pub read_percent: u64,
    /// Distinguishes otherwise equal workloads.
    pub seed: u64,
}

impl Sweeps {
    /// Bytes of the file.
    ///
    /// # Errors
    /// Something is 0, or the file is larger than possible.
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
