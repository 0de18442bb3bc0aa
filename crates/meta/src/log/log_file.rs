//! A file of the log: batches one after the other, written through a mapping.
//!
//! A store to a mapped page needs no system call and survives a kill; the file is allocated before it is used, so that
//! no store lacks space. What must hold here:
//! - batches have numbers, each one more than the one before, over all files of a log;
//! - an incomplete batch counts as missing: the sum of a batch covers its length, its number, and its bytes up to a
//!   last one that is not zero, so a lost page is noticed even where it had only zeros;
//! - an unacknowledged batch is the last one, unless power was lost;
//! - a batch says how many up to and including itself were not synced when it was written: a power loss cannot have
//!   taken what is missing before these.
//!
//! A file, integers little-endian, sums CRC-32C combined with the log's generation:
//!
//! ```text
//! head     "hclog-01" number:8 generation:8 sum:4, and zeros up to 64 bytes
//! batch    sum:4 length:4 number:8 unsynced:4, the changes (`batch.rs`), 229:1, up to 7 bytes of padding
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crc_fast::crc32_iscsi;
use rustix::fs::{FallocateFlags, fallocate};

use crate::mapped_file::Mapping;

/// Bytes before the first batch.
pub(super) const HEAD: usize = 64;
const MAGIC: &[u8; 8] = b"hclog-01";
/// Bytes of a batch before its changes.
const FRAME: usize = 20;
const END: u8 = 229;
/// Batches begin at multiples of this.
const ALIGN: usize = 8;

/// Highest number of files and batches: there is always a next one, whatever numbers a file claims.
pub(super) const NUMBER_MAX: u64 = 1 << 62;
/// The longest file of a log.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

