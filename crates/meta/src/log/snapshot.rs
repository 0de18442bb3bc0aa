//! A file with all records as they were after one batch, in the order of their keys.
//!
//! It is written beside the last one, and gets its name once it is complete and durable. Integers are little-endian,
//! sums CRC-32C combined with the log's generation:
//!
//! ```text
//! head     "hcsnap01" number:8 generation:8 batch:8 sum:4
//! block    sum:4 packed:4 length:4, records in `packed` bytes of LZ4, `length` bytes as they are
//! end      sum:4 0:4 0:4 records:8
//! ```
//!
//! A record looks as a change of a batch does (`batch.rs`). A block's sum is of what follows it.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use super::log_file::{NUMBER_MAX, sum};
use crate::batch::{Batch, split};
use halocline_os::error::Error;
use halocline_os::private::PrivateDir;

const MAGIC: &[u8; 8] = b"hcsnap01";
const HEAD: usize = 36;
const BLOCK_HEAD: usize = 12;
/// A block ends with the record that makes it this long.
const BLOCK_BYTES: usize = 64 << 10;
/// The longest possible block: the longest record after almost a full block.
const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + (1 << 17);

/// What a snapshot says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The last file of the log that the snapshot covers.
    pub(super) number: u64,
    /// Tells logs apart; random.
    pub(super) generation: u64,
    /// The number of the last batch that the snapshot covers.
    pub(super) batch: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..24].copy_from_slice(&self.generation.to_le_bytes());
        head[24..32].copy_from_slice(&self.batch.to_le_bytes());
        let sum = sum(&head[..32], self.generation);
        head[32..].copy_from_slice(&sum.to_le_bytes());
        head
    }

    fn decode(bytes: &[u8; HEAD]) -> Option<Self> {
        let field = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("a head has four fields");
            u64::from_le_bytes(*bytes)
        };
        let head = Self { number: field(8), generation: field(16), batch: field(24) };
        let can_go_on = head.number <= NUMBER_MAX && head.batch <= NUMBER_MAX;
        (can_go_on && head.encode() == *bytes).then_some(head)
    }
}

/// A snapshot that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    generation: u64,
    block: Batch,
    records: u64,
    bytes: u64,
}

impl Writer {
    /// Begins a snapshot in an empty file.
    pub(super) fn begin(mut file: File, head: Head) -> io::Result<Self> {
        file.write_all(&head.encode())?;
        let (generation, block, bytes) = (head.generation, Batch::default(), HEAD as u64);
        Ok(Self { file, generation, block, records: 0, bytes })
    }

    /// Adds a record. Records come in the order of their keys.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.block.put(key, value);
        self.records += 1;
        if self.block.bytes().len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let packed = lz4_flex::block::compress(self.block.bytes());
        let len = self.block.bytes().len();
        self.block.clear();
        self.write(packed.len(), len, &packed)
    }

    fn write(&mut self, packed: usize, len: usize, content: &[u8]) -> io::Result<()> {
        let mut block = vec![0; 4];
        for field in [packed, len] {
            let field = u32::try_from(field).map_err(|_| io::ErrorKind::FileTooLarge)?;
            block.extend_from_slice(&field.to_le_bytes());
        }
        block.extend_from_slice(content);
        let sum = sum(&block[4..], self.generation);
        block[..4].copy_from_slice(&sum.to_le_bytes());
        self.bytes += block.len() as u64;
        self.file.write_all(&block)
    }

    /// Ends the snapshot, durably; returns its bytes.
    pub(super) fn end(mut self) -> io::Result<u64> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.write(0, 0, &self.records.to_le_bytes())?;
        self.file.sync_all()?;
        Ok(self.bytes)
    }
}

/// A snapshot that is being read, record by record.
#[derive(Debug)]
pub(super) struct Reader {
    file: BufReader<File>,
    pub(super) head: Head,
    /// Where the next block begins.
    offset: u64,
    block: Vec<u8>,
    packed: Vec<u8>,
    /// Where the next record begins in the block.
    next: usize,
    /// The current record's place: its key and its value.
    record: Option<[std::ops::Range<usize>; 2]>,
    records: u64,
}

