//! The end of a log: the file that takes batches, the files before it, and the bytes that they take on disk.

use std::fs::File;
use std::sync::Arc;

use super::files::SPARE_BYTES;
use super::log_file::LogFile;
use super::snapshot::Head;
use super::{LOG_BYTES_MAX, Pace, SLACK_BYTES};

/// A file that is no longer written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sealed {
    pub(super) number: u64,
    /// Bytes in use.
    pub(super) end: usize,
    /// Bytes on disk.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Tail {
    /// The file that takes batches.
    pub(super) segment: LogFile,
    /// The file that takes batches next, if it is made already.
    pub(super) next: Option<LogFile>,
    /// The background thread was told to make it.
    pub(super) is_announced: bool,
    /// Bytes of a file that is being made.
    pub(super) making: Option<u64>,
    pub(super) sealed: Vec<Sealed>,
    pub(super) unsynced: Vec<Arc<File>>,
    /// The number of the last batch, and of the last one before those in `segment`.
    pub(super) batch: u64,
    pub(super) before: u64,
    pub(super) snapshot: Head,
    pub(super) snapshot_bytes: u64,
    /// Bytes of files that a snapshot replaced, but which are still there.
    pub(super) dying: u64,
    /// Size of the files at which a snapshot is next tried, as the last try failed.
    pub(super) retry_at_bytes: u64,
    /// There is no background thread to make room.
    pub(super) alone: bool,
}

impl Tail {
    /// Bytes of the files that a snapshot replaces.
    pub(super) fn log_bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|file| file.bytes).sum();
        sealed + self.segment.bytes() as u64
    }

    /// Bytes on disk, now and while a snapshot is written: that is no longer than the last one and the files together.
    pub(super) fn count(&self) -> u64 {
        let next = self.next.as_ref().map_or(0, |next| next.bytes() as u64);
        2 * (self.log_bytes() + self.snapshot_bytes)
            + next
            + self.making.unwrap_or(0)
            + self.dying
            + SPARE_BYTES as u64
            + SLACK_BYTES
    }

    /// Bytes of files from which on a snapshot is worth writing.
    pub(super) fn log_bytes_max(&self, pace: Pace) -> u64 {
        (self.snapshot_bytes / 2).clamp(pace.log_bytes, LOG_BYTES_MAX.max(pace.log_bytes))
    }

    /// Goes on in the next file, if there is one.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        let full = std::mem::replace(&mut self.segment, next);
        let (number, bytes) = (full.number(), full.bytes() as u64);
        let (file, end) = full.seal();
        self.sealed.push(Sealed { number, end, bytes });
        self.unsynced.push(file);
        self.before = self.batch;
        self.is_announced = false;
        true
    }
}
