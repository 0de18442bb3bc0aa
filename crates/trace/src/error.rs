//! Errors about traces. The code that opened the file adds its name.

use std::io;

/// Why a trace could not be read, written or imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the file or its medium.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a trace.
    #[error("not a trace of Halocline: {0}")]
    NotATrace(&'static str),
    /// Written by a later version.
    #[error("a trace of format {found}; this version reads format {known}: use a newer Halocline")]
    Version {
        /// Format of the file.
        found: u32,
        /// The latest format that this version knows.
        known: u32,
    },
    /// A request that is invalid in a trace.
    #[error("request {number}: {what}")]
    Request {
        /// Its number, counting from 1.
        number: u64,
        /// What is wrong with it.
        what: String,
    },
    /// An invalid line of an imported text.
    #[error("line {number}: {what}")]
    Line {
        /// Its number, counting from 1.
        number: u64,
        /// What is wrong with it.
        what: String,
    },
    /// More names than allowed in a trace.
    #[error("more than {0}")]
    TooMany(&'static str),
    /// An error of a program that converts traces.
    #[error("{0}")]
    Converter(String),
}
