//! The durable side: one keyspace of an embedded log-structured store, and a ring of changes ahead
//! of it.
//!
//! A small change goes to the ring ([`Ring`]), from where the store gets many as one batch: at half
//! the price, and beside the requests. Locks are taken in the order turn, ahead, store.
//!
//! What must hold here:
//! - a committed change was handed to the operating system: it survives `kill -9` (I4);
//! - a change is one batch: it is there as a whole or not at all, and recovery is a prefix;
//! - the store gets changes in the order of their numbers, however they come to it;
//! - after a failed write nothing is accepted any more: memory never runs ahead of the store;
//! - a store that is opened anew in between ([`Journal::keep_small`]) is, at every step, one that a
//!   killed process could have left.

mod store;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use fjall::PersistMode;
use parking_lot::{Mutex, RwLock};

use super::batch::{Batch, Change};
use super::footprint::{CHANGE_OVERHEAD, Footprint};
use super::record;
use super::records::{self, RecordStore, Visit};
use super::ring::{self, Ring};
use super::upkeep::{Bell, Pace};
use super::verify::{journals, verify};
use crate::error::{Error, Result};

use store::{Store, begin_journal, build};

/// Name of the ring in the store's directory.
const RING: &str = "ring";
/// Time that the store may take to make tables before its journal is begun anew without them.
const TABLES_WITHIN: Duration = Duration::from_secs(2);
const REMEDY: &str = "its dirty data goes to the origin: unmount, check the device under it (space, \
                      health), then mount again";

/// An open store.
pub(crate) struct Journal {
    path: PathBuf,
    memtable_bytes: u64,
    /// Read by whoever uses the store; written while it is opened anew ([`Journal::keep_small`]).
    store: RwLock<Option<Store>>,
    /// Held while the store gets what is ahead of it.
    turn: Mutex<()>,
    /// What was committed and is not in the store yet.
    ahead: Mutex<Ring>,
    failed: OnceLock<String>,
    /// A batch that failed may still lie in the store's buffer.
    leftover: AtomicBool,
    footprint: Arc<Footprint>,
    pace: Pace,
    bell: Arc<Bell>,
}

