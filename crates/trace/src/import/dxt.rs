//! The text that `darshan-dxt-parser` prints for a log of Darshan's extended tracing (DXT).
//!
//! It is ordered by file and rank, not by time. MPI-IO requests become POSIX requests below, so of a file that has both
//! only the POSIX ones are used, which are those that servers see.

use std::io::{BufRead, Write};

use rustc_hash::FxHashSet;

use super::{Lines, Sink, nanoseconds};
use crate::error::Error;
use crate::request::{Op, Process, Request};

/// Resolution of the times that it prints, in nanoseconds.
pub const RESOLUTION_NS: u64 = 100_000;

/// Which requests are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Module {
    /// POSIX requests, and MPI-IO requests of files that have no others.
    #[default]
    Lowest,
    /// POSIX requests only.
    Posix,
    /// MPI-IO requests only: the program's own requests.
    Mpiio,
}

/// Reads all requests into `sink`, which must sort them.
pub fn import<W: Write>(
    input: impl BufRead,
    module: Module,
    sink: &mut Sink<W>,
) -> Result<(), Error> {
    let mut lines = Lines::new(input);
    let mut text = Text { module, sink, section: None, posix: FxHashSet::default(), any: false };
    while let Some(line) = lines.next()? {
        let done = match line.strip_prefix(b"# DXT, file_id: ") {
            // A name is what bytes it is.
            Some(rest) => text.file(rest),
            None => text.line(&String::from_utf8_lossy(line)),
        };
        match done {
            Ok(()) => {}
            // A text that was cut off ends with half a line.
            Err(Refused::Line(_)) if !lines.whole => {}
            Err(Refused::Line(what)) => return Err(Error::Line { number: lines.number, what }),
            Err(Refused::Other(error)) => return Err(error),
        }
        if !lines.whole {
            let number = lines.number;
            let why = format!("its last line, {number}, has no end: the text is cut off");
            text.sink.missing(None, why);
        }
    }
    text.end_section();
    if !text.any {
        let what = "no requests of DXT in it: is the log of a run with DXT_ENABLE_IO_TRACE=1, and is \
                    this what darshan-dxt-parser printed?";
        return Err(Error::Line { number: lines.number, what: what.to_owned() });
    }
    Ok(())
}

enum Refused {
    Line(String),
    Other(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::Line { what, .. } => Self::Line(what),
            other => Self::Other(other),
        }
    }
}

/// Requests of one rank in one file.
struct Section {
    file: u32,
    name: String,
    node: Vec<u8>,
    /// Requests that were announced; `None` before any were.
    announced: Option<u64>,
    /// Requests that were read.
    found: u64,
    process: Option<(u64, u32)>,
}

struct Text<'a, W: Write> {
    module: Module,
    sink: &'a mut Sink<W>,
    section: Option<Section>,
    /// Files with POSIX requests.
    posix: FxHashSet<u32>,
    any: bool,
}

