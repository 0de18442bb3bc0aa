//! The records of a cache as a log of our own: batches appended to files, and now and then a snapshot
//! of all records, which replaces the files before it.
//!
//! Only what is being written is held in memory: the tables above have all records, and a snapshot is made from the
//! last one and the files since. Locks are taken in the order rewriting, syncing, tail.
//!
//! What must hold here:
//! - a batch is in a file, as a whole, before `commit` returns: it survives `kill -9` (I4);
//! - a snapshot gets its name when it is complete and durable; what it replaces is removed after that;
//! - every byte is counted before it is on disk (I5);
//! - after a failed write nothing is accepted any more: memory never runs ahead of the log.

mod background;
mod files;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod log_file;
mod merge;
mod recover;
mod salvage;
mod snapshot;
mod sync_point;
mod tail;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::batch::Batch;
use super::records::{self, RecordStore, Visit};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

use background::{Background, Bell};
use files::{FRESH, keep_spare, log_name, make, snapshot_name, write_snapshot};
pub(super) use files::{is_in, is_name, write_first};
use log_file::{HEAD, LogFile};
use recover::Recovered;
pub(super) use salvage::salvage;
use snapshot::Head;
use sync_point::Synced;
use tail::{Sealed, Tail};

/// A file of the log takes one part in this many of the bytes set aside for records.
const SEGMENT_SHARE: u64 = 8;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 20;
/// A snapshot replaces the files of a log once they take one part in this many of the bytes set aside, or half of what
/// the last snapshot took, and at most [`LOG_BYTES_MAX`]: they are read into memory for that, and when the log is
/// opened.
const LOG_SHARE: u64 = 4;
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Changes wait for a snapshot once the files take this many times their limit.
const WAIT_TIMES: u64 = 2;
/// Each opening may leave a short file.
const FILES_MAX: usize = 64;
/// Bytes that a file system may use for each of these few files beyond its contents.
const SLACK_BYTES: u64 = 16 << 10;
const PAGE: usize = 4096;

const REMEDY: &str = "its dirty data goes to the origin: unmount, check the device under it (space, \
                      health), then mount again";

/// The sizes to which files grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Bytes of a file of the log.
    pub(crate) segment_bytes: u64,
    /// Bytes of all log files from which on a snapshot replaces them, where the last snapshot is small.
    pub(crate) log_bytes: u64,
}

impl Pace {
    /// The pace where `set_aside` bytes are meant for records.
    pub(crate) fn of(set_aside: u64) -> Self {
        let share = set_aside / SEGMENT_SHARE / PAGE as u64 * PAGE as u64;
        Self {
            segment_bytes: share.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
            log_bytes: (set_aside / LOG_SHARE).clamp(2 * SEGMENT_BYTES_MIN, LOG_BYTES_MAX),
        }
    }

    /// A pace at which short test runs reach snapshots.
    pub(crate) fn of_log(log_bytes: u64) -> Self {
        Self { segment_bytes: (log_bytes / 2).clamp(PAGE as u64, 512 << 10), log_bytes }
    }
}

/// A log, with the thread that keeps it small.
#[derive(Debug)]
pub(crate) struct Log {
    // Field order is drop order.
    _background: Background,
    shared: Arc<Shared>,
}

