//! The critical data table and its records.

use halocline_model::request::ByteRange;

use super::ExtentTable;
use crate::batch::Batch;
use crate::cdt::Durable;
use crate::{FileId, Wanted, record};

impl ExtentTable {
    /// Notes a critical range; `fetch` sets `C_flag` (docs/ALGORITHMS.md, section 4.2).
    pub fn note_critical(&self, wanted: Wanted, fetch: bool) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.note(wanted, fetch, &mut changes);
        self.keep_critical(&changes);
    }

    /// Entries with `C_flag` in the order in which it was set, at most `limit`.
    pub fn wanted(&self, limit: usize) -> Vec<Wanted> {
        self.cdt.lock().wanted(limit)
    }

    /// Clears `C_flag` of an entry.
    pub fn fetched(&self, file: FileId, range: ByteRange) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.fetched(file, range, &mut changes);
        self.keep_critical(&changes);
    }

    /// Drops the entries of `file` that share a byte with `range`.
    pub fn drop_critical(&self, file: FileId, range: ByteRange) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.drop_range(file, range, &mut changes);
        self.keep_critical(&changes);
    }

    /// Keeps what changed in the critical data table; a failure latches in the journal.
    fn keep_critical(&self, changes: &[Durable]) {
        for change in changes {
            let kept = match *change {
                Durable::Keep(wanted, order) => self.put(
                    &record::critical_key(wanted.file, wanted.range),
                    &record::encode_critical(wanted.placement, order),
                ),
                Durable::Drop(file, range) => {
                    let mut batch = Batch::default();
                    batch.remove(&record::critical_key(file, range));
                    self.records.commit(&batch)
                }
            };
            if let Err(error) = kept {
                tracing::warn!(%error, "a critical range was not recorded");
            }
        }
    }
}
