//! The hybrid-storage engine of Halocline.
//!
//! Data flows one way: [`engine`] (the contract with front ends; identify, redirect, rebuild) ->
//! [`extent`] | [`tier`] (whole files between SSD and HDD) -> [`meta`] (which byte is where,
//! durable) -> [`volume`] (servers and striping) -> [`device`] (one server). [`namespace`] is the
//! origin's directory tree, by descriptors.

mod beneath;
mod born;
pub mod bound_process;
pub mod bounded;
pub mod calibrate;
pub mod clock;
pub mod coherence;
pub mod config;
pub mod control;
pub mod counted;
pub mod device;
pub mod engine;
pub mod error;
mod extent;
mod globs;
pub mod looks;
pub mod meta;
pub mod namespace;
pub mod one_device;
mod open_files;
pub mod private;
pub mod reserves;
pub mod sync;
pub mod tier;
pub mod unpanicked;
pub mod volume;
