//! Totals of requests, and when two totals are of different kinds.

use serde::Serialize;

use crate::request::{Op, Request};

/// Totals of the requests of some time, or of some part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Mix {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
}

impl Mix {
    pub(super) fn add(&mut self, request: &Request) {
        let (requests, bytes) = match request.op {
            Op::Read => (&mut self.reads, &mut self.read_bytes),
            Op::Write => (&mut self.writes, &mut self.write_bytes),
        };
        *requests += 1;
        *bytes = bytes.saturating_add(request.length);
    }

    pub(super) const fn join(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.write_bytes = self.write_bytes.saturating_add(other.write_bytes);
    }

    /// All requests.
    pub const fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// All bytes.
    pub const fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }

    /// Mean length of a request, in bytes; 0 if there are none.
    pub(crate) const fn mean_length(&self) -> u64 {
        match self.bytes().checked_div(self.requests()) {
            Some(mean) => mean,
            None => 0,
        }
    }

    /// Whether the two need different stripes: one reads where the other writes (the share of writes differs by more
    /// than one half), or their mean lengths differ by a factor of two or more.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let share = |mix: &Self| (u128::from(mix.writes), u128::from(mix.requests().max(1)));
        let ((a, all_a), (b, all_b)) = (share(self), share(other));
        let turned = 2 * (a * all_b).abs_diff(b * all_a) > all_a * all_b;
        let (short, long) = (self.mean_length(), other.mean_length());
        turned || short.max(long) / 2 >= short.min(long)
    }
}
