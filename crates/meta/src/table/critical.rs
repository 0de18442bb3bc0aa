//! The critical data table and its records.

use std::sync::Arc;

use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use crate::batch::Batch;
use crate::cdt::{Cdt, Durable};
use crate::records::RecordStore;
use crate::{CriticalRange, FileId, record};
use halocline_os::error::Result;

/// The critical data table; entries with `C_flag` are durable.
#[derive(Debug)]
pub struct CriticalRanges {
    records: Arc<dyn RecordStore>,
    cdt: Mutex<Cdt>,
}

impl CriticalRanges {
    pub(super) fn new(records: &Arc<dyn RecordStore>, cdt: Cdt) -> Self {
        Self { records: Arc::clone(records), cdt: Mutex::new(cdt) }
    }

    /// Notes a critical range; `fetch` sets `C_flag` (docs/ALGORITHMS.md, section 4.2).
    pub fn note(&self, wanted: CriticalRange, fetch: bool) {
        self.change(|cdt, changes| cdt.note(wanted, fetch, changes));
    }

    /// Entries with `C_flag` in the order in which it was set, at most `limit`.
    pub fn wanted(&self, limit: usize) -> Vec<CriticalRange> {
        self.cdt.lock().wanted(limit)
    }

    /// Clears `C_flag` of an entry.
    pub fn fetched(&self, file: FileId, range: ByteRange) {
        self.change(|cdt, changes| cdt.fetched(file, range, changes));
    }

    /// Drops the entries of `file` that share a byte with `range`.
    pub fn drop_range(&self, file: FileId, range: ByteRange) {
        self.change(|cdt, changes| cdt.drop_range(file, range, changes));
    }

    /// Whether the table has an entry of `file`.
    pub(super) fn knows(&self, file: FileId) -> bool {
        self.cdt.lock().knows(file)
    }

    /// Drops all entries of `file` as a part of `batch`, which `commit` makes durable before others can be noted.
    pub(super) fn forget(
        &self,
        file: FileId,
        mut batch: Batch,
        commit: impl FnOnce(&Batch) -> Result<()>,
    ) -> Result<()> {
        let mut dropped = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.drop_range(file, ByteRange::new(0, u64::MAX), &mut dropped);
        for change in dropped {
            if let Durable::Drop(file, range) = change {
                batch.remove(&record::critical_key(file, range));
            }
        }
        commit(&batch)
    }

    /// Makes a change, and records it before the next one; a failure latches in the log.
    fn change(&self, make: impl FnOnce(&mut Cdt, &mut Vec<Durable>)) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        make(&mut cdt, &mut changes);
        for change in changes {
            let mut batch = Batch::default();
            match change {
                Durable::Keep(wanted, order) => batch.put(
                    &record::critical_key(wanted.file, wanted.range),
                    &record::encode_critical(wanted.placement, order),
                ),
                Durable::Drop(file, range) => batch.remove(&record::critical_key(file, range)),
            }
            if let Err(error) = self.records.commit(&batch) {
                tracing::warn!(%error, "a critical range was not recorded");
            }
        }
    }
}
