//! The pure part of Halocline: what a request is, which servers it touches, what it costs on either side, whether it
//! deserves the SSD, and which extent or file leaves first; the stripes of PSA, miss-ratio curves, and the protocols of
//! many nodes (tokens, names). No files, no clocks, no threads: time and seeds are arguments.
//!
//! Requests, files and servers:
//! - [`request`] file, byte range, direction, process; [`units`] byte counts as text
//! - [`striping`] which server has which byte; [`file_layout`] the same with a width for each server
//! - [`layout`] the layouts of a cache volume
//! - [`streams`] what each process does in a file; [`in_step`] whether processes keep the disks' order
//! - [`heads`] where the heads of the origin's disks are
//!
//! What requests cost:
//! - [`profile`] the calibrated cost of a server; [`emulated`] devices that take as long as real ones
//! - [`cost`] the papers' cost models, on [`exact`] numbers; [`psa`] the best stripes on disks and SSDs together
//!
//! What the cache and the tier decide:
//! - [`admit`] which requests deserve the cache; [`evict`] what leaves it; [`policy`] errors of policies' names
//! - [`fill`] how much fills may evict; [`curve`] miss-ratio curves
//! - [`flush_order`] which dirty regions go first; [`sieve`] which are written as one
//! - [`backpressure`] how long a write waits for room; [`background`] what low-priority work may take
//! - [`tier`] which files the SSD of a file tier keeps
//!
//! Many nodes:
//! - [`token`] byte-range tokens; [`namespace`] names of a shared file tier
//!
//! [`query`] answers for all of it in JSON (`halocline model`).

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
