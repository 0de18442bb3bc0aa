//! For an engine that brings to the origin what a dead session left: nobody else may touch that, so it asks no store.

use std::sync::{Arc, Weak};

use halocline_cache::coherence::{Coherence, FileTokens, Grant, Holder, SharedFile, Want};
use halocline_os::error::Result;

/// Grants everything. The caller holds the lock of the dead session's cache, and ends the session when done.
#[derive(Debug)]
pub struct Alone;

impl Coherence for Alone {
    fn attach(&self, _holder: Weak<dyn Holder>) {}

    fn tokens(&self, _file: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(Self))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for Alone {
    fn begin(&self, _want: Want) -> Result<Grant> {
        Ok(Grant { caches: true, renewed: false, ticket: 0 })
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn end(&self, _grant: Grant) {}
}
