//! Tokens for tests, which are always there.

use std::sync::{Arc, Weak};

use halocline_model::request::ByteRange;
use halocline_os::error::Result;

use super::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};

/// Grants everything.
#[derive(Debug)]
pub(crate) struct Granting;

impl Coherence for Granting {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(Self))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for Granting {
    fn begin(&self, _: Want) -> Result<Grant> {
        let fresh = ByteRange::new(0, 0);
        Ok(Grant { caches: true, renewed: false, fresh, ticket: 0 })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn end(&self, _: Grant) {}
}
