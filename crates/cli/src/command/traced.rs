//! The requests of a trace file, one after the other, for a replay.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::OnceLock;

use halocline_os::counted::counted;
use halocline_plan::judge::{Layouts, Note};
use halocline_sim::{Late, Options, Outcome as Replayed, ServerSet, replay_noting};
use halocline_trace::{Completeness, Reader, Request};

use crate::command::judge::SharedLayouts;
use crate::failure::Failure;
use crate::print::tell;
use crate::reading::{self, Reading};
use crate::text;

/// What a trace had in it when it was read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    checksum: u32,
    completeness: Completeness,
}

impl Content {
    /// Of the trace that `reader` has read to its end.
    pub(crate) fn of<R: Read>(reader: &Reader<R>) -> Self {
        Self { checksum: reader.checksum(), completeness: reader.completeness().clone() }
    }
}

/// A trace that is read several times. Results of different requests would be compared if it changed in between.
#[derive(Debug)]
pub(crate) struct TraceFile<'a> {
    path: &'a Path,
    /// Known once it was read to its end.
    content: OnceLock<Content>,
    /// Whether it was said that replays of it are no closed loops.
    said_late: OnceLock<()>,
}

impl<'a> TraceFile<'a> {
    /// The trace at `path`, not read yet.
    pub(crate) const fn new(path: &'a Path) -> Self {
        Self { path, content: OnceLock::new(), said_late: OnceLock::new() }
    }

    /// The trace at `path`, which had this in it.
    pub(crate) fn known(path: &'a Path, content: Content) -> Self {
        Self { path, content: content.into(), said_late: OnceLock::new() }
    }

    /// Where it is.
    pub(crate) const fn path(&self) -> &Path {
        self.path
    }

    /// Its requests from the beginning.
    pub(crate) fn requests(&self) -> Result<Traced<'_>, Failure> {
        let file = reading::open(self.path, "simulating")?;
        let reader = Reader::new(file).map_err(|error| refused(self.path, &error.to_string()))?;
        let block = Vec::new().into_iter();
        Ok(Traced { trace: self, reader, block, is_at_end: false, error: None })
    }

    /// Replays all of it on simulated servers, in these layouts. Answers the reader, too, which then knows all names.
    pub(crate) fn replay(
        &self,
        set: &ServerSet,
        layouts: &Layouts,
        options: &Options,
        note: Note<'_>,
    ) -> Result<(Replayed, Reader<BufReader<Reading>>), Failure> {
        let wrong = |error: String| refused(self.path, &error);
        let layouts = SharedLayouts::new(layouts).map_err(wrong)?;
        let mut requests = self.requests()?;
        let of = |file| layouts.of(file);
        let replayed = replay_noting(&mut requests, set, of, options, note).map_err(wrong)?;
        self.tell_if_late(replayed.late);
        Ok((replayed, requests.end()?))
    }

    /// Says, once, where a replay is no closed loop.
    pub(crate) fn tell_if_late(&self, late: Late) {
        if late.late_requests == 0 || self.said_late.set(()).is_err() {
            return;
        }
        tell!(
            "{}: processes that are more than 131,072 requests apart in the trace do not run at once in the replay: {} later \
             than its process was ready, up to {} of simulated time",
            text::path(self.path),
            counted(usize::try_from(late.late_requests).unwrap_or(usize::MAX), "request"),
            text::seconds(late.late_seconds)
        );
    }

    /// Refuses a trace of which `content` was read now, and something else before.
    pub(crate) fn check_same(&self, content: &Content) -> Result<(), Failure> {
        if *self.content.get_or_init(|| content.clone()) == *content {
            return Ok(());
        }
        let name = text::path(self.path);
        Err(Failure::failed(format!("{name}: it changed while it was read; try again")))
    }
}

/// The requests of a trace file, until it ends or cannot be read.
pub(crate) struct Traced<'a> {
    trace: &'a TraceFile<'a>,
    reader: Reader<BufReader<Reading>>,
    block: std::vec::IntoIter<Request>,
    is_at_end: bool,
    error: Option<String>,
}

impl Traced<'_> {
    /// The reader, which at the trace's end knows all names. Fails if the trace could not be read, or changed since it
    /// was read before.
    pub(crate) fn end(self) -> Result<Reader<BufReader<Reading>>, Failure> {
        if let Some(error) = self.error {
            return Err(refused(self.trace.path, &error));
        }
        if self.is_at_end {
            self.trace.check_same(&Content::of(&self.reader))?;
        }
        Ok(self.reader)
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
                Ok(None) => {
                    self.is_at_end = true;
                    return None;
                }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use halocline_trace::{Kind, Op, Process, Source, Writer};

    use super::*;

    /// A trace of so many requests.
    fn write(path: &Path, requests: u64) {
        let file = fs::File::create(path).unwrap();
        let mut writer = Writer::new(file, &Source::new(Kind::Generated)).unwrap();
        let process = writer.process(&Process { number: 0, node: Vec::new() }).unwrap();
        let file = writer.file(b"a").unwrap();
        for number in 0..requests {
            let (start_ns, duration_ns, op) = (number, None, Op::Write);
            let (offset, length) = (number * 4096, 4096);
            let request = Request { start_ns, duration_ns, process, file, op, offset, length };
            writer.push(&request).unwrap();
        }
        writer.finish().unwrap();
    }

    /// Regression: layouts were compared by other requests where a trace was replaced, grew or was cut meanwhile.
    #[test]
    fn a_trace_that_changes_between_two_passes_is_told_from_one_that_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("t.hct");
        write(&path, 100);
        let trace = TraceFile::new(&path);
        let pass = || {
            let mut requests = trace.requests().unwrap();
            let count = requests.by_ref().count();
            requests.end().map(|_| count)
        };
        assert_eq!((pass().unwrap(), pass().unwrap()), (100, 100));
        let whole = fs::read(&path).unwrap();
        write(&path, 101);
        assert!(pass().unwrap_err().message().contains("changed while it was read"));
        fs::write(&path, &whole[..whole.len() - 30]).unwrap();
        assert!(pass().unwrap_err().message().contains("changed while it was read"));
        // Who reads only the beginning does not know.
        write(&path, 101);
        let mut requests = trace.requests().unwrap();
        requests.next();
        requests.end().unwrap();
        fs::write(&path, whole).unwrap();
        assert_eq!(pass().unwrap(), 100);
    }
}
