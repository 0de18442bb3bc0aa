//! Coherence for an engine that flushes what a dead session left: no one else may access those bytes, so no store is
//! asked.

use std::sync::{Arc, Weak};

use halocline_cache::coherence::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};
use halocline_model::request::ByteRange;
use halocline_os::error::Result;

/// Grants everything that is requested in the foreground. The caller holds the lock of the dead session's cache, and
/// ends the session when it is done.
#[derive(Debug)]
pub struct Alone;

impl Coherence for Alone {
    fn attach(&self, _holder: Weak<dyn LocalCache>) {}

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
        Ok(Grant { caches: true, renewed: false, fresh: ByteRange::new(0, 0), ticket: 0 })
    }

    /// Live nodes write beside what the dead session left, so nothing may be fetched or overwritten there.
    fn try_begin(&self, _want: Want) -> Option<Grant> {
        None
    }

    fn end(&self, _grant: Grant) {}
}
