//! Opens what a mount serves.

use halocline_core::config::{Binding, Config};
use halocline_core::engine::extents::ExtentEngine;
use halocline_core::error::Result;

use crate::host::{Hosted, Where};

impl Hosted for ExtentEngine {
    fn close(&self) -> Result<()> {
        Self::close(self)
    }
}

/// Opens the engine of a mount, if the cache belongs to its origin and has its shape.
pub(crate) fn open(place: &Where, config: &Config) -> Result<ExtentEngine> {
    let binding = Binding::of(&place.origin, config)?;
    binding.check(&place.cache)?;
    let engine = ExtentEngine::open(&place.origin, &place.cache, config)?;
    binding.record(&place.cache)?;
    Ok(engine)
}
