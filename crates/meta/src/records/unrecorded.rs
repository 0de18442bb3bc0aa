//! A read-only store: changes to it are forgotten.

use super::{RecordStore, Visit};
use crate::batch::Batch;
use halocline_os::error::Result;

use std::sync::Arc;

/// Accepts changes but records none, so that the next opening finds the same as this one (I6). The tables in memory
/// continue as if it had recorded them: nothing rereads changed records.
#[derive(Debug)]
pub(crate) struct Unrecorded(pub(crate) Arc<dyn RecordStore>);

impl RecordStore for Unrecorded {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.0.scan(each)
    }

    fn commit(&self, _: &Batch) -> Result<()> {
        self.0.usable()
    }

    /// What the opening itself repaired (the end of a torn log) must be as durable as ever.
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn close(&self, _: &Batch) -> Result<()> {
        self.0.sync()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn usable(&self) -> Result<()> {
        self.0.usable()
    }
}
