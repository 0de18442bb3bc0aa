//! Concurrency of requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashSet;

use crate::request::Request;

/// Limit of the requests in flight that are tracked, and of the processes that are counted.
const FOLLOWED_MAX: usize = 1 << 20;

/// Concurrency of requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Concurrency {
    /// Processes with requests, at most 2^20.
    pub processes: u64,
    /// Maximum number of requests in flight; `None` if durations are unknown.
    pub in_flight_max: Option<u64>,
    /// Average number of requests in flight when one starts, including itself.
    pub in_flight_mean: Option<f64>,
}

/// Ends of the requests in flight.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    ends: BinaryHeap<Reverse<u64>>,
    processes: FxHashSet<u32>,
    timed: u64,
    sum: u64,
    max: u64,
}

impl InFlight {
    pub(super) fn push(&mut self, request: &Request) {
        if self.processes.len() < FOLLOWED_MAX {
            self.processes.insert(request.process);
        }
        let Some(took) = request.duration_ns else { return };
        while self.ends.peek().is_some_and(|end| end.0 <= request.start_ns) {
            self.ends.pop();
        }
        if self.ends.len() < FOLLOWED_MAX {
            self.ends.push(Reverse(request.start_ns.saturating_add(took)));
        }
        let now = self.ends.len().max(1) as u64;
        self.timed += 1;
        self.sum += now;
        self.max = self.max.max(now);
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub(super) fn finish(self) -> Concurrency {
        let timed = self.timed > 0;
        Concurrency {
            processes: self.processes.len() as u64,
            in_flight_max: timed.then_some(self.max),
            in_flight_mean: timed.then(|| self.sum as f64 / self.timed as f64),
        }
    }
}
