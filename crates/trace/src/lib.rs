//! Traces: which process asked for which bytes of which file, when, and for how long.
//!
//! - [`request`]: a request, where a trace comes from, and how much of it there is;
//! - [`writer`], [`reader`]: the format of our own (docs/TRACES.md), a block at a time;
//! - [`sort`]: requests into the order of their start, in bounded memory;
//! - [`record`]: traces of what is being served;
//! - [`import`]: traces of other tools;
//! - [`analysis`]: patterns, sizes, concurrency, phases and regions; [`report`]: these as scripts read them.
//!
//! What a file says is not believed: counts are bounded before memory is taken, blocks are summed, and
//! a trace that is cut off says so.

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
pub mod sort;
mod varint;
pub mod writer;

pub use error::Error;
pub use reader::Reader;
pub use request::{Completeness, Kind, Op, Process, Request, Source};
pub use writer::Writer;
