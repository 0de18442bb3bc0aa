//! Admission: which requests deserve the SSD servers, and with which layout.
//!
//! A policy is one file below and one row in [`POLICIES`].

pub mod adaptive;
pub mod fixed;

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::layout::{CacheGeometry, Layout};
use crate::policy::UnknownPolicy;
use crate::profile::DeviceProfile;
use crate::request::{ByteRange, Direction};
use crate::striping::Striping;

/// The origin as the cost models see it.
#[derive(Debug, Clone)]
pub struct Side {
    /// Number of servers, M.
    pub servers: u32,
    /// Stripe in bytes.
    pub stripe: u64,
    /// What one server costs.
    pub profile: DeviceProfile,
}

impl Side {
    /// How files lie on the servers.
    pub const fn striping(&self) -> Striping {
        Striping::new(self.servers, self.stripe)
    }
}

/// The cache as the cost models see it.
#[derive(Debug, Clone)]
pub struct CacheSide {
    /// Servers N, stripe and groups g.
    pub geometry: CacheGeometry,
    /// What one server costs.
    pub profile: DeviceProfile,
}

/// Both sides.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The slow side.
    pub origin: Side,
    /// The fast side.
    pub cache: CacheSide,
}

/// A request to be judged, with what its process did before.
#[derive(Debug, Clone)]
pub struct Query {
    /// Read or write.
    pub direction: Direction,
    /// The bytes.
    pub range: ByteRange,
    /// Processes with I/O on the file, p, at least 1.
    pub processes: u32,
    /// Rank or number of the process.
    pub owner: u32,
    /// Bytes between the end of the process's last request and this one; `None` for its first.
    pub distance: Option<u64>,
    /// Bytes of the contiguous run that ends with this request.
    pub run_bytes: u64,
    /// Length the run is expected to reach: at least `run_bytes`, and what earlier runs reached.
    pub expected_run_bytes: u64,
    /// Share of the cache that dirty bytes fill, 0 to 1.
    pub cache_pressure: f32,
}

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request deserves the cache.
    pub critical: bool,
    /// The layout that suits it.
    pub layout: Layout,
    /// Predicted time on the origin, in picoseconds.
    pub origin_ps: u64,
    /// Predicted time on the cache in that layout, in picoseconds.
    pub cache_ps: u64,
}

/// How long a side took.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Whether it was the cache.
    pub on_cache: bool,
    /// Read or write.
    pub direction: Direction,
    /// Whether the request continued a stream.
    pub sequential: bool,
    /// Bytes moved.
    pub bytes: u64,
    /// Servers touched.
    pub parts: u32,
    /// What the verdict predicted for the whole request, in picoseconds.
    pub predicted_ps: u64,
    /// What it took, in picoseconds.
    pub measured_ps: u64,
}

/// One candidate's cost, T = startup + transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CostTerms {
    /// Whether it is the cache.
    pub on_cache: bool,
    /// The layout, on the cache.
    pub layout: Option<Layout>,
    /// Servers touched, m.
    pub servers: u64,
    /// most bytes on one server, `s_m`.
    pub largest_part_bytes: u64,
    /// Startup in picoseconds.
    pub startup_ps: u64,
    /// Transfer in picoseconds.
    pub transfer_ps: u64,
    /// Their sum, corrected by measurement where the policy does so, in picoseconds.
    pub total_ps: u64,
}

/// A verdict with its reasons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explanation {
    /// Name of the policy.
    pub policy: String,
    /// Processes that the model used, p.
    pub processes: u32,
    /// Every candidate's cost, the origin first.
    pub costs: Vec<CostTerms>,
    /// Whether the request deserves the cache.
    pub critical: bool,
    /// The best layout, where the cache is a candidate.
    pub layout: Option<Layout>,
    /// Cost on the origin less the least cost on the cache, in picoseconds.
    pub benefit_ps: i64,
    /// Why, in one sentence.
    pub reason: String,
}

/// Decides which requests are critical.
///
/// The caller guarantees that `processes` is at least 1 and that ranges are not empty.
/// An implementation MUST answer `judge` without locks, allocation or I/O, and MUST give the same
/// answer in `judge` and `explain`.
pub trait Admission: Send + Sync + Debug {
    /// Name in [`POLICIES`].
    fn name(&self) -> &'static str;
    /// Judges a request.
    fn judge(&self, query: &Query) -> Verdict;
    /// Judges a request and says why.
    fn explain(&self, query: &Query) -> Explanation;
    /// Learns how long a side took. Most policies do not.
    fn observe(&self, _observation: &Observation) {}
}

/// One policy.
#[derive(Debug)]
pub struct Row {
    /// Name in configuration, flags and hints.
    pub name: &'static str,
    /// What it does, in one line.
    pub doc: &'static str,
    /// Makes one for a setting.
    pub make: fn(&Setting) -> Box<dyn Admission>,
}

/// All admission policies.
pub static POLICIES: &[Row] = &[
    Row {
        name: "adaptive",
        doc: "ours: what saves much disk time per SSD byte; streams stay home",
        make: |setting| Box::new(adaptive::Adaptive::new(setting.clone())),
    },
    Row {
        name: "always",
        doc: "everything (the papers' NSCA)",
        make: |setting| Box::new(fixed::Fixed::always(setting.clone())),
    },
    Row {
        name: "never",
        doc: "nothing: the origin alone",
        make: |setting| Box::new(fixed::Fixed::never(setting.clone())),
    },
];

/// The policy called `name`, for `setting`.
pub fn by_name(name: &str, setting: &Setting) -> Result<Box<dyn Admission>, UnknownPolicy> {
    let row = POLICIES.iter().find(|row| row.name == name);
    row.map(|row| (row.make)(setting))
        .ok_or_else(|| UnknownPolicy::new("admission", name, POLICIES.iter().map(|row| row.name)))
}
