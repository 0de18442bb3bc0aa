//! Opens what a mount serves: for now the origin as it is, until the extent engine takes over.

mod uncached;

use halocline_core::config::{Binding, Config};
use halocline_core::error::Result;

use crate::host::{Hosted, Where};

/// Opens the engine of a mount.
pub(crate) fn open(place: &Where, config: &Config) -> Result<impl Hosted> {
    let binding = Binding::of(&place.origin, config)?;
    binding.check(&place.cache)?;
    let engine = uncached::Uncached::open(place, config)?;
    binding.record(&place.cache)?;
    Ok(engine)
}
