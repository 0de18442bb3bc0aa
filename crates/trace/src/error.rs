//! What can go wrong with a trace. Whoever opened the file adds its name.

use std::io;

/// Why a trace could not be read, written or imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or its medium.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else than a trace.
    #[error("not a trace of Halocline: {0}")]
    NotATrace(&'static str),
    /// Written by a later version.
    #[error("a trace of format {found}; this version reads format {known}: use a newer Halocline")]
    Version {
        /// Format of the file.
        found: u32,
        /// The latest that this version knows.
        known: u32,
    },
    /// A request that no trace may hold.
    #[error("request {number}: {what}")]
    Request {
        /// Counted from 1.
        number: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A line of an imported text.
    #[error("line {number}: {what}")]
    Line {
        /// Counted from 1.
        number: u64,
        /// What is wrong with it.
        what: String,
    },
    /// More names than a trace may hold.
    #[error("more than {0}")]
    TooMany(&'static str),
    /// A program that converts traces.
    #[error("{0}")]
    Converter(String),
}
