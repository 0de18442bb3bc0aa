//! What a mount of the file tier is asked and answers besides the common requests.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Status, wire};

/// State of a mount of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnyStatus {
    /// What every mount has; of a file tier what is said of dirty data and extents is 0.
    #[serde(flatten)]
    pub status: Status,
    /// What only a file tier has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierStatus>,
}

/// One file of a file tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "answers about a file, each of its own")]
pub struct FileInfo {
    /// Path relative to the mount's root.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// The tier that holds it, 0 the fastest.
    pub tier: usize,
    /// The tier's name: the last part of its directory.
    pub tier_name: String,
    /// Where the file is below all mounts.
    #[serde(with = "wire::path")]
    pub place: PathBuf,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// A pin keeps it on the SSD.
    pub pinned: bool,
    /// An exclude keeps it off the SSD.
    pub excluded: bool,
    /// The kernel serves it by itself now.
    pub passed_through: bool,
    /// It is gone from its tier: restore it there, or remove the name.
    #[serde(default)]
    pub lost: bool,
}

/// State of one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierState {
    /// Its directory.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// Its name.
    pub name: String,
    /// Bytes its file system has free; `None` where it does not answer.
    pub free_bytes: Option<u64>,
}

/// State of a file tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// The tiers, fastest first.
    pub tiers: Vec<TierState>,
    /// Files on the SSD.
    pub ssd_files: u64,
    /// Above this many bytes on the SSD files are demoted in the background.
    pub high_bytes: u64,
    /// Down to this many.
    pub low_bytes: u64,
    /// Files and bytes brought to the SSD since the mount began.
    pub promoted: Moved,
    /// Files and bytes moved to lower tiers, spilled ones included.
    pub demoted: Moved,
    /// Opens of files on the SSD, and of files on lower tiers that were served there.
    pub opens: Opens,
    /// What the kernel serves by itself.
    pub passthrough: PassthroughStatus,
    /// Announced jobs.
    pub jobs: Vec<JobInfo>,
}

/// Files and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Opens by where the file was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opens {
    /// On the SSD already.
    pub hits: u64,
    /// On a lower tier, and brought to the SSD.
    pub promoted: u64,
    /// On a lower tier, and served there.
    pub in_place: u64,
}

/// Kernel passthrough: which open files have it and why others do not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassthroughStatus {
    /// Whether the kernel takes files; `None` until one was offered.
    pub works: Option<bool>,
    /// Why not, where it does not.
    pub reason: Option<String>,
    /// Open files that the kernel serves by itself.
    pub files: Vec<String>,
    /// Opens that were not passed through, by reason.
    pub refused: Vec<(String, u64)>,
}

/// What is done with announced jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobChange {
    /// Announces a job: the text of a job file (`docs/JOBS.md`).
    Add(String),
    /// Takes a job back, by its name.
    Remove(String),
    /// A new run of a job begins, by processes that are marked as its own.
    Begin(String),
    /// Changes nothing.
    List,
}

/// An announced job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its name.
    pub name: String,
    /// References of this node.
    pub references: u64,
    /// References seen so far, or skipped.
    pub position: u64,
    /// Distinct files.
    pub files: u64,
    /// `waiting`, `running`, `stopped` (nobody goes on with it), `done` or `deviated`.
    pub state: String,
}
