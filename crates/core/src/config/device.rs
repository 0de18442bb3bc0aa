//! What `calibrate` measured: startup and per-byte time by direction and pattern.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Time of one request: `startup_ps + bytes * ps_per_byte`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTime {
    /// Startup (alpha) in picoseconds.
    pub startup_ps: u64,
    /// Transfer (beta) in picoseconds a byte.
    pub ps_per_byte: u64,
}

/// Service times of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectionProfile {
    /// A request that continues a stream on the device.
    pub sequential: ServiceTime,
    /// A request anywhere.
    pub random: ServiceTime,
}

/// One device as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Reads.
    pub read: DirectionProfile,
    /// Writes.
    pub write: DirectionProfile,
}

/// Measured devices by directory.
pub type DeviceProfiles = BTreeMap<PathBuf, DeviceProfile>;

/// The profile of the nearest calibrated directory at or above `dir`.
pub(super) fn nearest<'a>(profiles: &'a DeviceProfiles, dir: &Path) -> Option<&'a DeviceProfile> {
    dir.ancestors().find_map(|dir| profiles.get(dir))
}
