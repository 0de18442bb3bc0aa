//! Requests to a file tier, and its answers, besides the common ones.

mod problem;
mod scan_result;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Status, wire};
use crate::config::Copies;

pub use problem::Problem;
pub use scan_result::ScanFindings;

/// The file tier's own directory in each tier; programs do not see it.
pub const PRIVATE: &str = ".halocline";

/// State of a mount of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnyStatus {
    /// What every mount has; for a file tier, the fields about dirty data and extents are 0.
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
    /// Whether a pin keeps it on the SSD.
    pub pinned: bool,
    /// Whether an exclude keeps it off the SSD.
    pub excluded: bool,
    /// Whether the kernel serves it by itself now.
    pub passed_through: bool,
    /// Whether it is missing from its tier: restore it there, or remove the name.
    #[serde(default)]
    pub lost: bool,
    /// Name of the lower tier that has a clean copy of it; `None` where none has.
    #[serde(default)]
    pub clean_copy: Option<String>,
}

/// Why a file of a file tier is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileExplanation {
    /// The file.
    #[serde(flatten)]
    pub file: FileInfo,
    /// The policy.
    pub policy: String,
    /// Limit of the bytes that files may have on the SSD.
    pub ssd_limit_bytes: u64,
    /// Bytes free below that limit and on its file system.
    pub ssd_free_bytes: u64,
    /// Opens of the file that were seen since the mount began; fewer if very many files are opened, because old ones
    /// are forgotten.
    pub opens: u64,
    /// The last of them, in milliseconds since 1970.
    pub last_open_ms: Option<u64>,
    /// Number of files that would leave the SSD before it; `None` if it is not there, or the policy does not let it
    /// leave (pinned, empty).
    pub leaves_after: Option<u64>,
    /// Number of files that may leave the SSD, including itself.
    pub may_leave: Option<u64>,
    /// Jobs that name it and are trusted.
    pub jobs: Vec<JobUse>,
    /// Open handles.
    pub handles: u64,
    /// Those that the kernel serves by itself.
    pub passed_handles: u64,
    /// Its names.
    pub hard_links: u64,
    /// How many of its names move together; if that is fewer than its names, it does not move.
    pub known_names: u64,
    /// Whether it is too large for the SSD's limit.
    pub too_large: bool,
    /// When it was last to move but stayed, in milliseconds since 1970.
    pub stayed_ms: Option<u64>,
    /// Why it stayed.
    pub stayed: Option<String>,
    /// Why it is where it is, in sentences.
    pub reasons: Vec<String>,
    /// What would change that.
    pub remedies: Vec<String>,
}

/// What of a node's SSD is to go to the shared disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// The node.
    pub node: String,
    /// File or directory; the whole mount if empty.
    #[serde(with = "wire::path", default)]
    pub path: PathBuf,
    /// Only report what would be moved.
    #[serde(default)]
    pub dry_run: bool,
}

/// A job that names a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUse {
    /// The job.
    pub name: String,
    /// References to the file that are still to come.
    pub coming: u64,
    /// How many references from now the next one is, 1 being the very next; `None` if there is none.
    pub next: Option<u64>,
}

/// State of one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierState {
    /// Its directory.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// Its name.
    pub name: String,
    /// Free bytes on its file system; `None` if it does not respond.
    pub free_bytes: Option<u64>,
}

/// State of a file tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TierStatus {
    /// The tiers, fastest first.
    pub tiers: Vec<TierState>,
    /// Files on the SSD.
    pub ssd_files: u64,
    /// Bytes on the SSD above which files are demoted in the background.
    pub high_bytes: u64,
    /// Bytes on the SSD at which these demotions stop.
    pub low_bytes: u64,
    /// Bytes that are to be demoted and have not been yet.
    #[serde(default)]
    pub waiting_bytes: u64,
    /// Files and bytes promoted to the SSD since the mount began.
    pub promoted: Moved,
    /// Files and bytes moved to lower tiers, including spilled ones.
    pub demoted: Moved,
    /// Copies of files on the SSD.
    #[serde(default)]
    pub copies: CopiesStatus,
    /// Opens of files on the SSD, and of files on lower tiers that were served there.
    pub opens: Opens,
    /// Moves in progress, the longest first; at most a hundred.
    #[serde(default)]
    pub moving: Vec<MoveNow>,
    /// Bytes per second copied between tiers, the mean over the last five seconds.
    #[serde(default)]
    pub moving_rate: u64,
    /// Reads and writes served by the mount process: those that the kernel serves by itself (passthrough) or from its
    /// page cache are not seen.
    #[serde(default)]
    pub requests: Requests,
    /// What the kernel serves by itself.
    pub passthrough: PassthroughStatus,
    /// Announced jobs.
    pub jobs: Vec<JobInfo>,
}

/// Copies of files on the SSD that lower tiers have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesStatus {
    /// Which are kept.
    pub kept: Copies,
    /// Files with a clean copy.
    pub clean: Moved,
    /// Bytes of copies on disk; copies are removed if a disk is full.
    pub disk_bytes: u64,
    /// Those of [`TierStatus::demoted`] for which nothing was copied, because they had a clean copy.
    pub demoted: Moved,
    /// Files archived since the mount began, counted each time.
    pub archived: Moved,
    /// Files that should be archived but have no clean copy yet.
    pub waiting: Moved,
    /// How long the oldest of those has been waiting, in milliseconds.
    pub waiting_ms: Option<u64>,
    /// Why the last attempt to archive a file failed.
    pub trouble: Option<String>,
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

/// A file that is being moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MoveNow {
    /// Path relative to the mount's root, as it was when the move began.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// The tier that it leaves, 0 the fastest.
    pub from: usize,
    /// The tier that it goes to.
    pub to: usize,
    /// Bytes copied so far.
    pub done_bytes: u64,
    /// Its bytes of data, without holes.
    pub total_bytes: u64,
    /// Seconds since the move began.
    pub seconds: f64,
}

/// Requests that the mount process served, by where the file was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Of files on the SSD.
    pub on_ssd: ReadsAndWrites,
    /// Of files on lower tiers, served in place.
    pub in_place: ReadsAndWrites,
}

/// Reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadsAndWrites {
    /// Reads.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// Kernel passthrough: which open files use it and why others do not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassthroughStatus {
    /// Whether the kernel accepts files; `None` until one was offered.
    pub works: Option<bool>,
    /// Why not, if it does not.
    pub reason: Option<String>,
    /// Open files that the kernel serves by itself.
    pub files: Vec<String>,
    /// Opens that were not passed through, by reason.
    pub refused: Vec<(String, u64)>,
}

/// A change of the announced jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobChange {
    /// Announces a job: the text of a job file (`docs/JOBS.md`).
    Add(String),
    /// Removes a job, by its name.
    Remove(String),
    /// A new run of a job begins, with processes that are marked as its own.
    Begin(String),
    /// Changes nothing.
    List,
}

/// Where the files of a job are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlaces {
    /// Nodes by bytes, the one with the most first.
    pub nodes: Vec<NodeBytes>,
    /// Files of the job that are not there.
    pub missing_files: u64,
}

/// What a node has of a job's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// The node, or `None` for the disk that all nodes share.
    pub node: Option<String>,
    /// Files on its SSD.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
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
    /// `waiting`, `running`, `stopped` (no process continues it), `done` or `deviated`.
    pub state: String,
}