struct Shared {
    dir: PrivateDir,
    pace: Pace,
    /// Held while files are read and replaced.
    rewriting: Mutex<()>,
    /// Held while files are synced.
    syncing: Mutex<()>,
    /// The last batch that is durable, as far as is known.
    durable: AtomicU64,
    synced: Synced,
    tail: Mutex<Tail>,
    /// Notified when there is room, or no thread is left to make it.
    changed: Condvar,
    failed: OnceLock<String>,
    bytes: AtomicU64,
    bell: Bell,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.dir.path())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Log {
    /// Makes an empty log in a new directory.
    pub(crate) fn fill(dir: &PrivateDir) -> Result<()> {
        write_first(dir, &mut |_| Ok(()))?;
        keep_spare(dir);
        Ok(())
    }

    /// Makes a directory with an empty log.
    #[cfg(test)]
    pub(crate) fn create(path: &std::path::Path) -> Result<()> {
        records::create(path, Self::fill)
    }

    /// Opens the log in `dir`. `torn` says that a power loss may have dropped anything that was not synced.
    pub(crate) fn open(dir: PrivateDir, torn: bool, pace: Pace) -> Result<Self> {
        Self::open_with(dir, torn, pace, Shared::background_work)
    }

    /// The same with other work for the background thread.
    fn open_with(dir: PrivateDir, torn: bool, pace: Pace, keep: fn(&Shared)) -> Result<Self> {
        let mut found = recover::recover(&dir, torn)?;
        let segment = if let Some(segment) = go_on(&mut found, pace) {
            segment
        } else {
            let number = found.files.last().map_or(found.snapshot.number, |last| last.0.number);
            found.before = found.batch;
            make(&dir, number + 1, found.snapshot.generation, pace.segment_bytes)?
        };
        keep_spare(&dir);
        let (sealed, unsynced): (Vec<_>, Vec<_>) = found.files.into_iter().unzip();
        let tail = Tail {
            segment,
            next: None,
            is_announced: false,
            making: None,
            sealed,
            unsynced,
            batch: found.batch,
            before: found.before,
            snapshot: found.snapshot,
            snapshot_bytes: found.snapshot_bytes,
            dying: 0,
            retry_at_bytes: 0,
            alone: false,
        };
        let synced = Synced::open(&dir, found.snapshot.generation);
        let shared = Arc::new(Shared {
            dir,
            pace,
            rewriting: Mutex::default(),
            syncing: Mutex::default(),
            durable: AtomicU64::new(found.snapshot.batch),
            synced,
            bytes: AtomicU64::new(tail.count()),
            tail: Mutex::new(tail),
            changed: Condvar::new(),
            failed: OnceLock::new(),
            bell: Bell::default(),
        });
        Ok(Self { _background: Background::start(&shared, keep), shared })
    }
}

impl Shared {
    fn commit(&self, batch: &Batch) -> Result<()> {
        let mut tail = self.tail.lock();
        self.append(&mut tail, batch)
    }

    fn append(&self, tail: &mut MutexGuard<'_, Tail>, batch: &Batch) -> Result<()> {
        self.check()?;
        // For example when something that is not cached is renamed.
        if batch.is_empty() {
            return Ok(());
        }
        let size = log_file::size_of(batch.bytes().len());
        while tail.segment.room() < size {
            self.make_room(tail, size)?;
        }
        let number = tail.batch + 1;
        let durable = self.durable.load(Relaxed);
        let appended = tail.segment.append(number, durable, batch.bytes());
        appended.map_err(|error| self.fail(&error))?;
        tail.batch = number;
        // Once a third of the file is used: the rest leaves time to make the next one.
        if !tail.is_announced && tail.segment.room() < tail.segment.bytes() / 3 * 2 {
            tail.is_announced = true;
            self.bell.ring();
        }
        Ok(())
    }

    /// Goes on in a new file; waits where another thread is making one, or where a snapshot is overdue.
    fn make_room(&self, tail: &mut MutexGuard<'_, Tail>, size: usize) -> Result<()> {
        let overdue = tail.log_bytes() >= WAIT_TIMES * tail.log_bytes_max(self.pace)
            && tail.log_bytes() >= tail.retry_at_bytes
            && !tail.alone;
        if overdue || tail.making.is_some() {
            self.bell.ring();
            self.changed.wait(tail);
            return self.check();
        }
        if tail.next.is_none() {
            let least = (size + HEAD).next_multiple_of(PAGE) as u64;
            let bytes = least.max(self.pace.segment_bytes);
            tail.making = Some(bytes);
            self.recount(tail);
            let (number, generation) = (tail.segment.number() + 1, tail.snapshot.generation);
            let made = make(&self.dir, number, generation, bytes);
            tail.making = None;
            match made {
                Ok(segment) => tail.next = Some(segment),
                // A file system without free inodes may have free blocks.
                Err(error) if !error.is_full() => return Err(self.fail(&error)),
                Err(error) => {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    tail.segment.grow(bytes).map_err(|_| self.fail(&error))?;
                }
            }
        }
        tail.go_on();
        self.recount(tail);
        self.bell.ring();
        Ok(())
    }