impl Drop for Journal {
    /// What was refused must not become true: a store that is dropped writes its buffer out, with
    /// the end of the batch that failed, if its disk works again by then. Such a store is never
    /// dropped; its lock goes with the process.
    fn drop(&mut self) {
        if self.leftover.load(Relaxed) {
            std::mem::forget(self.store.get_mut().take());
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("path", &self.path)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Bytes that a batch takes in the journal.
fn size_of(batch: &Batch) -> u64 {
    let size = |(key, value): Change<'_>| key.len() + value.map_or(0, <[u8]>::len);
    batch.iter().map(|change| size(change) as u64 + CHANGE_OVERHEAD).sum()
}

impl Journal {
    /// Makes an empty store in `path`, which does not exist, or is left as it was.
    pub(crate) fn create(path: &Path, memtable_bytes: u64) -> Result<()> {
        let fresh = path.with_extension("new");
        // What a crash left here was never used.
        match fs::remove_dir_all(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::at(&fresh, "remove the half-made store")(error));
            }
            _ => {}
        }
        drop(build(&fresh, memtable_bytes).map_err(|error| Error::Store {
            path: path.to_owned(),
            what: format!("it cannot be made: {error}"),
            remedy: "check that the directory is writable and its device has space".to_owned(),
        })?);
        ring::create(&fresh.join(RING)).map_err(Error::at(&fresh, "make the ring of the store"))?;
        fs::rename(&fresh, path).map_err(Error::at(path, "make the store"))?;
        let parent = path.parent().unwrap_or(path);
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(Error::at(parent, "sync the cache directory"))
    }

    /// Opens the store in `path`. A damaged store is an error, never a panic. `torn` says that a
    /// power loss may have left any part of the journal unwritten.
    /// What the store takes on disk is kept within `set_aside` bytes as far as its records allow.
    pub(crate) fn open(
        path: &Path,
        memtable_bytes: u64,
        torn: bool,
        set_aside: u64,
    ) -> Result<Self> {
        verify(path, torn).map_err(|what| records::damaged(path, &what))?;
        let store = catch_unwind(AssertUnwindSafe(|| build(path, memtable_bytes)))
            .map_err(|_| records::damaged(path, "beyond what the store can read"))?
            .map_err(|error| records::damaged(path, &format!("it cannot be opened: {error}")))?;
        let ring = open_ring(path, &store, torn)?;
        let journal = Self {
            path: path.to_owned(),
            memtable_bytes,
            store: RwLock::new(Some(store)),
            turn: Mutex::default(),
            ahead: Mutex::new(ring),
            failed: OnceLock::new(),
            leftover: AtomicBool::new(false),
            footprint: Arc::default(),
            pace: Pace::of(set_aside),
            bell: Arc::default(),
        };
        let last = journals(path).ok().and_then(|journals| journals.last()?.metadata().ok());
        journal.footprint.begin_journal(last.map_or(0, |last| last.blocks() * 512));
        journal.measure();
        journal.catch_up()?;
        if torn {
            let wiped = journal.ahead.lock().wipe();
            wiped.map_err(Error::at(path.join(RING), "wipe"))?;
        }
        Ok(journal)
    }

    /// Makes a change.
    fn change(&self, batch: &Batch) -> Result<()> {
        self.check()?;
        // The rename of what is not cached, for one.
        if batch.is_empty() {
            return Ok(());
        }
        let due = if batch.bytes().len() <= ring::BATCH_MAX {
            self.change_ahead(batch)?
        } else {
            self.change_at_once(batch)?;
            false
        };
        if self.footprint.appended(size_of(batch), self.pace.measure_bytes) || due {
            self.bell.ring();
        }
        Ok(())
    }

    /// Makes a small change in the ring; returns whether the store should get what is there.
    fn change_ahead(&self, batch: &Batch) -> Result<bool> {
        let mut ahead = self.ahead.lock();
        while ahead.is_full() {
            drop(ahead);
            self.catch_up()?;
            ahead = self.ahead.lock();
        }
        // Looked at under the lock: behind a change that failed its number would be a gap.
        self.check()?;
        ahead.append(batch).map_err(|error| self.fail(&error))?;
        Ok(ahead.ends_a_quarter())
    }

    /// Makes a change in the store, behind all that is ahead. Others wait, or a kill could leave
    /// their changes without this one.
    fn change_at_once(&self, batch: &Batch) -> Result<()> {
        let _turn = self.turn.lock();
        self.change_behind(&mut self.ahead.lock(), batch)
    }

    /// The same for who has the turn.
    fn change_behind(&self, ahead: &mut Ring, batch: &Batch) -> Result<()> {
        self.check()?;
        let (batch, number) = ahead.take_with(batch);
        self.hand_over(&batch, number)?;
        ahead.keep(number);
        Ok(())
    }

    /// Has the store get what is ahead of it. Changes go on.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let _turn = self.turn.lock();
        self.check()?;
        let Some((batch, number)) = self.ahead.lock().take() else { return Ok(()) };
        self.hand_over(&batch, number)?;
        self.ahead.lock().keep(number);
        Ok(())
    }

