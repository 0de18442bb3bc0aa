//! How many requests each process has: they follow each other, however many processes and servers there are.

use halocline_trace::{Op, Request};
use rustc_hash::FxHashMap;

/// Limit of the rows; requests that would need another one are not counted.
const ROWS_MAX: usize = 1 << 18;

/// What requests have in common that take about as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Kind {
    op: Op,
    /// Quarter of an octave.
    size: u16,
    sequential: bool,
}

impl Kind {
    /// Of a request of so many bytes.
    pub(crate) fn of(op: Op, length: u64, sequential: bool) -> Self {
        Self { op, size: quarter(length), sequential }
    }
}

/// The octave of a length and its quarter.
pub(super) fn quarter(length: u64) -> u16 {
    let octave = length.ilog2();
    let part = if octave >= 2 { (length >> (octave - 2)) & 3 } else { 0 };
    u16::try_from(u64::from(octave) * 4 + part).unwrap_or(u16::MAX)
}

/// Requests of one kind by one process to one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chained {
    /// The file's number in the trace, or that of all files without a layout of their own.
    pub(crate) file: u32,
    pub(crate) process: u32,
    pub(crate) kind: Kind,
    pub(crate) requests: u64,
}

/// Counts requests.
#[derive(Debug, Default)]
pub(super) struct Chains(FxHashMap<(u32, u32, Kind), u64>);

impl Chains {
    /// A request to `file`.
    pub(super) fn push(&mut self, file: u32, request: &Request, sequential: bool) {
        let key = (file, request.process, Kind::of(request.op, request.length, sequential));
        if self.0.len() < ROWS_MAX {
            *self.0.entry(key).or_default() += 1;
        } else if let Some(requests) = self.0.get_mut(&key) {
            *requests += 1;
        }
    }

    /// All rows, by file.
    pub(super) fn finish(self) -> Vec<Chained> {
        let rows = self.0.into_iter();
        let row = |((file, process, kind), requests)| Chained { file, process, kind, requests };
        let mut rows: Vec<_> = rows.map(row).collect();
        rows.sort_unstable();
        rows
    }
}
