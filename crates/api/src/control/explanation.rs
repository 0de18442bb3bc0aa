//! What would happen to a request on a cache, and why.

use std::path::PathBuf;

use halocline_model::layout::Layout;
use halocline_model::request::Direction;
use serde::{Deserialize, Serialize};

use super::{Side, wire};

/// A request to be explained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The file.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Read or write.
    pub direction: Direction,
    /// Number of processes p; if `None`, the number measured on the file.
    pub processes: Option<u32>,
}

/// What would happen to a request, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Admission policy that decided.
    pub policy: String,
    /// Number of processes the model used.
    pub processes: u32,
    /// Bytes of the request that are on the cache already.
    pub cached_bytes: u64,
    /// The side that would serve the bytes that are not on the cache.
    pub decision: Side,
    /// Why, in one sentence.
    pub reason: String,
    /// Why bytes that belong on the cache are not there now; `None` if they are.
    #[serde(default)]
    pub now: Option<String>,
    /// A note about the two sides: they are on one device.
    #[serde(default)]
    pub note: Option<String>,
    /// How other nodes are involved: why the request waits for a token, or goes to the origin. `None` if nothing
    /// prevents it, or there are no other nodes.
    #[serde(default)]
    pub nodes: Option<String>,
    /// The best layout, if the cache is a candidate.
    pub layout: Option<Layout>,
    /// Predicted cost on the origin and on the cache in each candidate layout.
    pub costs: Vec<CostTerms>,
    /// Best benefit in seconds: cost on the origin less the least cost on the cache.
    pub benefit_s: f64,
}

/// The terms of one predicted cost, T = startup + transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostTerms {
    /// The side.
    pub side: Side,
    /// The layout, if on the cache.
    pub layout: Option<Layout>,
    /// Servers touched, m.
    pub servers: u64,
    /// Most bytes on one server, `s_m`.
    pub largest_part_bytes: u64,
    /// Startup `T_s` in seconds.
    pub startup_s: f64,
    /// Transfer in seconds.
    pub transfer_s: f64,
    /// Their sum in seconds, corrected by measured service times if the policy does that.
    pub total_s: f64,
}
