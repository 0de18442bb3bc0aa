//! The pure part of Halocline: what a request is, which servers it touches, what it costs on either side, whether it
//! deserves the SSD, and which extent or file leaves first; the stripes of PSA, miss-ratio curves, and the protocols of
//! many nodes (tokens, names). No files, no clocks, no threads: time and seeds are arguments.

#![forbid(unsafe_code)]

pub mod admit;
pub mod background;
pub mod backpressure;
pub mod cost;
pub mod curve;
pub mod emulated;
pub mod evict;
pub mod exact;
pub mod file_layout;
pub mod fill;
pub mod flush_order;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod heads;
pub mod in_step;
pub mod layout;
pub mod namespace;
pub mod policy;
pub mod profile;
pub mod psa;
pub mod query;
pub mod request;
pub mod sieve;
pub mod streams;
pub mod striping;
pub mod tier;
pub mod token;
pub mod units;