/// Bytes that a batch of `len` bytes takes in a file.
pub(super) fn size_of(len: usize) -> usize {
    (FRAME + len + 1).next_multiple_of(ALIGN)
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct LogFile {
    number: u64,
    generation: u64,
    file: Arc<File>,
    /// `None` where the file system cannot map a file for writing: batches are then written with system calls.
    mapping: Option<Mapping>,
    bytes: usize,
    end: usize,
    /// Buffer in which a batch is assembled.
    frame: Vec<u8>,
}

impl LogFile {
    /// Allocates `bytes` bytes for the empty file `number` of a log, durably.
    pub(super) fn make(file: File, number: u64, generation: u64, bytes: usize) -> io::Result<Self> {
        allocate(&file, 0, bytes)?;
        file.write_all_at(&head(number, generation), 0)?;
        file.sync_all()?;
        let mapping = Mapping::new(&file, bytes).ok();
        let (file, frame) = (Arc::new(file), Vec::new());
        Ok(Self { number, generation, file, mapping, bytes, end: HEAD, frame })
    }

    /// Continues file `number` of a log at `end`, where its batches end, as a file of `bytes` bytes.
    pub(super) fn go_on(
        file: Arc<File>,
        (number, generation): (u64, u64),
        end: usize,
        bytes: usize,
    ) -> io::Result<Self> {
        let frame = Vec::new();
        let mut segment = Self { number, generation, file, mapping: None, bytes: end, end, frame };
        segment.grow(bytes - end)?;
        segment.mapping = Mapping::new(&segment.file, bytes).ok();
        Ok(segment)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes in use.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Bytes that may still be written.
    pub(super) fn room(&self) -> usize {
        self.bytes - self.end
    }

    /// Adds batch `number`, for which there is room; batches up to `durable` are synced. After an error the batch is
    /// not there.
    pub(super) fn append(&mut self, number: u64, durable: u64, changes: &[u8]) -> io::Result<()> {
        assert!(size_of(changes.len()) <= self.room(), "a batch beyond the end of its file");
        self.frame.clear();
        self.frame.extend_from_slice(&[0; 4]);
        let len = u32::try_from(changes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.frame.extend_from_slice(&len.to_le_bytes());
        self.frame.extend_from_slice(&number.to_le_bytes());
        let unsynced = u32::try_from(number.saturating_sub(durable)).unwrap_or(u32::MAX);
        self.frame.extend_from_slice(&unsynced.to_le_bytes());
        self.frame.extend_from_slice(changes);
        self.frame.push(END);
        let sum = sum(&self.frame[4..], self.generation);
        self.frame[..4].copy_from_slice(&sum.to_le_bytes());
        match &mut self.mapping {
            Some(mapping) => mapping.store(self.end, &self.frame)?,
            None => self.file.write_all_at(&self.frame, self.end as u64)?,
        }
        self.end += size_of(changes.len());
        Ok(())
    }

    /// Extends the file by `more` bytes, durably.
    pub(super) fn grow(&mut self, more: usize) -> io::Result<()> {
        let bytes = self.bytes.checked_add(more).filter(|&bytes| bytes as u64 <= FILE_BYTES_MAX);
        let bytes = bytes.ok_or(io::ErrorKind::FileTooLarge)?;
        allocate(&self.file, self.bytes, bytes)?;
        self.file.sync_all()?;
        if self.mapping.is_some() {
            self.mapping = Mapping::new(&self.file, bytes).ok();
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Cuts the file where its batches end. Nothing can be added any more.
    pub(super) fn seal(mut self) -> (Arc<File>, usize) {
        // Before the file gets shorter: pages beyond its end must not be accessed.
        self.mapping = None;
        (self.file, self.end)
    }
}

/// Allocates bytes `from` to `to` of a file, which read as zero: nothing was written to them.
pub(super) fn allocate(file: &File, from: usize, to: usize) -> io::Result<()> {
    let (start, len) = (from as u64, (to - from) as u64);
    let allocated = fallocate(file, FallocateFlags::empty(), start, len);
    allocated.map_err(io::Error::from).or_else(|error| {
        let unknown = error.raw_os_error() == Some(libc::EOPNOTSUPP);
        if unknown { file.write_all_at(&vec![0; to - from], start) } else { Err(error) }
    })
}

fn head(number: u64, generation: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..24].copy_from_slice(&generation.to_le_bytes());
    let sum = sum(&head[..24], generation);
    head[24..28].copy_from_slice(&sum.to_le_bytes());
    head
}

/// The generation that a file of a log names.
pub(super) fn generation_of(file: &[u8]) -> Option<u64> {
    let generation = file.get(16..24)?.first_chunk()?;
    Some(u64::from_le_bytes(*generation))
}

/// A sum that matches nothing of another log.
pub(super) fn sum(bytes: &[u8], generation: u64) -> u32 {
    let (low, high) = (generation & u64::from(u32::MAX), generation >> 32);
    crc32_iscsi(bytes) ^ u32::try_from(low ^ high).expect("both have 32 bits")
}

/// Whether a file has the head of file `number` of a log.
pub(super) fn is_segment(file: &[u8], number: u64, generation: u64) -> bool {
    file.first_chunk::<HEAD>() == Some(&head(number, generation))
}

/// A batch in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Framed<'a> {
    pub(super) number: u64,
    /// The last batch that was synced when this one was written, or one before it.
    pub(super) durable: u64,
    pub(super) changes: &'a [u8],
    /// Where the next one begins.
    pub(super) end: usize,
}

/// The complete batch at `at` of a file, if there is one.
pub(super) fn batch_at(file: &[u8], at: usize, generation: u64) -> Option<Framed<'_>> {
    let bytes = file.get(at..)?;
    let (expected, bytes) = bytes.split_first_chunk::<4>()?;
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (unsynced, changes) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    let (&last, changes) = changes.get(..=len)?.split_last()?;
    let whole = last == END
        && sum(&bytes[..=(FRAME - 4 + len)], generation) == u32::from_le_bytes(*expected);
    let number = Some(u64::from_le_bytes(*number)).filter(|number| *number <= NUMBER_MAX)?;
    let durable = match u32::from_le_bytes(*unsynced) {
        u32::MAX => 0,
        unsynced => number.saturating_sub(u64::from(unsynced)),
    };
    whole.then_some(Framed { number, durable, changes, end: at + size_of(len) })
}

/// The position after `at` of a batch for which `is_meant` holds, if there is one.
pub(super) fn batch_behind(
    file: &[u8],
    at: usize,
    generation: u64,
    is_meant: impl Fn(&Framed<'_>) -> bool,
) -> Option<usize> {
    let places = (at.next_multiple_of(ALIGN)..file.len().saturating_sub(FRAME)).step_by(ALIGN);
    places
        .filter(|&at| file[at..at + FRAME] != [0; FRAME])
        .find(|&at| batch_at(file, at, generation).is_some_and(|found| is_meant(&found)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(dir: &std::path::Path) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).open(dir.join("log")).unwrap()
    }

    fn batches(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = HEAD;
        while let Some(batch) = batch_at(bytes, at, 7) {
            found.push((batch.number, batch.changes.to_vec()));
            at = batch.end;
        }
        found
    }

    fn changes(number: u64) -> Vec<u8> {
        vec![u8::try_from(number % 3).unwrap(); usize::try_from(number * 7 % 90).unwrap()]
    }

    /// Batches of many lengths, some with only zeros; returns the contents of the file.
    fn story(dir: &std::path::Path, is_mapped: bool) -> Vec<u8> {
        let mut segment = LogFile::make(file(dir), 3, 7, 16384).unwrap();
        assert!(segment.mapping.is_some(), "this file system maps files");
        if !is_mapped {
            segment.mapping = None;
        }
        for number in 1..=100 {
            segment.append(number, number / 2, &changes(number)).unwrap();
        }
        fs::read(dir.join("log")).unwrap()
    }

    #[test]
    fn i4_what_was_appended_is_in_the_file_mapped_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = story(dir.path(), true);
        assert!(is_segment(&bytes, 3, 7) && !is_segment(&bytes, 4, 7) && !is_segment(&bytes, 3, 8));
        let expected: Vec<_> = (1..=100).map(|number| (number, changes(number))).collect();
        assert_eq!(batches(&bytes), expected);
        assert!(story(dir.path(), false) == bytes, "the files differ");
        assert!(batch_at(&bytes, HEAD, 8).is_none(), "a batch of another log");
    }

    /// A cut at every byte, with and without zeros after it: the batches before it are found.
    #[test]
    fn a_file_cut_anywhere_has_the_batches_before_the_cut() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = story(dir.path(), true);
        let whole = batches(&bytes);
        for cut in HEAD..bytes.len() {
            let mut filled = bytes.clone();
            filled[cut..].fill(0);
            let found = batches(&filled);
            assert_eq!(found, whole[..found.len()], "cut at {cut}");
            assert_eq!(batches(&bytes[..cut]), found, "cut at {cut}");
            assert_eq!(batch_behind(&filled, cut, 7, |_| true), None, "cut at {cut}");
        }
    }

    /// A flipped bit in every byte: its batch is not found, and the one after it is.
    #[test]
    fn a_flipped_bit_makes_a_batch_none_and_is_told_from_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = story(dir.path(), true);
        let whole = batches(&bytes);
        let mut at = HEAD;
        for index in 0..whole.len() {
            let len = whole[index].1.len();
            for byte in at..=(at + FRAME + len) {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << (byte % 8);
                assert_eq!(batches(&flipped), whole[..index], "byte {byte}");
                let next = (index + 1 < whole.len()).then_some(at + size_of(len));
                let number = whole[index].0;
                let behind = batch_behind(&flipped, at, 7, |found| found.number >= number);
                assert_eq!(behind, next, "byte {byte}");
            }
            at += size_of(len);
        }
    }

    #[test]
    fn i4_a_file_that_grows_keeps_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        for is_mapped in [true, false] {
            let mut segment = LogFile::make(file(dir.path()), 3, 7, 4096).unwrap();
            if !is_mapped {
                segment.mapping = None;
            }
            for number in 1..=100 {
                if segment.room() < size_of(changes(number).len()) {
                    segment.grow(4096).unwrap();
                }
                segment.append(number, 0, &changes(number)).unwrap();
            }
            assert!(segment.bytes() > 4096 && segment.grow(1 << 30).is_err());
            let expected: Vec<_> = (1..=100).map(|number| (number, changes(number))).collect();
            assert_eq!(batches(&fs::read(dir.path().join("log")).unwrap()), expected);
        }
    }

    #[test]
    fn i4_a_batch_that_cannot_be_written_is_an_error_and_no_batch() {
        let dir = tempfile::tempdir().unwrap();
        let mut segment = LogFile::make(file(dir.path()), 3, 7, 16384).unwrap();
        segment.append(1, 0, &[0; 4000]).unwrap();
        // Its last bytes are zeros, on a lost page.
        segment.file.set_len(4096).unwrap();
        segment.append(2, 0, &[0; 100]).unwrap_err();
        segment.file.set_len(16384).unwrap();
        assert_eq!(batches(&fs::read(dir.path().join("log")).unwrap()), [(1, vec![0; 4000])]);
    }
}
