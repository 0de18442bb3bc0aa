//! Configuration and control of a mount by people and programs.
//!
//! [`config`] is the one table of options from which flags, file keys and documents are derived; [`control`] is what a
//! running mount answers on its socket, and the meaning of every number; [`globs`] are the sets of paths that both use, and [`jobs`] the files that jobs announce to a
//! file tier; [`file_tier`] is what such a tier counts.

pub mod config;
pub mod control;
pub mod file_tier;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod globs;
pub mod jobs;
