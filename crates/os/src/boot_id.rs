//! Identifies a boot of the machine.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// The boot id of the running kernel: different after each boot.
///
/// # Errors
/// There is no /proc.
pub fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let id = fs::read_to_string(path).map_err(Error::at(path, "read"))?;
    Ok(id.trim().to_owned())
}
