//! A store that is only read: changes to it are forgotten.

use super::{RecordStore, Visit};
use crate::batch::Batch;
use halocline_os::error::Result;

use std::sync::Arc;

/// Takes changes and records none, so that the next opening finds what this one found (I6). The tables
/// in memory go on as if it had: nothing reads records that were changed over it.
#[derive(Debug)]
pub(crate) struct Unrecorded(pub(crate) Arc<dyn RecordStore>);

impl RecordStore for Unrecorded {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.0.scan(each)
    }

    fn commit(&self, _: &Batch) -> Result<()> {
        self.0.usable()
    }

    /// What the opening itself put in order (a torn journal) must be as durable as ever.
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
