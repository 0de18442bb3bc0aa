//! The request streams of well-known I/O benchmarks, computed: the file requests of their processes.
//!
//! A workload returns request `step` of `process` without any state, so a stream of any length takes no memory. If a
//! benchmark lets MPI-IO decide how noncontiguous data is written, the requests are those without data sieving and,
//! unless noted otherwise, without collective buffering.

mod btio;
mod hpio;
mod ior;
pub(crate) mod permutation;
mod sweeps;
mod tile;

use halocline_trace::{Op, Request};

pub use btio::{Btio, Class, Variant};
pub use hpio::Hpio;
pub use ior::Ior;
pub use sweeps::{Order, Sweeps};
pub use tile::Tile;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Number of the file.
    pub file: u32,
    /// Direction.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// A benchmark with its parameters.
///
/// The caller only asks for processes below [`Workload::processes`] and steps below [`Workload::steps`]. An
/// implementation MUST give the same answer each time.
pub trait Workload {
    /// How many processes it has; at least 1.
    fn processes(&self) -> u32;
    /// How many files they use; at least 1.
    fn files(&self) -> u32;
    /// How many requests a process issues.
    fn steps(&self, process: u32) -> u64;
    /// One of them.
    fn access(&self, process: u32, step: u64) -> Access;

    /// All requests: the first of each process, then the second of each, and so on. Their times only define the order,
    /// with a microsecond for each step.
    fn requests(&self) -> Requests<'_, Self> {
        Requests { workload: self, process: 0, step: 0, left: 0, found: true }
    }
}

/// The requests of a workload.
#[derive(Debug)]
pub struct Requests<'w, W: ?Sized> {
    workload: &'w W,
    process: u32,
    step: u64,
    /// Processes of this step that may still have a request.
    left: u32,
    /// Whether a process had one in this step.
    found: bool,
}

impl<W: Workload + ?Sized> Iterator for Requests<'_, W> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        loop {
            if self.left == 0 {
                if !self.found {
                    return None;
                }
                self.step += u64::from(self.process > 0);
                (self.process, self.left, self.found) = (0, self.workload.processes(), false);
            }
            let (process, step) = (self.process, self.step);
            self.process += 1;
            self.left -= 1;
            if step < self.workload.steps(process) {
                self.found = true;
                let Access { file, op, offset, length } = self.workload.access(process, step);
                let start_ns = step.saturating_mul(1000);
                let duration_ns = None;
                return Some(Request { start_ns, duration_ns, process, file, op, offset, length });
            }
        }
    }
}

/// Whether all products of a workload's sizes are valid file offsets.
fn fits(factors: &[u64]) -> Result<u64, String> {
    factors
        .iter()
        .try_fold(1u64, |product, factor| product.checked_mul(*factor))
        .filter(|bytes| *bytes <= halocline_trace::request::FILE_END_MAX)
        .ok_or_else(|| "the file would be larger than any file can be".into())
}

/// Refuses sizes that are 0 but must not be.
fn positive(sizes: &[(&str, u64)]) -> Result<(), String> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((what, _)) => Err(format!("{what} is 0")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
