//! How to open the tables.

use std::fmt;
use std::path::PathBuf;

use halocline_model::evict::Eviction;

use crate::records::StoreKind;
use crate::write_intent::INTENT_BYTES;

/// The source of the time, in milliseconds since the epoch.
pub type NowMs = Box<dyn Fn() -> u64 + Send + Sync>;

/// How the tables of a cache are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For changes.
    Change,
    /// Nothing is recorded, not even the losses of a power loss, so that the next opening finds the same.
    ReadOnly,
    /// The same, and the readable part of damaged records is used. That part may be older than the objects.
    Salvage,
}

/// The options for opening the tables.
pub struct Options {
    /// The limit of data in bytes on disk (I5).
    pub limit_bytes: u64,
    /// Bytes on disk reserved for the records; what they take beyond that counts against the limit. `u64::MAX`: they
    /// are not limited.
    pub records_bytes: u64,
    /// The kind of the store that keeps the records; the cache MUST NOT have another one. `None`: the kind that it has.
    pub record_store: Option<&'static StoreKind>,
    /// The eviction policy.
    pub eviction: Box<dyn Eviction>,
    /// Limit of the entries of the critical data table.
    pub cdt_entries: usize,
    /// Length in bytes of the aligned stretch of a clean extent that the first write into it records as dirty. With 1,
    /// exactly what is written is recorded.
    pub intent_bytes: u64,
    /// Whether checksums of cached bytes are kept.
    pub checksums: bool,
    /// What the tables are opened for.
    pub access: Access,
    /// The time.
    pub clock: NowMs,
    /// A directory on other storage, the origin: invalidations are recorded there if the cache's own device accepts no
    /// write. Without one, such a change is refused.
    pub witness: Option<PathBuf>,
    /// Whether the witness is marked before a first byte is dirty ([`origin_mark`](crate::origin_mark)). Not needed if
    /// every write is on the origin before it is acknowledged.
    pub marks_witness: bool,
}

impl Options {
    /// Options with the system's clock, without a witness and without a limit for the records.
    pub fn new(limit_bytes: u64, eviction: Box<dyn Eviction>, cdt_entries: usize) -> Self {
        Self {
            limit_bytes,
            records_bytes: u64::MAX,
            record_store: None,
            eviction,
            cdt_entries,
            intent_bytes: INTENT_BYTES,
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
            .field("record_store", &self.record_store.map(|kind| kind.name))
            .field("eviction", &self.eviction)
            .field("cdt_entries", &self.cdt_entries)
            .field("intent_bytes", &self.intent_bytes)
            .field("checksums", &self.checksums)
            .field("access", &self.access)
            .field("witness", &self.witness)
            .field("marks_witness", &self.marks_witness)
            .finish_non_exhaustive()
    }
}

/// The system's clock.
pub(crate) fn system_clock() -> NowMs {
    Box::new(halocline_os::clock::coarse_ms)
}
