//! The tables of a trace: names of files, and processes, without duplicates, numbered in order of appearance.

use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::frame::CONTENT_MAX;
use crate::request::Process;
use crate::varint;

/// Limit of a name in bytes.
pub(crate) const NAME_MAX: usize = 1 << 16;
/// Limit of the names in a table.
const COUNT_MAX: usize = 1 << 22;
/// Limit of the bytes of all names in a table.
const TOTAL_MAX: usize = 256 << 20;
/// Names are collected up to this many bytes.
pub(crate) const PENDING_MAX: usize = 1 << 18;
const _: () = assert!(PENDING_MAX + NAME_MAX + 16 < CONTENT_MAX);

/// Encodes a process as a name.
pub(crate) fn of_process(process: &Process) -> Vec<u8> {
    let mut name = Vec::with_capacity(process.node.len() + 4);
    varint::put(&mut name, process.number);
    name.extend_from_slice(&process.node);
    name
}

/// The inverse of [`of_process`].
pub(crate) fn to_process(mut name: &[u8]) -> Option<Process> {
    let number = varint::take(&mut name)?;
    Some(Process { number, node: name.to_vec() })
}

/// Names with their numbers, for a writer.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    known: FxHashMap<Box<[u8]>, u32>,
    total: usize,
    /// Content of the next block of this table, and the number of its names.
    pub(crate) pending: Vec<u8>,
    pub(crate) waiting: u32,
}

impl Numbers {
    /// The number of `name`; a new one is assigned if it has none yet.
    pub(crate) fn number(&mut self, name: &[u8]) -> Result<u32, Error> {
        if let Some(&number) = self.known.get(name) {
            return Ok(number);
        }
        if name.len() > NAME_MAX {
            return Err(Error::TooMany("64 KiB in one name"));
        }
        self.total += name.len();
        if self.known.len() >= COUNT_MAX || self.total > TOTAL_MAX {
            return Err(Error::TooMany("4 million names, or 256 MiB of them"));
        }
        let number = u32::try_from(self.known.len()).expect("the count is bounded");
        self.known.insert(name.into(), number);
        varint::put(&mut self.pending, name.len() as u64);
        self.pending.extend_from_slice(name);
        self.waiting += 1;
        Ok(number)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Names by their numbers, for a reader: in one buffer, whatever the contents.
#[derive(Debug, Default)]
pub(crate) struct Table {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Table {
    /// Adds `count` names from a block; the error says what is wrong with it.
    pub(crate) fn add(&mut self, count: u32, mut content: &[u8]) -> Result<(), &'static str> {
        for _ in 0..count {
            let length = varint::take(&mut content).ok_or("a name is cut off")?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > NAME_MAX || length > content.len() {
                return Err("a name is longer than its block");
            }
            if self.ends.len() >= COUNT_MAX || self.bytes.len() + length > TOTAL_MAX {
                return Err("more names than a trace may have");
            }
            let (name, rest) = content.split_at(length);
            self.bytes.extend_from_slice(name);
            self.ends.push(u32::try_from(self.bytes.len()).expect("the total is bounded"));
            content = rest;
        }
        if content.is_empty() { Ok(()) } else { Err("bytes after the last name") }
    }

    /// A name by its number.
    pub(crate) fn get(&self, number: u32) -> Option<&[u8]> {
        let index = number as usize;
        let end = *self.ends.get(index)? as usize;
        let begin = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[begin..end])
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}
