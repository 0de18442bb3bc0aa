//! Imports traces of other tools. An importer reads lines in bounded memory, passes each request to a [`Sink`], and
//! reports if the source itself says, or shows, that it is incomplete.

pub mod csv;
pub mod dxt;

use std::io::{BufRead, Read, Write};
use std::path::Path;

use crate::error::Error;
use crate::request::{Process, Request};
use crate::sort::Sorter;
use crate::writer::Writer;

/// Limit of a line in bytes.
const LINE_MAX: u64 = 1 << 20;

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// Requests of the trace.
    pub requests: u64,
    /// Requests of no bytes, which are omitted because they move nothing.
    pub empty: u64,
    /// Requests known to be missing.
    pub lost: u64,
    /// Why the source is incomplete; empty if it is complete.
    pub missing: Vec<String>,
}

/// The destination of imported requests: a trace, in the order of time.
#[derive(Debug)]
pub struct Sink<W: Write> {
    writer: Writer<W>,
    sorter: Option<Sorter>,
    last_start_ns: u64,
    imported: Imported,
}

impl<W: Write> Sink<W> {
    /// Requests must come in the order of their start.
    pub fn ordered(writer: Writer<W>) -> Self {
        Self { writer, sorter: None, last_start_ns: 0, imported: Imported::default() }
    }

    /// Requests may come in any order and are sorted, with temporary files in `dir`.
    pub fn sorted(writer: Writer<W>, dir: &Path) -> Self {
        Self { sorter: Some(Sorter::new(dir)), ..Self::ordered(writer) }
    }

    /// The number of a file.
    fn file(&mut self, name: &[u8]) -> Result<u32, Error> {
        self.writer.file(name)
    }

    /// The number of a process.
    fn process(&mut self, process: &Process) -> Result<u32, Error> {
        self.writer.process(process)
    }

    /// Adds a request from line `number`.
    fn push(&mut self, number: u64, request: Request) -> Result<(), Error> {
        if request.length == 0 {
            self.imported.empty += 1;
            return Ok(());
        }
        let wrong = |what: &str| Error::Line { number, what: what.to_owned() };
        request.check().map_err(wrong)?;
        if let Some(sorter) = &mut self.sorter {
            return sorter.push(request);
        }
        if request.start_ns < self.last_start_ns {
            return Err(wrong("time runs backwards; if that is its order, import with --sort"));
        }
        self.last_start_ns = request.start_ns;
        self.writer.push(&request)
    }

    /// Notes that requests are missing: how many, if known, and why.
    fn missing(&mut self, lost: Option<u64>, why: String) {
        match lost {
            Some(lost) => self.writer.lose(lost),
            None => self.writer.incomplete_source(),
        }
        self.imported.lost = self.imported.lost.saturating_add(lost.unwrap_or(0));
        // Only as many as a person would read.
        if self.imported.missing.len() < 10 {
            self.imported.missing.push(why);
        }
    }

    /// Completes the trace.
    pub fn finish(self) -> Result<(W, Imported), Error> {
        let Self { mut writer, sorter, mut imported, .. } = self;
        if let Some(sorter) = sorter {
            sorter.drain(|request| writer.push(request))?;
        }
        imported.requests = writer.requests();
        Ok((writer.finish()?, imported))
    }
}

/// Nanoseconds from a decimal number of seconds; finer digits are truncated. `None` for anything that is not such a
/// number, is negative, or is too large.
fn nanoseconds(text: &str) -> Option<u64> {
    if text.contains(['e', 'E']) {
        let value = text.parse::<f64>().ok()?;
        let ns = (value * 1e9).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        return (0.0..1.8e19).contains(&ns).then_some(ns as u64);
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || matches!(text, "" | ".") {
        return None;
    }
    let seconds = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let part: u64 = format!("{part:0<9}")[..9].parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(part)
}

/// Lines of a text with their numbers, each of bounded length.
struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    /// Whether the last line had a line end.
    whole: bool,
}

impl<R: BufRead> Lines<R> {
    const fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, whole: true }
    }

    /// The next line without its line end; `None` at the end of the text.
    fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        self.line.clear();
        self.number += 1;
        let got = self.input.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.line)?;
        if got == 0 {
            return Ok(None);
        }
        self.whole = self.line.pop_if(|end| *end == b'\n').is_some();
        if !self.whole && self.line.len() as u64 == LINE_MAX {
            let what = format!("longer than {LINE_MAX} bytes");
            return Err(Error::Line { number: self.number, what });
        }
        self.line.pop_if(|end| *end == b'\r');
        Ok(Some(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_exactly() {
        let good = [
            ("0", 0),
            ("12", 12_000_000_000),
            ("0.0029", 2_900_000),
            (".5", 500_000_000),
            ("3.", 3_000_000_000),
            ("1700000000.123456789123", 1_700_000_000_123_456_789),
            ("2.5e-05", 25_000),
        ];
        for (text, ns) in good {
            assert_eq!(nanoseconds(text), Some(ns), "{text}");
        }
        for text in ["", ".", "-1", "-0.1", "1.2.3", "nan", "inf", "1e300", "99999999999999", "+1"]
        {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }
}