    /// Gives the store all changes up to `number` that it does not have, as one batch.
    fn hand_over(&self, batch: &Batch, number: u64) -> Result<()> {
        let store = self.store.read();
        let store = self.opened(store.as_ref())?;
        let changes = batch.by_key();
        let mut batch = store.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&store.keyspace, key, value),
                None => batch.remove(&store.keyspace, key),
            }
        }
        batch.insert(&store.keyspace, record::RING_KEY, record::encode_counter(number));
        batch.commit().map_err(|error| self.fail(&error))
    }

    /// The store; without one, why there is none.
    fn opened<'a>(&self, store: Option<&'a Store>) -> Result<&'a Store> {
        store
            .ok_or_else(|| self.failure(self.failed.get().map_or("it is not open", String::as_str)))
    }

    /// Reads from the store. Its library may panic on bytes that it did not write; we must not.
    fn guarded<T>(&self, read: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(read))
            .map_err(|_| records::damaged(&self.path, "it cannot be read"))?
            .map_err(|error| records::damaged(&self.path, &error.to_string()))
    }

    fn persist(&self) -> Result<()> {
        let store = self.store.read();
        let persisted = self.opened(store.as_ref())?.database.persist(PersistMode::SyncAll);
        persisted.map_err(|error| self.fail(&error))
    }

    /// Begins a new journal where this one is large for the cache; returns whether it did. The
    /// store has no call for that, but what it finds at an opening: every journal but the last is
    /// made into tables and removed. Changes wait for it, a tenth of a second and more.
    pub(crate) fn keep_small(&self) -> bool {
        // A store that refused a change is let be: what it does for its tables writes its buffer out.
        if self.check().is_err() || self.footprint.journal() < self.pace.journal_bytes_max {
            return false;
        }
        self.make_tables();
        let (bytes, begun_at) = (self.footprint.journal(), Instant::now());
        let mut store = self.store.write();
        if self.check().is_err() {
            return false;
        }
        let Some(open) = store.take() else { return false };
        // All of it must be on disk before a journal follows it, as where the store does the same.
        if let Err(error) = open.database.persist(PersistMode::SyncAll) {
            self.fail(&error);
            *store = Some(open);
            return false;
        }
        drop(open);
        // Without a new journal the store goes on with the old one.
        let begun = begin_journal(&self.path);
        if let Err(error) = &begun {
            tracing::warn!(%error, "no new journal could be begun");
        }
        let reopened = catch_unwind(AssertUnwindSafe(|| build(&self.path, self.memtable_bytes)));
        match reopened {
            Ok(Ok(open)) => *store = Some(open),
            Ok(Err(error)) => drop(self.fail(&error)),
            Err(_) => {
                self.failed.get_or_init(|| "it could not be opened again".to_owned());
            }
        }
        drop(store);
        tracing::debug!(bytes, elapsed = ?begun_at.elapsed(), "the store began a new journal");
        // Where no journal could be begun, the next try comes after as many changes again.
        self.footprint.begin_journal(0);
        begun.is_ok()
    }

    /// Has the store make tables of what is in the journal, while changes go on: what is in tables
    /// is passed over when the journal is read again.
    fn make_tables(&self) {
        let store = self.store.read();
        let Some(open) = store.as_ref() else { return };
        // Only time is lost where it fails; a store that is broken fails the next change.
        let Ok(true) = open.keyspace.rotate_memtable() else { return };
        let patience = Instant::now() + TABLES_WITHIN;
        while open.keyspace.sealed_memtable_count() > 0 && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether so much was appended that the store should be measured.
    pub(crate) fn has_grown(&self) -> bool {
        self.footprint.has_grown(self.pace.measure_bytes)
    }

    /// Measures what the store takes on disk.
    pub(crate) fn measure(&self) {
        self.footprint.measure(&self.path);
    }

    /// Rung when there is something to measure.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Fails once a write failed: from then on memory and store could disagree.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |what| Err(self.failure(what)))
    }

    fn fail(&self, error: &dyn fmt::Display) -> Error {
        self.leftover.store(true, Relaxed);
        self.failure(self.failed.get_or_init(|| format!("a write failed: {error}")))
    }

    fn failure(&self, what: &str) -> Error {
        Error::Store { path: self.path.clone(), what: what.to_owned(), remedy: REMEDY.to_owned() }
    }
}

impl RecordStore for Journal {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.catch_up()?;
        let store = self.store.read();
        let store = self.opened(store.as_ref())?;
        let mut found = self.guarded(|| Ok(store.keyspace.iter()))?;
        while let Some((key, value)) =
            self.guarded(|| found.next().map(fjall::Guard::into_inner).transpose())?
        {
            if *key != *record::RING_KEY {
                each(&key, &value)?;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.change(batch)
    }

    fn sync(&self) -> Result<()> {
        self.catch_up()?;
        self.persist()
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.catch_up()?;
        // Held to the end: a change that others make meanwhile would be in the ring alone.
        let (_turn, mut ahead) = (self.turn.lock(), self.ahead.lock());
        self.change_behind(&mut ahead, last)?;
        self.persist()?;
        self.failed.get_or_init(|| "it was closed".to_owned());
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.footprint.bytes()
    }

    fn usable(&self) -> Result<()> {
        self.check()
    }
}

/// Opens the ring of the store in `path`, or makes one where a power loss, or a time before there
/// were rings, left none.
fn open_ring(path: &Path, store: &Store, torn: bool) -> Result<Ring> {
    let damaged = |what: &str| records::damaged(path, what);
    let counter = store.keyspace.get(record::RING_KEY);
    let counter = counter.map_err(|error| damaged(&error.to_string()))?;
    let kept = counter
        .as_ref()
        .map_or(Ok(0), |value| record::decode_counter_within(value, record::COUNTER_MAX));
    let kept = kept.map_err(|bad| damaged(bad.0))?;
    let ring = path.join(RING);
    let mut opened = Ring::open(&ring, kept);
    if opened.is_err() && (torn || counter.is_none()) {
        opened = ring::create(&ring).and_then(|()| Ring::open(&ring, kept));
    }
    let mut opened = opened.map_err(Error::at(&ring, "open"))?;
    match opened.recover(torn).map_err(Error::at(&ring, "read"))? {
        Ok(()) => Ok(opened),
        Err(ring::Gap) => Err(damaged("changes that it was to get are not in its ring")),
    }
}
