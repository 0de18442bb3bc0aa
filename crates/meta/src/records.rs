//! The interface of a store of records: no more than the tables need.
//!
//! The tables in memory ([`ExtentTable`](super::table::ExtentTable)) answer all queries; a store is read once, when
//! they are opened, and gets every change after that. So a store may be a log on the cache's own device or a service
//! that many nodes share.
//!
//! A cache has one kind of store ([`StoreKind`]); the kinds that there are have rows in `record_stores.rs`.

#[cfg(test)]
pub(super) mod contract;
#[cfg(test)]
pub(super) mod memory;
pub(super) mod unrecorded;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use super::batch::{Batch, Change};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

const OPEN_REMEDY: &str = "restore the directory from a copy; or save what can still be read of its dirty data with \
                           `halocline rescue --salvage CACHE --to DIR`, then move it away and mount with an empty cache";

/// Called with the key and the value of a record.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// Records: short keys with values, changed in batches.
///
/// The caller guarantees that it scans before it commits, and closes once. An implementation MUST:
/// - accept each batch as a whole or not at all, and batches in the order in which they were committed: what a kill or
///   a power loss leaves is the result of some number of first batches;
/// - accept a batch so that it survives the process (`kill -9`) before `commit` returns (I4), and survives a power loss
///   before a later `sync` returns;
/// - refuse everything except `scan`, `bytes` and `usable` from the first failure on: a caller whose batch was refused
///   has not applied it, and a later one may depend on it;
/// - never show a refused batch in a later opening, whatever happens to the device meanwhile.
///
/// `contract.rs` tests all of this for any implementation.
pub trait RecordStore: Send + Sync + fmt::Debug {
    /// Calls `each` with every record, in the order of their keys, until it fails.
    fn scan(&self, each: Visit<'_>) -> Result<()>;
    /// Commits a batch; the last change of a record counts. It is not durable against power loss yet. A batch without
    /// changes only checks whether the store is usable.
    fn commit(&self, batch: &Batch) -> Result<()>;
    /// Makes every batch whose `commit` returned before this call durable against power loss.
    fn sync(&self) -> Result<()>;
    /// Commits `last`, makes everything durable, and refuses every later change. What others commit meanwhile is
    /// ordered before `last` and durable as well, or refused.
    fn close(&self, last: &Batch) -> Result<()>;
    /// Upper bound of the bytes that the records take on the cache's device, including what a rewrite takes temporarily
    /// in addition (I5).
    fn bytes(&self) -> u64;
    /// Why changes are refused, if they are.
    fn usable(&self) -> Result<()>;
}

/// A kind of store: how a cache's directory gets one, and how it is opened. A row of the table in `record_stores.rs`.
#[derive(Debug, Clone, Copy)]
pub struct StoreKind {
    /// Its name in the option `record_store`, and in the identity of a cache that has it.
    pub name: &'static str,
    /// Makes an empty store in a new directory, which gets its name when this has returned.
    pub fill: fn(&PrivateDir) -> Result<()>,
    /// Opens the store in a directory. Only one may be open at a time.
    pub open: fn(PrivateDir, Opening) -> Result<Arc<dyn RecordStore>>,
    /// Reads the intact part of a damaged store without changing it, on the boot with this id; says what is damaged.
    pub salvage: fn(&PrivateDir, &str) -> Result<Salvage>,
}

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// Whether a power loss since it was last open may have dropped anything that was not synced.
    pub torn: bool,
    /// Bytes on disk that are set aside for it.
    pub set_aside_bytes: u64,
    /// For tests: bytes of changes after which a store that rewrites itself does so; `None`: by the bytes set aside.
    pub rewrite_bytes: Option<u64>,
}

/// What could be read of a store, and why it is incomplete, if it is.
pub type Salvage = (Arc<dyn RecordStore>, Option<String>);

impl StoreKind {
    /// Makes an empty store in `path`, which does not exist, or is left as it was.
    pub(crate) fn create(&self, path: &Path) -> Result<()> {
        create(path, self.fill)
    }
}

/// Makes a directory at `path` that `fill` has filled, or none.
pub(crate) fn create(path: &Path, fill: fn(&PrivateDir) -> Result<()>) -> Result<()> {
    let fresh = path.with_extension("new");
    // A directory that a crash left here was never used.
    match fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::at(&fresh, "remove the half-made store")(error));
        }
        _ => {}
    }
    fill(&PrivateDir::make(&fresh)?)?;
    fs::rename(&fresh, path).map_err(Error::at(path, "make the store"))?;
    let parent = path.parent().unwrap_or(path);
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(Error::at(parent, "sync the cache directory"))
}

/// The error for a store at `path` with impossible contents.
pub(super) fn damaged(path: &Path, what: &str) -> Error {
    Error::Store {
        path: path.to_owned(),
        what: format!("it is damaged: {what}"),
        remedy: OPEN_REMEDY.to_owned(),
    }
}
