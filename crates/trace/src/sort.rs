//! Sorts requests by start, in bounded memory: sorted runs in temporary files, which are then merged all at once.
//! Requests with the same start stay in the order in which they came.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::request::{Op, Request};

/// Limit of the requests in memory: 56 MiB.
const RUN_DEFAULT: usize = 1 << 20;
/// Limit of the runs that are merged at once: each takes a descriptor and a buffer.
const RUNS_MAX: usize = 64;

/// Sorts requests.
#[derive(Debug)]
pub(crate) struct Sorter {
    dir: PathBuf,
    run: Vec<Request>,
    run_max: usize,
    runs: Vec<File>,
}

impl Sorter {
    /// Sorts with unnamed temporary files in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self::with_run(dir, RUN_DEFAULT)
    }

    fn with_run(dir: &Path, run_max: usize) -> Self {
        Self { dir: dir.to_owned(), run: Vec::new(), run_max, runs: Vec::new() }
    }

    /// Adds a request.
    pub(crate) fn push(&mut self, request: Request) -> Result<(), Error> {
        self.run.push(request);
        if self.run.len() < self.run_max {
            return Ok(());
        }
        self.end_run()?;
        if self.runs.len() >= RUNS_MAX {
            let mut merged = BufWriter::new(tempfile::tempfile_in(&self.dir)?);
            merge(mem::take(&mut self.runs), |request| Ok(merged.write_all(&to_bytes(request))?))?;
            self.runs.push(rewound(merged)?);
        }
        Ok(())
    }

    /// Gives all requests, in order.
    pub(crate) fn drain(
        mut self,
        mut give: impl FnMut(&Request) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.runs.is_empty() {
            self.run.sort_by_key(|request| request.start_ns);
            return self.run.iter().try_for_each(give);
        }
        self.end_run()?;
        merge(self.runs, &mut give)
    }

    fn end_run(&mut self) -> Result<(), Error> {
        self.run.sort_by_key(|request| request.start_ns);
        let mut out = BufWriter::new(tempfile::tempfile_in(&self.dir)?);
        for request in self.run.drain(..) {
            out.write_all(&to_bytes(&request))?;
        }
        self.runs.push(rewound(out)?);
        Ok(())
    }
}

fn rewound(out: BufWriter<File>) -> Result<File, Error> {
    let mut file = out.into_inner().map_err(|error| Error::Io(error.into_error()))?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Merges runs, in the order in which they came.
fn merge(
    runs: Vec<File>,
    mut give: impl FnMut(&Request) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut inputs: Vec<_> = runs.into_iter().map(BufReader::new).collect();
    let mut heads = Vec::with_capacity(inputs.len());
    let mut order = BinaryHeap::new();
    for (index, input) in inputs.iter_mut().enumerate() {
        let head = next(input)?;
        order.extend(head.map(|request| Reverse((request.start_ns, index))));
        heads.push(head);
    }
    while let Some(Reverse((_, index))) = order.pop() {
        let follows = next(&mut inputs[index])?;
        if let Some(request) = mem::replace(&mut heads[index], follows) {
            give(&request)?;
        }
        order.extend(follows.map(|request| Reverse((request.start_ns, index))));
    }
    Ok(())
}

const BYTES: usize = 41;

/// A request in a run, a format that is only used here.
fn to_bytes(request: &Request) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[0] = u8::from(request.op == Op::Write) | u8::from(request.duration_ns.is_some()) << 1;
    bytes[1..5].copy_from_slice(&request.process.to_le_bytes());
    bytes[5..9].copy_from_slice(&request.file.to_le_bytes());
    let took = request.duration_ns.unwrap_or(0);
    let wide = [request.start_ns, took, request.offset, request.length];
    for (to, value) in bytes[9..].chunks_exact_mut(8).zip(wide) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn next(input: &mut impl Read) -> Result<Option<Request>, Error> {
    let mut bytes = [0; BYTES];
    match input.read_exact(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Ok(Some(Request {
        op: if bytes[0] & 1 == 1 { Op::Write } else { Op::Read },
        duration_ns: (bytes[0] & 2 == 2).then(|| wide(17)),
        process: number(1),
        file: number(5),
        start_ns: wide(9),
        offset: wide(25),
        length: wide(33),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_merged_in_order_and_ties_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        // More runs than are merged at once.
        let mut sorter = Sorter::with_run(dir.path(), 3);
        let mut expected = Vec::new();
        for index in 0..1_000_u32 {
            let request = Request {
                start_ns: u64::from(index.wrapping_mul(0x9E37_79B1) >> 24),
                duration_ns: index.is_multiple_of(3).then_some(u64::from(index)),
                process: index,
                file: index / 2,
                op: if index.is_multiple_of(5) { Op::Write } else { Op::Read },
                offset: u64::from(index) << 30,
                length: 1 + u64::from(index),
            };
            expected.push(request);
            sorter.push(request).unwrap();
        }
        expected.sort_by_key(|request| request.start_ns);
        let mut found = Vec::new();
        sorter
            .drain(|request| {
                found.push(*request);
                Ok(())
            })
            .unwrap();
        assert_eq!(found, expected);
    }
}