    /// The work of the background thread.
    fn background_work(&self) {
        self.make_next_file();
        self.keep_small();
    }

    /// Makes the next file before it is needed.
    fn make_next_file(&self) {
        let mut tail = self.tail.lock();
        if tail.next.is_some() || tail.making.is_some() || self.check().is_err() {
            return;
        }
        tail.making = Some(self.pace.segment_bytes);
        self.recount(&tail);
        let (number, generation) = (tail.segment.number() + 1, tail.snapshot.generation);
        drop(tail);
        let made = make(&self.dir, number, generation, self.pace.segment_bytes);
        keep_spare(&self.dir);
        let mut tail = self.tail.lock();
        tail.making = None;
        match made {
            Ok(segment) => tail.next = Some(segment),
            // The thread that needs the file tries again, and reports the error.
            Err(error) => tracing::warn!(%error, "no new file of the log could be made"),
        }
        self.recount(&tail);
        self.changed.notify_all();
    }

    /// Writes a snapshot where the files have grown too large.
    fn keep_small(&self) {
        let grown = {
            let tail = self.tail.lock();
            let bytes = tail.log_bytes();
            bytes >= tail.log_bytes_max(self.pace).max(tail.retry_at_bytes)
                || tail.sealed.len() >= FILES_MAX
        };
        if !grown || self.check().is_err() {
            return;
        }
        match self.rewrite() {
            Ok(()) => self.tail.lock().retry_at_bytes = 0,
            // The files differ from what was written: the next opening would refuse all of them.
            Err(error @ Error::Store { .. }) => drop(self.fail(&error)),
            Err(error) => {
                tracing::warn!(%error, "no snapshot of the records could be written");
                let mut tail = self.tail.lock();
                tail.retry_at_bytes = tail.log_bytes() + tail.log_bytes_max(self.pace);
            }
        }
        self.changed.notify_all();
    }

    /// Replaces the snapshot and the files since, except for what is committed meanwhile, by a new snapshot.
    fn rewrite(&self) -> Result<()> {
        let _alone = self.rewriting.lock();
        self.make_next_file();
        let (files, before, after) = {
            let mut tail = self.tail.lock();
            if tail.segment.end() > HEAD {
                tail.go_on();
                self.recount(&tail);
            }
            let Some(last) = tail.sealed.last() else { return Ok(()) };
            let (number, files) = (last.number, tail.sealed.clone());
            // The snapshot excludes what lies in the file that is being written now.
            (files, tail.snapshot, Head { number, batch: tail.before, ..tail.snapshot })
        };
        let bytes = write_snapshot(&self.dir, after, &mut |writer| {
            let path = self.dir.path().join(FRESH);
            merge::merge(&self.dir, before, &files, &mut |key, value| {
                writer.put(key, value).map_err(Error::at(&path, "write"))
            })
        })?;
        let mut tail = self.tail.lock();
        tail.sealed.retain(|file| file.number > after.number);
        tail.dying = files.iter().map(|file| file.bytes).sum::<u64>() + tail.snapshot_bytes;
        (tail.snapshot, tail.snapshot_bytes) = (after, bytes);
        drop(tail);
        self.durable.fetch_max(after.batch, Relaxed);
        self.dir.remove(snapshot_name(before.number))?;
        files.iter().try_for_each(|file| self.dir.remove(log_name(file.number)))?;
        let mut tail = self.tail.lock();
        tail.dying = 0;
        self.recount(&tail);
        Ok(())
    }

