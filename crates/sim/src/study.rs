//! Admission policies judged on random workloads (docs/SIMULATOR.md, How good the policies are).
//!
//! Each case is a workload, servers and a cache, derived from a seed; each policy serves it in simulated time. Policies
//! are compared by the time until everything is on the origin.

use std::fmt::Write;
use std::path::Path;

use halocline_trace::Request;
use serde::Serialize;

use crate::replay::{CacheOutcome, Options, Pace, replay_cached};
use crate::servers::ServerSet;
use crate::workload::permutation::mix;
use crate::workload::{Order, Sweeps, Workload};

/// Requests of a pass, by all processes together.
const REQUESTS: u64 = 4096;
/// Minimum number of requests of one process in a pass.
const STEPS_MIN: u64 = 32;

/// A workload, with servers and a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// The requests of the programs.
    pub workload: Sweeps,
    /// Disks of the origin.
    pub disks: u32,
    /// SSDs of the cache.
    pub ssds: u32,
    /// Space on the cache, as a percentage of the file's bytes.
    pub cache_percent: u64,
    /// The mean time that a process computes between two requests, in microseconds: anything from 0 to twice as much.
    /// Without it, processes that begin together would stay in step forever, which real ones do not.
    pub think_us: u64,
}

impl Case {
    /// Case `number` of those derived from `seed`: 1 to 32 processes, requests of 4 KiB to 4 MiB, one to three passes,
    /// one disk and one SSD or eight and four, a cache of 10 to 110 %.
    #[must_use]
    pub fn random(seed: u64, number: u64) -> Self {
        let mut state = mix(seed ^ mix(number));
        let mut below = |bound: u64| {
            state = mix(state);
            state % bound
        };
        let processes = 1_u32 << below(6);
        let eight = below(2) == 1;
        let workload = Sweeps {
            processes,
            request: 4096 << below(11),
            steps: (REQUESTS / u64::from(processes)).max(STEPS_MIN),
            passes: 1 + below(3),
            order: [Order::Sequential, Order::Strided, Order::Random][index(below(3))],
            read_percent: [0, 100, 10 + below(81)][index(below(3))],
            seed: below(u64::MAX),
        };
        Self {
            workload,
            disks: if eight { 8 } else { 1 },
            ssds: if eight { 4 } else { 1 },
            cache_percent: 10 + below(101),
            think_us: [10, 100, 1000][index(below(3))],
        }
    }

    /// The result of each of `policies`.
    ///
    /// # Errors
    /// As [`replay_cached`].
    pub fn judge(&self, policies: &[&str]) -> Result<Vec<CacheOutcome>, String> {
        let servers = self.servers();
        let capacity = self.capacity()?;
        let options = Options { seed: self.workload.seed, pace: Pace::ClosedLoop { think: true } };
        let requests = self.requests();
        policies
            .iter()
            .map(|policy| {
                replay_cached(requests.iter().copied(), &servers, capacity, policy, &options)
            })
            .collect()
    }

    /// Bytes of data on the cache.
    ///
    /// # Errors
    /// As [`Sweeps::file_bytes`].
    pub fn capacity(&self) -> Result<u64, String> {
        let bytes = u128::from(self.workload.file_bytes()?) * u128::from(self.cache_percent) / 100;
        u64::try_from(bytes).map_err(|_| "the cache is too large".into())
    }

    /// The requests, with the times at which they would be issued if none took any time.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.requests_with_pauses(self.workload.seed)
    }

    /// The same requests with other pauses between them, as another run of the same program would have.
    #[must_use]
    pub fn requests_with_pauses(&self, seed: u64) -> Vec<Request> {
        let step_ns = self.think_us * 1000;
        let mut requests: Vec<Request> = self.workload.requests().collect();
        for request in &mut requests {
            let step = request.start_ns / 1000;
            let die = mix(seed ^ mix(step << 32 | u64::from(request.process)));
            request.start_ns = step * step_ns + die % step_ns;
            request.duration_ns = Some(0);
        }
        requests.sort_by_key(|request| request.start_ns);
        requests
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> ServerSet {
        let mut text = String::new();
        for (kind, count) in [("hdd", self.disks), ("ssd", self.ssds)] {
            for number in 0..count {
                let table = format!("[[server]]\nname = \"{kind}{number}\"\nprofile = \"{kind}\"");
                writeln!(text, "{table}\ncapacity = \"1000T\"").expect("a string takes all");
            }
        }
        ServerSet::parse(&text, Path::new("the servers of a case")).expect("servers that are right")
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a number of a few choices")
}
