//! Where records are kept: what the tables need of a store, and no more.
//!
//! The tables in memory ([`ExtentTable`](super::table::ExtentTable)) hold everything that is asked
//! for; a store is read once, when they are opened, and told of every change since. So a store may
//! be a log on the cache's own device or a service that many nodes share.

#[cfg(test)]
pub(super) mod contract;
#[cfg(test)]
pub(super) mod memory;
pub(super) mod unrecorded;

use std::fmt;
use std::path::Path;

use super::batch::Batch;
use halocline_os::error::{Error, Result};

const OPEN_REMEDY: &str = "restore the directory from a copy; or save what can still be read of its dirty data with \
                           `halocline rescue --salvage CACHE --to DIR`, then move it away and mount with an empty cache";

/// Called with the key and the value of a record.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// Records: short keys with values, changed in batches.
///
/// The caller guarantees that it scans before it commits, and closes once. An implementation MUST:
/// - take each batch as a whole or not at all, and batches in the order in which they were
///   committed: whatever a kill or a power loss leaves is what some number of first batches made;
/// - have taken a batch so that it outlives the process (`kill -9`) before `commit` returns (I4), and
///   so that it outlives the loss of power before a later `sync` returns;
/// - refuse everything but `scan`, `bytes` and `usable` from the first failure on: a caller that
///   was refused one batch has not applied it, and a later one may build on it;
/// - never show a refused batch in a later opening, whatever becomes of the device meanwhile.
///
/// `contract.rs` beside this tests all of it of any implementation.
pub(crate) trait RecordStore: Send + Sync + fmt::Debug {
    /// Calls `each` with every record, in the order of their keys, until it fails.
    fn scan(&self, each: Visit<'_>) -> Result<()>;
    /// Takes a batch; of one record its last change counts. It is not durable against power loss
    /// yet. One without changes only tells whether the store is usable.
    fn commit(&self, batch: &Batch) -> Result<()>;
    /// Makes every batch whose `commit` returned before this call durable against power loss.
    fn sync(&self) -> Result<()>;
    /// Takes `last`, makes everything durable, and refuses every later change. What others commit
    /// meanwhile is before `last`, and durable as well, or refused.
    fn close(&self, last: &Batch) -> Result<()>;
    /// Bytes that the records take on the cache's device, at most, with what a rewrite of them may
    /// take beside them for a while (I5).
    fn bytes(&self) -> u64;
    /// Why changes are refused, if they are.
    fn usable(&self) -> Result<()>;
}

/// The error for a store at `path` that holds what cannot be right.
pub(super) fn damaged(path: &Path, what: &str) -> Error {
    Error::Store {
        path: path.to_owned(),
        what: format!("it is damaged: {what}"),
        remedy: OPEN_REMEDY.to_owned(),
    }
}
