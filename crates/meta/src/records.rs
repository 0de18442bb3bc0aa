//! The interface of a store of records: no more than the tables need.
//!
//! The tables in memory ([`ExtentTable`](super::table::ExtentTable)) answer all queries; a store is read once, when
//! they are opened, and gets every change after that. So a store may be a log on the cache's own device or a service
//! that many nodes share.

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
/// - accept each batch as a whole or not at all, and batches in the order in which they were committed: what a kill or
///   a power loss leaves is the result of some number of first batches;
/// - accept a batch so that it survives the process (`kill -9`) before `commit` returns (I4), and survives a power loss
///   before a later `sync` returns;
/// - refuse everything except `scan`, `bytes` and `usable` from the first failure on: a caller whose batch was refused
///   has not applied it, and a later one may depend on it;
/// - never show a refused batch in a later opening, whatever happens to the device meanwhile.
///
/// `contract.rs` tests all of this for any implementation.
pub(crate) trait RecordStore: Send + Sync + fmt::Debug {
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

/// The error for a store at `path` with impossible contents.
pub(super) fn damaged(path: &Path, what: &str) -> Error {
    Error::Store {
        path: path.to_owned(),
        what: format!("it is damaged: {what}"),
        remedy: OPEN_REMEDY.to_owned(),
    }
}
