//! The durable side: every change is one batch of the embedded store.
//!
//! A commit hands the batch to the operating system, so it survives `kill -9` (I4); `sync` makes
//! all commits so far survive power loss. The first failure is latched: nothing is written after
//! it, because what lies on disk then is no longer known.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::error::{Error, Result};

/// Bytes of journal after which the store writes its tables.
const JOURNAL_BYTES: u64 = 128 << 20;
/// Bytes of one table in memory.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// One key with its new value, or `None` to remove it.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// The changes of one operation.
#[derive(Debug, Default)]
pub(super) struct Batch {
    changes: Vec<Change>,
}

impl Batch {
    /// Sets a record.
    pub(super) fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.changes.push((key.to_vec(), Some(value)));
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, key: &[u8]) {
        self.changes.push((key.to_vec(), None));
    }
}

/// The embedded store.
pub(super) struct Journal {
    dir: PathBuf,
    database: Database,
    records: Keyspace,
    failed: OnceLock<String>,
    #[cfg(test)]
    pub(super) fail_next: std::sync::atomic::AtomicBool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Journal").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the store in `dir`, or makes an empty one.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let open = || -> fjall::Result<(Database, Keyspace)> {
            let database = Database::builder(dir)
                .max_journaling_size(JOURNAL_BYTES)
                .cache_size(8 << 20)
                .open()?;
            let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
            let records = database.keyspace("records", options)?;
            Ok((database, records))
        };
        let (database, records) = guarded(dir, open)?;
        Ok(Self {
            dir: dir.to_owned(),
            database,
            records,
            failed: OnceLock::new(),
            #[cfg(test)]
            fail_next: false.into(),
        })
    }

    /// Calls `visit` with every record whose key is in `[first, last)`, in order, until it says
    /// there is something wrong.
    pub(super) fn scan(
        &self,
        first: &[u8],
        last: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut wrong = Ok(());
        guarded(&self.dir, || {
            for record in self.records.range::<&[u8], _>(first..last) {
                let (key, value) = record.into_inner()?;
                wrong = visit(&key, &value);
                if wrong.is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        wrong
    }

    /// The value of one record.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        guarded(&self.dir, || Ok(self.records.get(key)?.map(|value| value.to_vec())))
    }

    /// Applies a batch, all or nothing, and hands it to the operating system.
    pub(super) fn commit(&self, batch: Batch) -> Result<()> {
        self.check()?;
        if batch.changes.is_empty() {
            return Ok(());
        }
        self.latched(|| {
            let mut out = self.database.batch().durability(Some(PersistMode::Buffer));
            for (key, value) in batch.changes {
                match value {
                    Some(value) => out.insert(&self.records, key, value),
                    None => out.remove(&self.records, key),
                }
            }
            out.commit()
        })
    }

    /// Makes all commits so far durable against power loss.
    pub(super) fn sync(&self) -> Result<()> {
        self.check()?;
        self.latched(|| self.database.persist(PersistMode::SyncAll))
    }

    /// Bytes the store has on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }

    /// Whether a write failed earlier.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    fn check(&self) -> Result<()> {
        #[cfg(test)]
        if self.fail_next.swap(false, std::sync::atomic::Ordering::Relaxed) {
            let _ = self.failed.set("told to fail".to_owned());
        }
        match self.failed.get() {
            None => Ok(()),
            Some(what) => Err(self.failure(what)),
        }
    }

    fn latched(&self, work: impl FnOnce() -> fjall::Result<()>) -> Result<()> {
        let what = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store library gave up".to_owned(),
        };
        Err(self.failure(self.failed.get_or_init(|| what)))
    }

    fn failure(&self, what: &str) -> Error {
        Error::Store {
            path: self.dir.clone(),
            what: format!("a write failed: {what}"),
            remedy: "check that its disk is healthy and not full, then mount again; until then \
                     the origin is used alone"
                .to_owned(),
        }
    }
}

/// Reads from the store; its library may panic on bytes it did not write, we must not.
fn guarded<T>(dir: &Path, work: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
    let what = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it cannot be read".to_owned(),
    };
    Err(damaged(dir, &what))
}

/// The error for a store that does not hold what we wrote.
pub(super) fn damaged(dir: &Path, what: &str) -> Error {
    Error::Store {
        path: dir.to_owned(),
        what: what.to_owned(),
        remedy: format!(
            "restore {} from a backup, or move the cache directory away and start with an empty \
             one: dirty data in it is lost",
            dir.display()
        ),
    }
}
