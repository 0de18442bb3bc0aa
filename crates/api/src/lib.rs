//! How people and programs configure a mount and talk to it.
//!
//! [`config`] is the one table of options from which flags, file keys and documents follow; [`control`] what a running mount
//! answers, on which socket, and every number of it; [`globs`] the sets of paths that both use.

pub mod config;
pub mod control;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod globs;
