//! Planning stripes: from a trace of requests and a set of servers to the layout of each file
//! (docs/PLANNING.md; docs/ALGORITHMS.md, section 7).
//!
//! - [`servers`]: what is planned for: service times and space of each server, and their classes;
//! - [`layout`]: where the bytes of a file lie: parts of the file with a stripe width for each server;
//! - [`workload`]: a trace of any length as classes with weights, and as a sample that can be replayed;
//! - [`predict`]: the time that a layout takes by the cost model;
//! - [`gain_range`]: how sure a gain is;
//! - [`judge`]: the time that it takes in a replay;
//! - [`paper`]: DEF, PA and PSA;
//! - [`default_layout`]: what users have without a plan;
//! - [`search`]: our planner;
//! - [`planner`]: all four side by side, and the choice;
//! - [`plan_file`]: plans on disk;
//! - [`write`](mod@write): plans as commands for file systems that exist.
//!
//! Everything is deterministic: the same trace and servers give the same plan.

#![forbid(unsafe_code)]

mod comparison;
pub mod default_layout;
mod ending;
mod filling;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gain_range;
pub mod judge;
pub mod layout;
pub mod paper;
mod parts;
mod placed;
pub mod plan_file;
pub mod planner;
mod predict;
pub mod search;
pub mod servers;
mod shared;
mod tails;
pub mod unplanned;
mod used;
pub mod workload;
pub mod write;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace has no requests.
    #[error(
        "the trace has no requests: there is nothing to plan for; see that its program ran to its end, and used files below \
         the mount"
    )]
    Empty,
    /// There are no servers.
    #[error("there are no servers to plan for")]
    NoServers,
    /// The files do not fit.
    #[error("{file}: {missing} bytes of its {bytes} fit on no server")]
    NoSpace {
        /// The file that did not fit.
        file: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes for which there is no place.
        missing: u64,
    },
    /// A plan file that cannot be read.
    #[error("not a plan: {0}")]
    NotAPlan(String),
    /// A plan that was made for other servers.
    #[error("the plan is for other servers: {0}")]
    OtherServers(String),
}
