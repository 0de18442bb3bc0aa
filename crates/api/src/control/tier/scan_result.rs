//! The result of a scan of the tiers, for people and scripts.

use std::path::PathBuf;

use serde::Serialize;

use super::Problem;
use crate::control::paths_as_json;

/// What was found, and what was done about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ScanFindings {
    /// Regular files on each tier, the fastest first.
    pub files: Vec<u64>,
    /// Bytes of files on the SSD, on disk.
    pub ssd_bytes: u64,
    /// Files on lower tiers that got a name.
    #[serde(serialize_with = "paths_as_json")]
    pub adopted: Vec<PathBuf>,
    /// Files on the SSD that have a clean copy below.
    pub copies: u64,
    /// Leftovers that were removed.
    pub removed: u64,
    /// Inconsistencies.
    pub problems: Vec<Problem>,
}
