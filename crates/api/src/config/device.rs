//! Measurements of `calibrate`: the model's profile of each device, by directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halocline_model::profile::DeviceProfile;

/// Measured devices by directory.
pub type DeviceProfiles = BTreeMap<PathBuf, DeviceProfile>;

/// The profile of the nearest calibrated directory at or above `dir`.
pub(super) fn nearest<'a>(profiles: &'a DeviceProfiles, dir: &Path) -> Option<&'a DeviceProfile> {
    dir.ancestors().find_map(|dir| profiles.get(dir))
}
