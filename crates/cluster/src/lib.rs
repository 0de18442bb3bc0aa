//! One cache over many nodes (I11 to I14): the node's agent and the shared store of tokens.
//!
//! [`store`] is what all nodes share: the tokens of each file, and who takes part. [`registry`] lists the nodes'
//! sessions on the origin, where no store can forget them. [`agent`] stands between an engine
//! ([`halocline_cache::coherence`]) and both; what it decides is computed by [`halocline_model::token`].

#![forbid(unsafe_code)]

pub mod agent;
pub mod alone;
pub mod counters;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod inner_origins;
pub mod overview;
pub mod registry;
pub mod sessions;
pub mod store;
