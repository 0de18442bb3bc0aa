//! Reads a trace, a block at a time. Everything before damage is read; what follows it is not.

use std::io::Read;

use crate::coding::Coder;
use crate::error::Error;
use crate::frame::{self, Block, Failure, ROWS_MAX};
use crate::names::{self, Table};
use crate::request::{Completeness, Kind, Process, Request, Source};
use crate::varint;

/// Reads a trace. Its memory is one block and the tables of names, both bounded whatever the file contains.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    chain: u32,
    source: Source,
    files: Table,
    processes: Table,
    /// Which processes have requests so far: of a trace that is cut off, some have only a name.
    active: Vec<bool>,
    coder: Coder,
    content: Vec<u8>,
    requests: Vec<Request>,
    last_start_ns: u64,
    blocks: u64,
    ended: bool,
    completeness: Completeness,
}

impl<R: Read> Reader<R> {
    /// Begins to read. Files that are not traces, and those of later versions, are refused.
    pub fn new(mut input: R) -> Result<Self, Error> {
        let mut begin = [0; 12];
        let got = frame::fill(&mut input, &mut begin).map_err(no_trace)?;
        if got == 0 {
            return Err(Error::NotATrace("it is empty"));
        }
        if begin[..8] != frame::MAGIC {
            return Err(Error::NotATrace(
                "it begins with something else; `halocline trace import` makes one of what other tools recorded",
            ));
        }
        let version = u32::from_le_bytes(begin[8..].try_into().expect("4 bytes"));
        if got == begin.len() && version != frame::VERSION {
            return Err(Error::Version { found: version, known: frame::VERSION });
        }
        let (mut chain, mut content) = (frame::chain_begin(), Vec::new());
        let (block, _) = frame::read(&mut input, &mut chain, &mut content).map_err(no_trace)?;
        let source = (block == Block::About).then(|| source(&content)).flatten();
        Ok(Self {
            input,
            chain,
            source: source.ok_or(Error::NotATrace("its first block does not say whence it is"))?,
            files: Table::default(),
            processes: Table::default(),
            active: Vec::new(),
            coder: Coder::new(),
            content,
            requests: Vec::new(),
            last_start_ns: 0,
            blocks: 1,
            ended: false,
            completeness: Completeness::default(),
        })
    }

    /// Where the trace comes from.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Name of a file in a request read so far.
    pub fn file(&self, number: u32) -> Option<&[u8]> {
        self.files.get(number)
    }

    /// Files named so far.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// A process in a request read so far.
    pub fn process(&self, number: u32) -> Option<Process> {
        self.processes.get(number).and_then(names::to_process)
    }

    /// The processes that have requests so far.
    pub fn active_processes(&self) -> impl Iterator<Item = Process> {
        let numbers = (0_u32..).zip(&self.active).filter(|(_, active)| **active);
        numbers.filter_map(|(number, _)| self.process(number))
    }

    /// Processes named so far.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// The next requests, in the order of their start; `None` after the last complete block. Then
    /// [`Reader::completeness`] says whether that was everything.
    pub fn next_block(&mut self) -> Result<Option<&[Request]>, Error> {
        while !self.ended {
            let found = frame::read(&mut self.input, &mut self.chain, &mut self.content);
            self.blocks += 1;
            let understood = match found {
                Err(Failure::Io(error)) => return Err(error.into()),
                Err(Failure::Ended) => Err("the file ends without the block that ends a trace"),
                Err(Failure::Damaged(what)) => Err(what),
                Ok((Block::Files, count)) => self.files.add(count, &self.content),
                Ok((Block::Processes, count)) => self.add_processes(count),
                Ok((Block::Requests, count)) => match self.decode(count) {
                    Ok(()) => return Ok(Some(&self.requests)),
                    Err(what) => Err(what),
                },
                Ok((Block::End, _)) => self.end()?,
                Ok((Block::About, _)) => Err("a second beginning"),
            };
            if let Err(what) = understood {
                self.cut(what);
            }
        }
        Ok(None)
    }

    /// How much of what happened was read. Final once [`Reader::next_block`] has returned `None`.
    pub const fn completeness(&self) -> &Completeness {
        &self.completeness
    }

    /// Checksum of all blocks read so far: of a trace that is read again, it tells whether it is still the same.
    pub const fn checksum(&self) -> u32 {
        self.chain
    }

    fn cut(&mut self, what: &str) {
        self.ended = true;
        let after = self.completeness.requests;
        let block = self.blocks;
        self.completeness.cut =
            Some(format!("cut off after {after} requests: {what} (block {block})"));
    }

    fn add_processes(&mut self, count: u32) -> Result<(), &'static str> {
        let old = self.processes.len();
        self.processes.add(count, &self.content)?;
        let new = old..self.processes.len();
        self.active.resize(new.end, false);
        let good = |index: usize| {
            let name = u32::try_from(index).ok().and_then(|number| self.processes.get(number));
            name.and_then(names::to_process).is_some()
        };
        if new.into_iter().all(good) { Ok(()) } else { Err("a process without a number") }
    }

    fn decode(&mut self, count: u32) -> Result<(), &'static str> {
        if count == 0 || count > ROWS_MAX {
            return Err("a block of more requests than any has, or of none");
        }
        self.requests.clear();
        self.coder.reset();
        let mut rest = self.content.as_slice();
        let (files, processes) = (self.files.len(), self.processes.len());
        for _ in 0..count {
            let request = self.coder.take(&mut rest).ok_or("a request that cannot be")?;
            if request.file as usize >= files || request.process as usize >= processes {
                return Err("a request of a file or process without a name");
            }
            self.active[request.process as usize] = true;
            self.requests.push(request);
        }
        if !rest.is_empty() {
            return Err("bytes after the last request of a block");
        }
        let last = self.requests.len() - 1;
        if self.requests[0].start_ns < self.last_start_ns {
            return Err("time runs backwards");
        }
        self.last_start_ns = self.requests[last].start_ns;
        self.completeness.requests += u64::from(count);
        Ok(())
    }

    fn end(&mut self) -> Result<Result<(), &'static str>, Error> {
        let mut rest = self.content.as_slice();
        let mut number = || varint::take(&mut rest);
        let (Some(requests), Some(lost), Some(incomplete @ 0..=1)) = (number(), number(), number())
        else {
            return Ok(Err("the last block says nothing"));
        };
        if !rest.is_empty() || requests != self.completeness.requests {
            return Ok(Err("the last block counts other requests than there are"));
        }
        self.completeness.lost = lost;
        self.completeness.incomplete_source = incomplete == 1;
        self.ended = true;
        match frame::fill(&mut self.input, &mut [0]) {
            Ok(0) => Ok(Ok(())),
            Ok(_) => Ok(Err("bytes follow the last block")),
            Err(failure) => Err(no_trace(failure)),
        }
    }
}

fn no_trace(failure: Failure) -> Error {
    match failure {
        Failure::Io(error) => error.into(),
        Failure::Ended => Error::NotATrace("it ends after its first bytes"),
        Failure::Damaged(what) => Error::NotATrace(what),
    }
}

fn source(mut content: &[u8]) -> Option<Source> {
    let kind = usize::try_from(varint::take(&mut content)?).ok()?;
    let resolution_ns = varint::take(&mut content)?;
    Some(Source { kind: *Kind::ALL.get(kind)?, resolution_ns, name: content.to_vec() })
}