/// Why a snapshot cannot be read, and at which byte.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) offset: u64,
    pub(super) what: String,
}

impl Bad {
    /// The error for a damaged snapshot.
    pub(super) fn told(&self, dir: &PrivateDir, number: u64) -> Error {
        let Self { offset, what } = self;
        super::damaged(dir, &format!("{} at byte {offset}: {what}", super::snapshot_name(number)))
    }
}

impl Reader {
    /// Begins to read a file.
    pub(super) fn begin(file: File) -> Result<Self, Bad> {
        let mut file = BufReader::with_capacity(1 << 18, file);
        let mut head = [0; HEAD];
        let bad = |what: String| Bad { offset: 0, what };
        file.read_exact(&mut head).map_err(|error| bad(error.to_string()))?;
        let head = Head::decode(&head).ok_or_else(|| bad("its head is not whole".into()))?;
        let (block, packed) = (Vec::new(), Vec::new());
        let offset = HEAD as u64;
        Ok(Self { file, head, offset, block, packed, next: 0, record: None, records: 0 })
    }

    /// Advances to the next record; `false` after the last.
    pub(super) fn advance(&mut self) -> Result<bool, Bad> {
        while self.next == self.block.len() {
            if !self.read_block()? {
                self.record = None;
                return Ok(false);
            }
        }
        let rest = &self.block[self.next..];
        let Some(((key, Some(value)), behind)) = split(rest) else {
            return Err(self.bad("a record is not whole"));
        };
        let end = self.block.len() - behind.len();
        let value = end - value.len()..end;
        self.record = Some([value.start - key.len()..value.start, value]);
        self.next = end;
        self.records += 1;
        Ok(true)
    }

    /// The current record.
    pub(super) fn record(&self) -> Option<(&[u8], &[u8])> {
        let [key, value] = self.record.clone()?;
        Some((&self.block[key], &self.block[value]))
    }

    fn bad(&self, what: &str) -> Bad {
        Bad { offset: self.offset, what: what.to_owned() }
    }

    /// Reads the next block; `false` where the snapshot ends.
    fn read_block(&mut self) -> Result<bool, Bad> {
        let offset = self.offset;
        let failed = |error: io::Error| Bad { offset, what: error.to_string() };
        let mut head = [0; BLOCK_HEAD];
        self.file.read_exact(&mut head).map_err(failed)?;
        let field = |at: usize| {
            let bytes = head[at..].first_chunk().expect("three fields");
            u32::from_le_bytes(*bytes)
        };
        let len = usize::try_from(field(8)).ok().filter(|&len| len <= BLOCK_BYTES_MAX);
        let most = lz4_flex::block::get_maximum_output_size(BLOCK_BYTES_MAX);
        let packed = usize::try_from(field(4)).ok().filter(|&packed| packed <= most);
        let (Some(len), Some(packed)) = (len, packed) else {
            return Err(self.bad("a block is longer than any"));
        };
        let is_end = (packed, len) == (0, 0);
        let packed = if is_end { 8 } else { packed };
        self.packed.clear();
        self.packed.extend_from_slice(&head[4..]);
        self.packed.resize(head.len() - 4 + packed, 0);
        self.file.read_exact(&mut self.packed[BLOCK_HEAD - 4..]).map_err(failed)?;
        if sum(&self.packed, self.head.generation) != field(0) {
            return Err(self.bad("a block does not match its checksum"));
        }
        let content = &self.packed[BLOCK_HEAD - 4..];
        if is_end {
            let all = content == self.records.to_le_bytes();
            return if all { Ok(false) } else { Err(self.bad("records are missing")) };
        }
        self.block.resize(len, 0);
        let unpacked = lz4_flex::block::decompress_into(content, &mut self.block);
        if unpacked.ok() != Some(len) || len == 0 {
            return Err(self.bad("a block cannot be unpacked"));
        }
        self.offset += (BLOCK_HEAD + packed) as u64;
        self.next = 0;
        Ok(true)
    }
}
