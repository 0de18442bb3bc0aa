//! Admission: which requests deserve the cache, and in which layout.
//!
//! The contract is [`Admission`]; each policy is one file and one row of [`POLICIES`].

mod adaptive;
mod correction;
mod forecast;
mod s4d;
mod sla;
#[cfg(test)]
mod suite;
mod unconditional;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

pub(crate) use adaptive::Adaptive;
pub(crate) use s4d::S4d;
pub(crate) use sla::Sla;
pub(crate) use unconditional::Unconditional;

use crate::cost::Cost;
use crate::cost::sla::Formulas;
use crate::layout::{CacheGeometry, Layout};
pub use crate::policy::UnknownPolicy;
use crate::profile::DeviceProfile;
use crate::request::{ByteRange, Direction};
use crate::striping::Striping;

/// The origin: its servers, how files are striped over them, and the cost of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginSide {
    /// Number of servers, M.
    pub servers: u32,
    /// Stripe size in bytes.
    pub stripe: u64,
    /// Service times of one server.
    pub profile: DeviceProfile,
}

impl OriginSide {
    /// How files are striped over the servers.
    pub const fn striping(&self) -> Striping {
        Striping::new(self.servers, self.stripe)
    }
}

/// The cache: its servers and layouts, and the cost of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSide {
    /// Servers, stripe and groups.
    pub geometry: CacheGeometry,
    /// Service times of one server, as one caller sees them.
    pub profile: DeviceProfile,
    /// Requests that each server can serve at once without slowing any of them; 1 if unknown.
    pub channels: u32,
}

/// Both sides, from which a policy is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The slow side.
    pub origin: OriginSide,
    /// The fast side.
    pub cache: CacheSide,
}

/// A request and its context, as seen by the engine.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the request")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Query {
    /// Read or write.
    pub direction: Direction,
    /// Bytes of the file.
    pub range: ByteRange,
    /// Processes with requests on the file, p; at least 1.
    pub processes: u32,
    /// Rank, or a stable hash of the process.
    pub owner: u32,
    /// `|f_i - (f_{i-1} + r_{i-1})|` of this process on this file; `None` for its first request.
    pub distance: Option<u64>,
    /// Bytes this process has streamed contiguously up to and including this request.
    pub run_bytes: u64,
    /// Length of the process's run before this one, 0 if there was none: the expected length of this one.
    pub last_run_bytes: u64,
    /// Whether its process does more than jump: some of its last requests began where others had ended.
    pub orderly: bool,
    /// Whether it would cost the origin no seek: the last request of the file that went there ended where this one
    /// begins.
    pub continues_origin: bool,
    /// Whether processes take turns, and their requests have been in file order for a while.
    pub in_step: bool,
    /// Whether the origin also serves reads of the file: they come between the writes of a flush.
    pub origin_serves_reads: bool,
    /// From 0 for an empty cache to 1 for one full of dirty data.
    pub cache_pressure: f32,
}

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request deserves the cache.
    pub critical: bool,
    /// The cache layout with the least predicted cost.
    pub layout: Layout,
    /// Predicted time on the origin; 0 from a policy that does not need it to judge.
    pub origin_ps: u64,
    /// Predicted time on the cache in `layout`; 0 likewise.
    pub cache_ps: u64,
}

/// One predicted cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostTerms {
    /// The cache, or else the origin.
    pub on_cache: bool,
    /// Layout, if on the cache.
    pub layout: Option<Layout>,
    /// Servers touched, m.
    pub servers: u64,
    /// Most bytes on one server, `s_m`.
    pub largest_part_bytes: u64,
    /// Startup, including waits for others' startups.
    pub startup_ps: u64,
    /// Transfer, including waits for others' transfers if the model has them.
    pub transfer_ps: u64,
    /// Startup and transfer, corrected by measured times if the policy does that.
    pub total_ps: u64,
}

/// Why a request is critical or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The policy's name.
    pub policy: String,
    /// Number of processes the model used.
    pub processes: u32,
    /// The decision.
    pub critical: bool,
    /// The reason in one sentence.
    pub reason: String,
    /// The best layout.
    pub layout: Option<Layout>,
    /// The origin's cost and each candidate layout's.
    pub costs: Vec<CostTerms>,
    /// Cost on the origin less the least cost on the cache.
    pub benefit_ps: i64,
}

/// The time of a served request, for comparing predictions with reality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Served by the cache, otherwise by the origin.
    pub on_cache: bool,
    /// Read or write.
    pub direction: Direction,
    /// Whether the request continued its process's stream.
    pub sequential: bool,
    /// Bytes served.
    pub bytes: u64,
    /// Number of contiguous parts they were served in.
    pub parts: u32,
    /// The time that the verdict predicted for this side.
    pub predicted_ps: u64,
    /// The time that it took.
    pub measured_ps: u64,
}

