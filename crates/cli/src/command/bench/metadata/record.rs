//! Results as they are printed with `--json`. The keys are an interface.

use serde::Serialize;

use super::row::Row;
use super::simulation::Simulation;

/// What creates are to reach of what the server's own benchmark does.
pub(super) const RATIO_TARGET: f64 = 0.8;
/// What creates in one directory of many entries are to reach of those in own directories.
pub(super) const LARGE_TARGET: f64 = 0.5;

/// What creates through the mounts of a shared tier are to reach of those on a tier of one node.
pub(super) const TIER_TARGET: f64 = 0.5;

/// How it was measured.
#[derive(Debug, Serialize)]
pub(super) struct Setup {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    pub(super) own_store: bool,
    pub(super) cpus: usize,
    pub(super) files: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<u64>,
    pub(super) repeat: u32,
}

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    #[serde(flatten)]
    pub(super) setup: Setup,
    pub(super) why_no_native: Option<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) large: Option<Large>,
    pub(super) simulation: Option<Simulation>,
}

/// A directory of many entries.
#[derive(Debug, Serialize)]
pub(super) struct Large {
    pub(super) entries: u64,
    pub(super) clients: u32,
    pub(super) create_per_second: f64,
    pub(super) own_create_per_second: Option<f64>,
    pub(super) ratio: Option<f64>,
    pub(super) list_seconds: f64,
    pub(super) listed_per_second: f64,
    /// Answers of the store, if it is asked itself.
    pub(super) pages: Option<u64>,
    pub(super) resident_bytes_before: u64,
    pub(super) resident_bytes_most: u64,
}

/// What is measured through mounts.
#[derive(Debug, Serialize)]
pub(super) struct MountResults {
    #[serde(flatten)]
    pub(super) setup: Setup,
    pub(super) mounts: Vec<MountRow>,
    pub(super) large: Option<Large>,
}

/// One operation of so many programs at once on one system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MountRow {
    /// `nodes`, `tier` or `disk`.
    pub(super) system: &'static str,
    pub(super) nodes: u32,
    pub(super) operation: &'static str,
    pub(super) directories: &'static str,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    /// Of the same on the tier of one node.
    pub(super) of_tier: Option<f64>,
}
