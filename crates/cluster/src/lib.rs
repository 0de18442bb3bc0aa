//! One cache over many nodes (I11 to I14): the node's agent and the shared store of tokens.
//!
//! [`store`] has the state that all nodes share: the tokens of each file, and the members. [`registry`] lists the
//! nodes' sessions on the origin, where no store can forget them. [`agent`] connects an engine
//! ([`halocline_cache::coherence`]) with both; [`halocline_model::token`] computes its decisions. [`glusterfs`] finds
//! out whether an origin's client has caches that no token reaches. [`names`] holds the names of a file tier that nodes
//! share.

#![forbid(unsafe_code)]

pub mod agent;
pub mod alone;
pub mod counters;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod glusterfs;
pub mod inner_origins;
pub mod names;
pub mod overview;
pub mod registry;
pub mod sessions;
pub mod store;
