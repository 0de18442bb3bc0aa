//! Simulates how long the requests of a trace take on servers that need not exist (docs/SIMULATOR.md).
//!
//! - [`servers`]: the servers, as described in `servers.toml`;
//! - [`FileLayout`]: which server holds which byte of a file: varied stripes, in parts and regions, as on a striped
//!   origin;
//! - [`placement`]: where files lie on the disks;
//! - [`replay`](mod@replay): the requests, one after another, on these servers, in simulated time;
//! - [`workload`]: the request streams of IOR, HPIO, MPI-Tile-IO and BTIO;
//! - [`study`]: admission policies on random workloads;
//! - [`store_load`](mod@store_load): clients that ask the masters of a shared store;
//! - [`token_traffic`](mod@token_traffic): what nodes ask the store of tokens.
//!
//! Devices are those of the emulation ([`halocline_model::emulated`]). There are no files, clocks or threads: the same
//! requests, servers, layouts and seed give the same result.

#![forbid(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod placement;
pub mod replay;
pub mod servers;
pub mod store_load;
pub mod study;
pub mod token_traffic;
pub mod workload;

pub use halocline_model::file_layout::FileLayout;
pub use placement::placements;
pub use replay::{
    CacheOutcome, Late, MakeAdmission, Options, Outcome, Pace, Sides, TierOutcome, TracedFiles,
    Uses, replay, replay_cached, replay_cached_by, replay_noting, replay_tiered,
};
pub use servers::{Server, ServerSet};
