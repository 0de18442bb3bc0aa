//! Opens what a mount serves.

use halocline_core::config::Config;
use halocline_core::engine::extents::ExtentEngine;
use halocline_core::error::Result;

use crate::host::{Hosted, Where};

impl Hosted for ExtentEngine {
    fn close(&self) -> Result<()> {
        Self::close(self)
    }
}

/// Opens the engine of a mount.
pub(crate) fn open(place: &Where, config: &Config) -> Result<ExtentEngine> {
    ExtentEngine::open(&place.origin, &place.cache, config)
}
