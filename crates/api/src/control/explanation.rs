//! What would happen with a request on a cache, and why.

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
    /// Number of processes p; what is measured on the file when `None`.
    pub processes: Option<u32>,
}

/// What would happen with a request, and why.
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
    /// Why bytes that belong on the cache are not there now; `None` where they are.
    #[serde(default)]
    pub now: Option<String>,
    /// What a person should know of the two sides: they lie on one device.
    #[serde(default)]
    pub note: Option<String>,
    /// What other nodes have to do with it: why it waits for a token, or goes to the origin. `None` where nothing stands in
    /// its way, and where there are no other nodes.
    #[serde(default)]
    pub nodes: Option<String>,
    /// The best layout, where the cache is a candidate.
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
    /// The layout, on the cache.
    pub layout: Option<Layout>,
    /// Servers touched, m.
    pub servers: u64,
    /// Most bytes on one server, `s_m`.
    pub largest_part_bytes: u64,
    /// Startup `T_s` in seconds.
    pub startup_s: f64,
    /// Transfer in seconds.
    pub transfer_s: f64,
    /// Their sum in seconds, corrected by measured service times where the policy does so.
    pub total_s: f64,
}