impl<W: Write> Text<'_, W> {
    fn line(&mut self, line: &str) -> Result<(), Refused> {
        if let Some(said) = line.strip_prefix("# DXT, ") {
            return self.heading(said);
        }
        if let Some(comment) = line.strip_prefix('#') {
            if comment.contains("*WARNING*") || comment.contains("*ERROR*") {
                let why = comment.replace("*WARNING*: ", "").replace("*ERROR*: ", "");
                self.sink.missing(None, format!("Darshan says: {}", why.trim()));
            }
            return Ok(());
        }
        if line.trim().is_empty() { Ok(()) } else { self.request(line) }
    }

    /// `ID, file_name: NAME`: what follows is of this file.
    fn file(&mut self, said: &[u8]) -> Result<(), Refused> {
        const BETWEEN: &[u8] = b", file_name: ";
        self.end_section();
        let shown = String::from_utf8_lossy(said);
        let place = said.windows(BETWEEN.len()).position(|part| part == BETWEEN);
        let place = place
            .ok_or_else(|| Refused::Line(format!("not understood: # DXT, file_id: {shown}")))?;
        let (id, name) = (&said[..place], &said[place + BETWEEN.len()..]);
        let unnamed = [&b"darshan:"[..], id].concat();
        let name = if matches!(name, b"(null)" | b"") { unnamed.as_slice() } else { name };
        let file = self.sink.file(name)?;
        self.any = true;
        let name = String::from_utf8_lossy(name).into_owned();
        let section =
            Section { file, name, node: Vec::new(), announced: None, found: 0, process: None };
        self.section = Some(section);
        Ok(())
    }

    fn heading(&mut self, said: &str) -> Result<(), Refused> {
        let bad = || Refused::Line(format!("not understood: # DXT, {said}"));
        let Some(section) = &mut self.section else { return Ok(()) };
        if let Some(rest) = said.strip_prefix("rank: ") {
            let (_, node) = rest.split_once(", hostname: ").ok_or_else(bad)?;
            node.trim().as_bytes().clone_into(&mut section.node);
        } else if let Some(rest) = said.strip_prefix("write_count: ") {
            let (writes, reads) = rest.split_once(", read_count: ").ok_or_else(bad)?;
            let count = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
            section.announced = Some(count(writes)?.saturating_add(count(reads)?));
        }
        Ok(())
    }

    /// A line ` X_POSIX  rank  write  segment  offset  length  start  end  [OST]...`.
    fn request(&mut self, line: &str) -> Result<(), Refused> {
        let mut fields = line.split_ascii_whitespace();
        let mut field = |what: &str| {
            fields.next().ok_or_else(|| Refused::Line(format!("the {what} is not there")))
        };
        let is_posix = match field("module")? {
            "X_POSIX" => true,
            "X_MPIIO" => false,
            other => {
                return Err(Refused::Line(format!("module {other:?}, not X_POSIX or X_MPIIO")));
            }
        };
        let rank = whole("rank", field("rank")?)?;
        let op = match field("direction")? {
            "read" => Op::Read,
            "write" => Op::Write,
            other => return Err(Refused::Line(format!("{other:?} is neither read nor write"))),
        };
        whole("segment", field("segment")?)?;
        let offset = whole("offset", field("offset")?)?;
        let length = whole("length", field("length")?)?;
        let start_ns = time("start", field("start")?)?;
        let end_ns = time("end", field("end")?)?;
        let Some(took) = end_ns.checked_sub(start_ns) else {
            return Err(Refused::Line("it ends before it starts".to_owned()));
        };
        let Some(section) = &mut self.section else {
            return Err(Refused::Line("a request before any file was named".to_owned()));
        };
        section.found += 1;
        let file = section.file;
        match (self.module, is_posix) {
            (Module::Lowest | Module::Posix, true) => drop(self.posix.insert(file)),
            (Module::Lowest, false) if !self.posix.contains(&file) => {}
            (Module::Mpiio, false) => {}
            _ => return Ok(()),
        }
        let process = match section.process {
            Some((known, process)) if known == rank => process,
            _ => {
                let process = Process { number: rank, node: section.node.clone() };
                let process = self.sink.process(&process)?;
                section.process = Some((rank, process));
                process
            }
        };
        let duration_ns = Some(took);
        let request = Request { start_ns, duration_ns, process, file, op, offset, length };
        Ok(self.sink.push(0, request)?)
    }

    /// A section with fewer requests than announced was cut off, and one that announces none before it did. One with more
    /// is not what was printed either.
    fn end_section(&mut self) {
        let Some(Section { name, announced, found, .. }) = self.section.take() else { return };
        match announced {
            Some(announced) if announced > found => {
                let lost = announced - found;
                let why = format!("{lost} requests of {name} are announced and not there");
                self.sink.missing(Some(lost), why);
            }
            Some(announced) if announced < found => {
                let why = format!(
                    "{found} requests of {name} are there and {announced} announced: the text was changed"
                );
                self.sink.missing(None, why);
            }
            Some(_) => {}
            None => self
                .sink
                .missing(None, format!("how many requests of {name} there are is not there")),
        }
    }
}

fn whole(what: &str, text: &str) -> Result<u64, Refused> {
    text.parse().map_err(|_| Refused::Line(format!("{what} is {text:?}, not a whole number")))
}

fn time(what: &str, text: &str) -> Result<u64, Refused> {
    nanoseconds(text)
        .ok_or_else(|| Refused::Line(format!("{what} is {text:?}, not a number of seconds")))
}