/// An admission policy.
///
/// The caller guarantees that `processes` is at least 1 and `run_bytes` covers the request.
/// An implementation MUST answer `judge` without locks or allocation, well under 300 ns; MUST
/// give `explain` the decision that `judge` gives (a policy that learns may learn in between);
/// MUST NOT find an empty request critical; and MUST make `observe` lock-free.
pub trait Admission: Send + Sync + Debug {
    /// The policy's name in [`POLICIES`].
    fn name(&self) -> &'static str;
    /// Decides one request.
    fn judge(&self, query: &Query) -> Verdict;
    /// Decides one request and says why.
    fn explain(&self, query: &Query) -> Explanation;
    /// How long, in picoseconds, a critical write that finds the cache full of dirty data may wait for a running flush
    /// before it goes to the origin. The papers' policies do not wait.
    fn wait_limit_ps(&self, verdict: &Verdict) -> u64 {
        let _ = verdict;
        0
    }
    /// Whether `observe` does anything. Most policies do not learn, so that nothing need be measured for them.
    fn learns(&self) -> bool {
        false
    }
    /// Learns how long a request took.
    fn observe(&self, observation: &Observation) {
        let _ = observation;
    }
}

/// One admission policy: its name, a sentence about it, and its constructor.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Name in configuration, hints and reports.
    pub name: &'static str,
    /// What it admits, for help texts.
    pub doc: &'static str,
    /// Whether it takes part in comparisons for which no policies are named.
    pub compared: bool,
    /// Makes one for a setting.
    pub make: fn(&Setting) -> Box<dyn Admission>,
}

/// All admission policies; the first is the default.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "adaptive",
        doc: "what saves most disk time per SSD byte; learns from measured service times",
        compared: true,
        make: |setting| Box::new(Adaptive::new(setting)),
    },
    Policy {
        name: "sla",
        doc: "the cost model of SLA-Cache, with repaired formulas",
        compared: true,
        make: |setting| Box::new(Sla::new(setting, Formulas::Repaired)),
    },
    Policy {
        name: "sla-paper",
        doc: "the cost model of SLA-Cache with its formulas as printed",
        // For comparisons with the papers.
        compared: false,
        make: |setting| Box::new(Sla::new(setting, Formulas::AsPrinted)),
    },
    Policy {
        name: "s4d",
        doc: "the cost model of S4D-Cache: seek by distance",
        compared: true,
        make: |setting| Box::new(S4d::new(setting)),
    },
    Policy {
        name: "always",
        doc: "everything, striped over all cache servers (the papers' NSCA)",
        compared: true,
        make: |setting| Box::new(Unconditional::always(setting)),
    },
    Policy {
        name: "never",
        doc: "nothing: programs run on the origin",
        compared: true,
        make: |setting| Box::new(Unconditional::never(setting)),
    },
];

/// The names of the policies in comparisons for which none are named.
pub const COMPARED: [&str; compared_count()] = compared();

const fn compared_count() -> usize {
    let (mut at, mut count) = (0, 0);
    while at < POLICIES.len() {
        count += POLICIES[at].compared as usize;
        at += 1;
    }
    count
}

const fn compared<const COUNT: usize>() -> [&'static str; COUNT] {
    let mut names = [""; COUNT];
    let (mut at, mut count) = (0, 0);
    while at < POLICIES.len() {
        if POLICIES[at].compared {
            names[count] = POLICIES[at].name;
            count += 1;
        }
        at += 1;
    }
    names
}

/// Makes the policy called `name` for `setting`.
pub fn by_name(name: &str, setting: &Setting) -> Result<Box<dyn Admission>, UnknownPolicy> {
    POLICIES
        .iter()
        .find(|policy| policy.name == name)
        .map(|policy| (policy.make)(setting))
        .ok_or_else(|| {
            UnknownPolicy::new("admission", name, POLICIES.iter().map(|policy| policy.name))
        })
}

/// `origin - cache`, saturating.
fn benefit_ps(origin_ps: u64, cache_ps: u64) -> i64 {
    let size = i64::try_from(origin_ps.abs_diff(cache_ps)).unwrap_or(i64::MAX);
    if origin_ps >= cache_ps { size } else { -size }
}

/// An exact cost, as terms for people.
fn terms_of(cost: &Cost, layout: Option<Layout>) -> CostTerms {
    CostTerms {
        on_cache: layout.is_some(),
        layout,
        servers: cost.servers,
        largest_part_bytes: u64::try_from(cost.largest).unwrap_or(0),
        startup_ps: cost.startup_ps.to_ps(),
        transfer_ps: cost.transfer_ps.to_ps(),
        total_ps: cost.total_ps().to_ps(),
    }
}
