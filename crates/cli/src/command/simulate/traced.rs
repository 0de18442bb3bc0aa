//! The requests of a trace file, one after the other, for a replay.

use std::io::BufReader;
use std::path::Path;

use halocline_trace::{Completeness, Reader, Request};

use crate::failure::Failure;
use crate::print::tell;
use crate::reading::{self, Reading};
use crate::text;

/// The requests of a trace, until it ends or cannot be read.
pub(crate) struct Traced<'a> {
    path: &'a Path,
    reader: Reader<BufReader<Reading>>,
    block: std::vec::IntoIter<Request>,
    error: Option<String>,
}

impl<'a> Traced<'a> {
    /// The trace at `path`, from its beginning.
    pub(crate) fn open(path: &'a Path) -> Result<Self, Failure> {
        let file = reading::open(path, "simulating")?;
        let reader = Reader::new(file).map_err(|error| refused(path, &error.to_string()))?;
        Ok(Self { path, reader, block: Vec::new().into_iter(), error: None })
    }

    /// The reader at the trace's end, which knows all names. Fails if the trace could not be read to its end.
    pub(crate) fn end(self) -> Result<Reader<BufReader<Reading>>, Failure> {
        self.error.map_or(Ok(self.reader), |error| Err(refused(self.path, &error)))
    }
}

impl Iterator for Traced<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        loop {
            if let Some(request) = self.block.next() {
                return Some(request);
            }
            match self.reader.next_block() {
                Ok(Some(block)) => {
                    let requests: Vec<_> = block.to_vec();
                    self.block = requests.into_iter();
                }
                Ok(None) => return None,
                Err(error) => {
                    self.error = Some(error.to_string());
                    return None;
                }
            }
        }
    }
}

/// What is wrong with the trace at `path`.
pub(crate) fn refused(path: &Path, what: &str) -> Failure {
    Failure::refused(format!("{}: {what}", text::path(path)))
}

/// Says where a trace lacks requests.
pub(crate) fn tell_if_partial(path: &Path, completeness: &Completeness) {
    if completeness.is_partial() {
        let why = completeness.cut.as_deref().unwrap_or("its source lacks requests");
        tell!("{}: not whole: {why}", text::path(path));
    }
}