    /// Wakes the threads that wait. They ring before they wait, and hold the lock in between.
    fn wake_waiters(&self) {
        let _tail = self.tail.lock();
        self.changed.notify_all();
    }

    /// The background thread has ended: no thread is left to make room.
    fn background_ended(&self) {
        self.tail.lock().alone = true;
        self.changed.notify_all();
    }

    fn scan(&self, each: Visit<'_>) -> Result<()> {
        let _alone = self.rewriting.lock();
        let (files, snapshot) = {
            let tail = self.tail.lock();
            let (number, end) = (tail.segment.number(), tail.segment.end());
            let written = Sealed { number, end, bytes: 0 };
            (tail.sealed.iter().copied().chain([written]).collect::<Vec<_>>(), tail.snapshot)
        };
        merge::merge(&self.dir, snapshot, &files, each)
    }

    fn sync(&self) -> Result<()> {
        self.check()?;
        let wanted = self.tail.lock().batch;
        let _turn = self.syncing.lock();
        self.check()?;
        // Another thread's sync, which began after the last of these batches, made them durable.
        if self.durable.load(Relaxed) >= wanted { Ok(()) } else { self.sync_files() }
    }

    /// Syncs what was committed. The caller holds `syncing`.
    fn sync_files(&self) -> Result<()> {
        let (files, batch) = {
            let mut tail = self.tail.lock();
            let mut files = std::mem::take(&mut tail.unsynced);
            files.push(Arc::clone(tail.segment.file()));
            (files, tail.batch)
        };
        for file in files {
            file.sync_data().map_err(|error| self.fail(&error))?;
        }
        self.durable.fetch_max(batch, Relaxed);
        self.synced.set(batch);
        Ok(())
    }

    fn close(&self, last: &Batch) -> Result<()> {
        {
            let mut tail = self.tail.lock();
            self.append(&mut tail, last)?;
            // Under the lock: no other change follows the last one.
            self.failed.get_or_init(|| "it was closed".to_owned());
        }
        self.changed.notify_all();
        let _turn = self.syncing.lock();
        self.sync_files()?;
        self.trim();
        Ok(())
    }

    /// Frees the space that a closed log does not use. A file that cannot be cut is only longer than needed.
    fn trim(&self) {
        let mut tail = self.tail.lock();
        let end = tail.segment.end() as u64;
        let _ = tail.segment.file().set_len(end);
        if let Some(next) = tail.next.take() {
            let _ = self.dir.remove(log_name(next.number()));
        }
    }

    /// Counts the bytes that are on disk, or about to be.
    fn recount(&self, tail: &Tail) {
        self.bytes.store(tail.count(), Relaxed);
    }

    fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |what| Err(self.failure(what)))
    }

    fn fail(&self, error: &dyn fmt::Display) -> Error {
        let what = self.failed.get_or_init(|| format!("a write failed: {error}"));
        self.changed.notify_all();
        self.failure(what)
    }

    fn failure(&self, what: &str) -> Error {
        let path = self.dir.path().to_owned();
        Error::Store { path, what: what.to_owned(), remedy: REMEDY.to_owned() }
    }
}

impl RecordStore for Log {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.shared.scan(each)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.shared.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.shared.close(last)
    }

    fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }

    fn usable(&self) -> Result<()> {
        self.shared.check()
    }
}

/// Goes on in the last file that was found, where there is room: this takes no inode.
fn go_on(found: &mut Recovered, pace: Pace) -> Option<LogFile> {
    let bytes = usize::try_from(pace.segment_bytes).ok()?;
    let (last, file) = found.files.pop_if(|(last, _)| last.end <= bytes / 2)?;
    let number = (last.number, found.snapshot.generation);
    match LogFile::go_on(Arc::clone(&file), number, last.end, bytes) {
        Ok(segment) => Some(segment),
        Err(error) => {
            tracing::debug!(%error, "the last file of the log does not grow");
            found.files.push((last, file));
            None
        }
    }
}

fn damaged(dir: &PrivateDir, what: &str) -> Error {
    records::damaged(dir.path(), what)
}
