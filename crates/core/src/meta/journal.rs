//! The durable side: one keyspace of an embedded log-structured store.
//!
//! What must hold here:
//! - a committed change was handed to the operating system: it survives `kill -9` (I4);
//! - a change is one batch: it is there as a whole or not at all, and recovery is a prefix;
//! - after a failed write nothing is accepted any more: memory never runs ahead of the store.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::record;
use super::verify::verify;
use crate::error::{Error, Result};

/// Journals are recycled once they reach this size together.
const JOURNALS_BYTES_MAX: u64 = 256 << 20;
/// Blocks of the store are only read while it is opened, so a small cache is enough.
const BLOCK_CACHE_BYTES: u64 = 8 << 20;
/// Blocks are read in order, so large ones cost nothing and compress better.
const BLOCK_BYTES: u32 = 16 << 10;
const REMEDY: &str = "its dirty data goes to the origin: unmount, check the device under it (space, \
                      health), then mount again";
const OPEN_REMEDY: &str = "restore the directory from a copy, or move it \
                           away and mount with an empty cache (dirty data in it is then lost)";

/// An open store.
pub(crate) struct Journal {
    path: PathBuf,
    database: Database,
    keyspace: Keyspace,
    failed: OnceLock<String>,
    /// A batch that failed may still lie in the store's buffer.
    leftover: AtomicBool,
}

impl Drop for Journal {
    /// What was refused must not become true: a store that is dropped writes its buffer out, with
    /// the end of the batch that failed, if its disk works again by then. Such a store is never
    /// dropped; its lock goes with the process.
    fn drop(&mut self) {
        if self.leftover.load(Relaxed) {
            std::mem::forget((self.database.clone(), self.keyspace.clone()));
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

/// Changes that become one batch.
pub(crate) struct Changes<'a> {
    journal: &'a Journal,
    batch: fjall::OwnedWriteBatch,
}

impl fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("len", &self.batch.len()).finish()
    }
}

impl Changes<'_> {
    /// Writes a record.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.insert(&self.journal.keyspace, key, value);
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.batch.remove(&self.journal.keyspace, key);
    }

    /// Hands the batch to the operating system.
    pub(crate) fn commit(self) -> Result<()> {
        self.journal.check()?;
        let Self { journal, batch } = self;
        batch.commit().map_err(|error| journal.fail(&error))
    }
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
        fs::rename(&fresh, path).map_err(Error::at(path, "make the store"))?;
        let parent = path.parent().unwrap_or(path);
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(Error::at(parent, "sync the cache directory"))
    }

    /// Opens the store in `path`. A damaged store is an error, never a panic. `torn` says that a
    /// power loss may have left any part of the journal unwritten.
    pub(crate) fn open(path: &Path, memtable_bytes: u64, torn: bool) -> Result<Self> {
        let damaged = |what: String| Error::Store {
            path: path.to_owned(),
            what,
            remedy: OPEN_REMEDY.to_owned(),
        };
        verify(path, torn).map_err(|what| damaged(format!("it is damaged: {what}")))?;
        let (database, keyspace) = catch_unwind(AssertUnwindSafe(|| build(path, memtable_bytes)))
            .map_err(|_| damaged("it is damaged beyond what the store can read".into()))?
            .map_err(|error| damaged(format!("it cannot be opened: {error}")))?;
        Ok(Self {
            path: path.to_owned(),
            database,
            keyspace,
            failed: OnceLock::new(),
            leftover: AtomicBool::new(false),
        })
    }

    /// An empty batch.
    pub(crate) fn changes(&self) -> Changes<'_> {
        let batch = self.database.batch().durability(Some(PersistMode::Buffer));
        Changes { journal: self, batch }
    }

    /// Writes one record as a batch of its own.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check()?;
        self.keyspace.insert(key, value).map_err(|error| self.fail(&error))
    }

    /// Removes one record as a batch of its own.
    pub(crate) fn remove(&self, key: &[u8]) -> Result<()> {
        self.check()?;
        self.keyspace.remove(key).map_err(|error| self.fail(&error))
    }

    /// One record.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<fjall::Slice>> {
        self.guarded(|| self.keyspace.get(key))
    }

    /// Calls `each` with all records of a kind in key order, until it fails.
    pub(crate) fn scan(
        &self,
        kind: u8,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut records = self.guarded(|| Ok(self.keyspace.prefix([kind])))?;
        while let Some((key, value)) =
            self.guarded(|| records.next().map(fjall::Guard::into_inner).transpose())?
        {
            each(&key, &value)?;
        }
        Ok(())
    }

    /// Reads from the store. Its library may panic on bytes that it did not write; we must not.
    fn guarded<T>(&self, read: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(read))
            .map_err(|_| self.damaged("it cannot be read"))?
            .map_err(|error| self.damaged(&error.to_string()))
    }

    /// Makes all that was committed durable against power loss.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check()?;
        self.database.persist(PersistMode::SyncAll).map_err(|error| self.fail(&error))
    }

    /// Records that the owner closed the store; every later change is refused.
    pub(crate) fn close(&self, untrimmed: bool) -> Result<()> {
        let value = self.get(record::STATE_KEY)?;
        let value = value.ok_or_else(|| self.damaged("its state is missing"))?;
        let state = record::decode_state(&value).map_err(|bad| self.damaged(bad.0))?;
        let state = record::State { closed: true, untrimmed, ..state };
        self.put(record::STATE_KEY, &record::encode_state(&state))?;
        self.sync()?;
        self.failed.get_or_init(|| "it was closed".to_owned());
        Ok(())
    }

    /// Bytes on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }

    /// The error for a record that cannot be right.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        Error::Store {
            path: self.path.clone(),
            what: format!("it is damaged: {what}"),
            remedy: OPEN_REMEDY.to_owned(),
        }
    }

    /// Fails once a write failed: from then on memory and store could disagree.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |what| Err(self.failure(what)))
    }

    fn fail(&self, error: &fjall::Error) -> Error {
        self.leftover.store(true, Relaxed);
        self.failure(self.failed.get_or_init(|| format!("a write failed: {error}")))
    }

    fn failure(&self, what: &str) -> Error {
        Error::Store { path: self.path.clone(), what: what.to_owned(), remedy: REMEDY.to_owned() }
    }
}

fn build(path: &Path, memtable_bytes: u64) -> fjall::Result<(Database, Keyspace)> {
    let database = Database::builder(path)
        .cache_size(BLOCK_CACHE_BYTES)
        .max_journaling_size(JOURNALS_BYTES_MAX)
        .worker_threads(2)
        .open()?;
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable_bytes)
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            // Nothing is looked up by key while the store is open, so filters would be dead weight.
            .filter_policy(FilterPolicy::disabled())
    };
    let keyspace = database.keyspace("dmt", options)?;
    Ok((database, keyspace))
}
