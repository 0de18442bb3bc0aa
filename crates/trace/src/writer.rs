//! Writes a trace, a block at a time.

use std::io::Write;

use crate::coding::Coder;
use crate::error::Error;
use crate::frame::{self, Block, ROWS_MAX};
use crate::names::{self, NAME_MAX, Numbers, PENDING_MAX};
use crate::request::{Kind, Process, Request, Source};
use crate::varint;

/// Writes a trace. Without [`Writer::finish`] it is cut off, and reported as such when it is read.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// What `out` gets before anything else, until it has it.
    head: Vec<u8>,
    chain: u32,
    files: Numbers,
    processes: Numbers,
    coder: Coder,
    rows: Vec<u8>,
    waiting: u32,
    requests: u64,
    /// Those of them that `out` has.
    written: u64,
    lost: u64,
    incomplete_source: bool,
    last_start_ns: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace on `out`, which need not be buffered.
    pub fn new(out: W, source: &Source) -> Result<Self, Error> {
        let mut begun = Self::delayed(out, source)?;
        begun.begin()?;
        Ok(begun)
    }

    /// The same, but `out` gets nothing before there is a request, or the end.
    pub fn delayed(out: W, source: &Source) -> Result<Self, Error> {
        let mut chain = frame::chain_begin();
        let mut head = frame::MAGIC.to_vec();
        head.extend_from_slice(&frame::VERSION.to_le_bytes());
        let mut about = Vec::new();
        let kind = Kind::ALL.iter().position(|kind| *kind == source.kind).expect("all are there");
        varint::put(&mut about, kind as u64);
        varint::put(&mut about, source.resolution_ns);
        about.extend_from_slice(&source.name[..source.name.len().min(NAME_MAX)]);
        frame::write(&mut head, &mut chain, Block::About, 1, &about)?;
        Ok(Self {
            out,
            head,
            chain,
            files: Numbers::default(),
            processes: Numbers::default(),
            coder: Coder::new(),
            rows: Vec::new(),
            waiting: 0,
            requests: 0,
            written: 0,
            lost: 0,
            incomplete_source: false,
            last_start_ns: 0,
        })
    }

    /// Whether `out` has the beginning.
    pub const fn has_begun(&self) -> bool {
        self.head.is_empty()
    }

    fn begin(&mut self) -> Result<(), Error> {
        let head = std::mem::take(&mut self.head);
        Ok(self.out.write_all(&head)?)
    }

    /// The number of a file, by its name.
    pub fn file(&mut self, name: &[u8]) -> Result<u32, Error> {
        self.files.number(name)
    }

    /// The number of a process.
    pub fn process(&mut self, process: &Process) -> Result<u32, Error> {
        self.processes.number(&names::of_process(process))
    }

    /// Adds a request. Refused: a request that starts before the previous one, has no bytes, extends beyond the end of
    /// any file, or has a file or process that was not given a number here.
    pub fn push(&mut self, request: &Request) -> Result<(), Error> {
        let refused =
            |what: &str| Error::Request { number: self.requests + 1, what: what.to_owned() };
        request.check().map_err(refused)?;
        if request.start_ns < self.last_start_ns {
            return Err(refused("it starts before the one before it"));
        }
        if request.file as usize >= self.files.len()
            || request.process as usize >= self.processes.len()
        {
            return Err(refused("its file or process has no name"));
        }
        if self.waiting == ROWS_MAX {
            self.write_rows()?;
        }
        self.coder.put(&mut self.rows, request);
        self.last_start_ns = request.start_ns;
        self.waiting += 1;
        self.requests += 1;
        if self.files.pending.len().max(self.processes.pending.len()) > PENDING_MAX {
            self.write_names()?;
        }
        Ok(())
    }

    /// Requests so far.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Those of them that were written to the output: a reader finds them even if nothing follows.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Notes requests that happened but are not here.
    pub const fn lose(&mut self, requests: u64) {
        self.lost = self.lost.saturating_add(requests);
    }

    /// Notes that the source lacks some requests, but not how many.
    pub const fn incomplete_source(&mut self) {
        self.incomplete_source = true;
    }

    /// Writes buffered data, so that a reader finds it even if nothing follows.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.write_rows()?;
        Ok(self.out.flush()?)
    }

    /// Completes the trace and returns the output.
    pub fn finish(mut self) -> Result<W, Error> {
        self.begin()?;
        self.write_names()?;
        self.write_rows()?;
        let mut end = Vec::new();
        varint::put(&mut end, self.requests);
        varint::put(&mut end, self.lost);
        varint::put(&mut end, u64::from(self.incomplete_source));
        frame::write(&mut self.out, &mut self.chain, Block::End, 1, &end)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_names(&mut self) -> Result<(), Error> {
        self.begin()?;
        for (block, names) in
            [(Block::Files, &mut self.files), (Block::Processes, &mut self.processes)]
        {
            if names.waiting > 0 {
                let content = &names.pending;
                frame::write(&mut self.out, &mut self.chain, block, names.waiting, content)?;
                names.pending.clear();
                names.waiting = 0;
            }
        }
        Ok(())
    }

    fn write_rows(&mut self) -> Result<(), Error> {
        if self.waiting > 0 {
            self.write_names()?;
            let (block, count) = (Block::Requests, self.waiting);
            frame::write(&mut self.out, &mut self.chain, block, count, &self.rows)?;
            self.written = self.requests;
            self.rows.clear();
            self.coder.reset();
            self.waiting = 0;
        }
        Ok(())
    }
}
