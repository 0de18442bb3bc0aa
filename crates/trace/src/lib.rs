//! Traces: which process asked for which bytes of which file, when, and for how long.
//!
//! - [`request`]: a request, the origin of a trace, and its completeness;
//! - [`writer`], [`reader`]: our own format (docs/TRACES.md), a block at a time;
//! - `sort`: sorts requests by start, in bounded memory;
//! - [`record`]: records traces of requests being served;
//! - [`import`]: traces of other tools;
//! - [`analysis`]: patterns, sizes, concurrency, phases and regions; [`report`]: these in the form that scripts read.
//!
//! The contents of a file are not trusted: counts are limited before memory is allocated, blocks have checksums, and a
//! trace that is cut off is reported as such.

#![forbid(unsafe_code)]

pub mod analysis;
mod coding;
pub mod error;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod import;
mod names;
pub mod reader;
pub mod record;
pub mod report;
pub mod request;
mod sort;
mod varint;
pub mod writer;

pub use error::Error;
pub use reader::Reader;
pub use request::{Completeness, Kind, Op, Process, Request, Source};
pub use writer::Writer;
