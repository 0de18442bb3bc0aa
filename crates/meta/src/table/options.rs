//! How to open the tables.

use std::fmt;
use std::path::PathBuf;

use halocline_model::evict::Eviction;

use crate::write_intent::INTENT_BYTES;

/// Where the time comes from, in milliseconds since the epoch.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// What the tables of a cache are opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To be changed.
    Change,
    /// Only to be looked at: nothing is recorded, not even what a power loss took, so that the next opening finds the
    /// same.
    Look,
    /// The same, and of damaged records is taken what can be read. It may be older than the objects.
    Salvage,
}

/// How to open the tables.
pub struct Options {
    /// The limit of data in bytes on disk (I5).
    pub limit_bytes: u64,
    /// Bytes on disk set aside for the records; what they take beyond counts against the limit.
    /// `u64::MAX`: they are not limited.
    pub records_bytes: u64,
    /// Which extent leaves first.
    pub eviction: Box<dyn Eviction>,
    /// Most entries of the critical data table.
    pub cdt_entries: usize,
    /// Length in bytes of the aligned stretch of a clean extent that the first write into it
    /// records as dirty; 1: exactly what is written.
    pub mark_bytes: u64,
    /// Whether checksums of what is cached are kept.
    pub checksums: bool,
    /// What it is opened for.
    pub access: Access,
    /// The time.
    pub clock: Clock,
    /// A directory on other storage, the origin: it remembers what must not be trusted any more
    /// when the cache's own device takes no write. Without one such a change is refused.
    pub witness: Option<PathBuf>,
    /// Whether the witness is marked before a first byte is dirty ([`origin_mark`](crate::origin_mark)). Not where
    /// every write is on the origin before it is acknowledged.
    pub marks_witness: bool,
}

impl Options {
    /// Options with the system's clock, without a witness or a limit of the records.
    pub fn new(limit_bytes: u64, eviction: Box<dyn Eviction>, cdt_entries: usize) -> Self {
        Self {
            limit_bytes,
            records_bytes: u64::MAX,
            eviction,
            cdt_entries,
            mark_bytes: INTENT_BYTES,
            checksums: true,
            access: Access::Change,
            clock: system_clock(),
            witness: None,
            marks_witness: true,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("limit_bytes", &self.limit_bytes)
            .field("records_bytes", &self.records_bytes)
            .field("eviction", &self.eviction)
            .field("cdt_entries", &self.cdt_entries)
            .field("mark_bytes", &self.mark_bytes)
            .field("checksums", &self.checksums)
            .field("access", &self.access)
            .field("witness", &self.witness)
            .field("marks_witness", &self.marks_witness)
            .finish_non_exhaustive()
    }
}

/// The system's clock.
pub(crate) fn system_clock() -> Clock {
    Box::new(halocline_os::clock::coarse_ms)
}
