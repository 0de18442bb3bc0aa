//! Comma-separated values with the header `time_s,process,file,op,offset,length[,duration_s]`.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::mem;
use std::rc::Rc;

use csv::{ByteRecord, ReaderBuilder};

use super::{LINE_MAX, Sink, nanoseconds};
use crate::error::Error;
use crate::request::{Op, Process, Request};

const HEADER: [&str; 7] = ["time_s", "process", "file", "op", "offset", "length", "duration_s"];
/// Size of the reads of the line reader, in bytes.
const BUFFER: usize = 1 << 16;

/// Reads all requests. A duration may be empty. A file that is cut off between two lines cannot be distinguished from a
/// complete one. Of one that is cut off within a line, that line is left out, though it may still look like a request: its
/// last number may have had more digits. The trace is incomplete then.
pub fn import<W: Write>(input: impl Read, sink: &mut Sink<W>) -> Result<(), Error> {
    let guard = Guard { input, given: Rc::new(Cell::new(0)), last: Rc::new(Cell::new(b'\n')) };
    let (given, last) = (guard.given.clone(), guard.last.clone());
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .buffer_capacity(BUFFER)
        .from_reader(guard);
    let mut record = ByteRecord::new();
    // The line before, which is believed once another follows it.
    let (mut before, mut before_number) = (ByteRecord::new(), None);
    let mut fields = 0;
    let mut number = 1;
    while reader.read_byte_record(&mut record).map_err(|error| failed(error, number))? {
        number = record.position().map_or(number, csv::Position::line);
        given.set(0);
        if fields == 0 {
            fields = record.len();
            record.trim();
            let is_header =
                HEADER.iter().zip(&record).all(|(known, name)| name == known.as_bytes());
            if !is_header || !(6..=7).contains(&fields) {
                let what = format!(
                    "the header is not {}, the last of which may be left out",
                    HEADER.join(",")
                );
                return Err(Error::Line { number, what });
            }
            continue;
        }
        if let Some(number) = before_number.replace(number) {
            push(&before, fields, sink, number)?;
        }
        mem::swap(&mut record, &mut before);
    }
    if fields == 0 {
        return Err(Error::Line { number: 1, what: "empty: not even a header".to_owned() });
    }
    if last.get() != b'\n' {
        let what =
            format!("its last line, {number}, has no end and is left out: the file is cut off");
        sink.missing(None, what);
    } else if let Some(number) = before_number {
        push(&before, fields, sink, number)?;
    }
    Ok(())
}

fn push<W: Write>(
    record: &ByteRecord,
    fields: usize,
    sink: &mut Sink<W>,
    number: u64,
) -> Result<(), Error> {
    if record.len() != fields {
        let what = format!("{} fields instead of {fields}", record.len());
        return Err(Error::Line { number, what });
    }
    let request = request(record, sink, number)?;
    sink.push(number, request)
}

fn failed(error: csv::Error, number: u64) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Error::Io(error),
        other => Error::Line { number, what: format!("{other:?}") },
    }
}

fn request<W: Write>(
    record: &ByteRecord,
    sink: &mut Sink<W>,
    number: u64,
) -> Result<Request, Error> {
    let field = |index: usize| record[index].trim_ascii();
    let wrong = |index: usize, what: &str| {
        let found = String::from_utf8_lossy(field(index)).chars().take(40).collect::<String>();
        Error::Line { number, what: format!("{} is {found:?}, not {what}", HEADER[index]) }
    };
    let whole = |index: usize, what: &str| -> Result<u64, Error> {
        let text = str::from_utf8(field(index)).ok();
        text.and_then(|text| text.parse().ok()).ok_or_else(|| wrong(index, what))
    };
    let time = |index: usize| -> Result<u64, Error> {
        let text = str::from_utf8(field(index)).ok();
        text.and_then(nanoseconds)
            .ok_or_else(|| wrong(index, "a number of seconds from 0 to 10^10"))
    };
    let op = match field(3).to_ascii_lowercase().as_slice() {
        b"r" | b"read" => Op::Read,
        b"w" | b"write" => Op::Write,
        _ => return Err(wrong(3, "read or write")),
    };
    let duration_ns = match record.get(6).map(<[u8]>::trim_ascii) {
        None | Some(b"") => None,
        Some(_) => Some(time(6)?),
    };
    // Spaces are part of a name, unless they are around the commas of this line.
    let has_spaced_commas = field(1).len() < record[1].len();
    let name = if has_spaced_commas { field(2) } else { &record[2] };
    if name.is_empty() || name.contains(&0) {
        return Err(wrong(2, "the name of a file"));
    }
    let process = Process { number: whole(1, "a rank or process id")?, node: Vec::new() };
    Ok(Request {
        start_ns: time(0)?,
        duration_ns,
        offset: whole(4, "a number of bytes")?,
        length: whole(5, "a number of bytes")?,
        process: sink.process(&process)?,
        file: sink.file(name)?,
        op,
    })
}

/// Passes bytes on and refuses a record that does not end: a quote that is never closed would use up all memory.
struct Guard<R> {
    input: R,
    given: Rc<Cell<u64>>,
    last: Rc<Cell<u8>>,
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given.get() > LINE_MAX {
            let what = format!("a line is longer than {LINE_MAX} bytes: is a quote never closed?");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let got = self.input.read(buffer)?;
        self.given.set(self.given.get() + got as u64);
        if got > 0 {
            self.last.set(buffer[got - 1]);
        }
        Ok(got)
    }
}
