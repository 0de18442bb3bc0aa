//! The control interface of a running mount: what other commands may ask of its owner.
//!
//! Only the mount process accesses its cache (D2). It implements [`Controlled`]; [`server`] answers on a Unix socket in
//! the cache directory, [`client`] asks there, and [`mount_lookup`] finds the mount that a path is on. The wire format
//! is one JSON value per line: the client sends a [`Request`], the server answers with any number of `{"progress":
//! ...}` lines and then one `{"ok": ...}` or `{"error": {"message": ..., "errno": ...}}` line. A request is its name
//! with its arguments: `{"status": {}}`, `{"flush": {"path": "a/b", "dry_run": true}}`. Paths are relative to the
//! mount's root, whose path is empty; a hint's path may be absolute, as a program sees it.

mod address;
mod bounds;
pub mod claim;
pub mod client;
pub mod descriptors;
mod explanation;
pub mod joining;
pub mod metrics;
pub mod mount;
mod mount_access;
pub mod mount_lookup;
mod mounted;
mod moves;
pub mod report;
pub mod server;
#[cfg(test)]
mod tests;
pub mod tier;
pub mod wire;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use halocline_model::layout::Layout;
use halocline_model::request::ByteRange;
use serde::{Deserialize, Serialize};

use crate::config::Mode;
use halocline_os::error::{Error, Result};

pub use crate::globs::is_glob;
pub use claim::{Claim, ClaimRequest, DirectoryInUse, UseAs};
pub use client::{Client, has_hung_up};
pub use explanation::{CostTerms, Explanation, Question};
pub use joining::Joined;
pub use mount_lookup::MountedPath;
pub use mounted::Mounted;
pub use moves::{MoveReport, Skipped};
pub use report::{CachedFileInfo, CachedTree};
pub use report::{FlushTotals, LayoutBytes, NAMED_MAX, Report, RequestTotals, TokenCounts, Totals};
pub use server::Server;
pub use tier::{
    AnyStatus, Drain, FileExplanation, FileInfo, JobChange, JobInfo, JobPlaces, NodeBytes,
    TierStatus,
};
pub(crate) use wire::paths_as_json;
pub use wire::{path_as_json, path_or_null_as_json};

/// Name of the extended attribute of a mount's root that has the path of its control socket.
pub const SOCKET_XATTR: &str = "user.halocline.socket";
/// Name of the control socket inside the cache directory.
pub const SOCKET_NAME: &str = "control.sock";
/// Receives the progress of long operations. `Break` asks to stop at the next file or extent; what was moved until then
/// stays moved and is in the report.
pub type ProgressSink<'a> = &'a mut (dyn FnMut(Progress) -> ControlFlow<()> + Send);

/// A running cache, as the control socket sees it.
///
/// The caller guarantees that the peer was checked and that paths are relative, without `..`.
/// An implementation MUST be safe to call from many threads at once while programs run, and MUST
/// answer `status`, `report` and `hint` without waiting for a device.
pub trait Controlled: Send + Sync {
    /// State of the whole mount.
    fn status(&self) -> Status;
    /// What was served since the mount began; `exit_status` is `None`.
    fn report(&self) -> Report;
    /// Where each byte of a file is, in offset order and without gaps up to the file's size; only `range` if given.
    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>>;
    /// What is cached of files at and below `path`: nothing if there is no cache.
    fn cached(&self, _path: &Path) -> Result<CachedTree> {
        Ok(CachedTree::default())
    }
    /// What the engine would do with a request now, and why. Changes nothing.
    fn explain(&self, question: &Question) -> Result<Explanation>;
    /// Writes dirty data of `path` (a file or a directory; all if `None`) to the origin, durably.
    fn flush(
        &self,
        path: Option<&Path>,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport>;
    /// Conflicts that were not yet reported by any command, for one that reports them without a flush.
    fn take_conflicts(&self) -> Vec<Skipped> {
        Vec::new()
    }
    /// Fetches files, and all files below directories, into the cache.
    fn warm(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport>;
    /// Flushes `path` (a file or a directory) and evicts it.
    fn evict(&self, path: &Path, dry_run: bool, progress: ProgressSink<'_>) -> Result<MoveReport>;
    /// Moves what is on the SSD of a node to the shared disk: file tiers that nodes share only. A name that no node of
    /// the tier has is an error.
    fn drain(&self, _what: &Drain, _progress: ProgressSink<'_>) -> Result<MoveReport> {
        Err(no_shared_tier("`halocline demote PATH` moves files of another one down"))
    }
    /// Changes the pin and exclude globs, durably, and returns the resulting ones. A pin that is larger than the cache
    /// is an error.
    fn change_rules(&self, change: &RuleChange) -> Result<Rules>;
    /// Stores what a process says about itself or one of its files.
    fn hint(&self, hint: &ProcessHint) -> Result<()>;
    /// State that only a file tier has.
    fn tier_status(&self) -> Option<TierStatus> {
        None
    }
    /// The regular files at and below `path`, in order, and where each is: file tiers only.
    fn files(&self, _path: &Path) -> Result<Vec<FileInfo>> {
        Err(no_file_tier())
    }
    /// Why the file at `path` is where it is: file tiers only. Changes nothing.
    fn explain_file(&self, _path: &Path) -> Result<FileExplanation> {
        Err(no_file_tier())
    }
    /// Changes the announced jobs, and returns them: file tiers only.
    fn change_jobs(&self, _change: &JobChange) -> Result<Vec<JobInfo>> {
        Err(no_file_tier())
    }
    /// Where the files of a job are, of which this is the job file's text: file tiers that nodes share only.
    fn job_places(&self, _job: &str) -> Result<JobPlaces> {
        Err(no_shared_tier("`halocline where PATH` tells where the files of another one are"))
    }
}

fn no_shared_tier(remedy: &str) -> Error {
    Error::invalid("this mount is no file tier that nodes share", remedy)
}

fn no_file_tier() -> Error {
    Error::invalid("this mount is not a file tier", "mount one with `halocline mount --tier ROOT`")
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// [`Controlled::status`]; answers [`tier::AnyStatus`].
    Status {},
    /// [`Controlled::report`]; answers [`Report`].
    Report {},
    /// [`Controlled::locate`]; answers a list of [`ExtentInfo`].
    Locate {
        /// The file.
        #[serde(with = "wire::path")]
        path: PathBuf,
        /// First byte and length; the whole file if absent.
        #[serde(default)]
        range: Option<(u64, u64)>,
    },
    /// [`Controlled::cached`]; answers [`CachedTree`].
    Cached {
        /// File or directory; all if empty.
        #[serde(with = "wire::path")]
        path: PathBuf,
    },
    /// [`Controlled::explain`]; answers [`Explanation`].
    Explain(Question),
    /// [`Controlled::flush`]; answers [`MoveReport`].
    Flush {
        /// File or directory; the whole mount if empty.
        #[serde(with = "wire::path", default)]
        path: PathBuf,
        /// Only report what would be moved.
        #[serde(default)]
        dry_run: bool,
    },
    /// [`Controlled::warm`]; answers [`MoveReport`].
    Warm {
        /// Files and directories.
        #[serde(with = "wire::paths")]
        paths: Vec<PathBuf>,
        /// Only report what would be moved.
        #[serde(default)]
        dry_run: bool,
    },
    /// [`Controlled::evict`]; answers [`MoveReport`].
    Evict {
        /// File or directory; the whole mount if empty.
        #[serde(with = "wire::path", default)]
        path: PathBuf,
        /// Only report what would be moved.
        #[serde(default)]
        dry_run: bool,
    },
    /// [`Controlled::drain`]; answers [`MoveReport`].
    Drain(Drain),
    /// [`Controlled::change_rules`]; answers [`Rules`].
    Rules(RuleChange),
    /// [`Controlled::hint`]; answers `null`.
    Hint(ProcessHint),
    /// [`Controlled::files`]; answers a list of [`FileInfo`].
    Files {
        /// File or directory; the whole mount if empty.
        #[serde(with = "wire::path", default)]
        path: PathBuf,
    },
    /// [`Controlled::explain_file`]; answers [`FileExplanation`].
    ExplainFile {
        /// The file.
        #[serde(with = "wire::path")]
        path: PathBuf,
    },
    /// [`Controlled::change_jobs`]; answers a list of [`JobInfo`].
    Jobs(JobChange),
    /// [`Controlled::job_places`], of the text of a job file; answers [`JobPlaces`].
    JobPlaces(String),
    /// [`Mounted::is_ending`]; answers whether the mount is ending.
    Ending {},
    /// Makes the client a user of the mount for as long as the connection lasts. Before the answer, which is
    /// [`Joined`], comes one byte, with a copy of the mount as a descriptor if the mount is not visible to all.
    Join {
        /// Device and inode of the origin as the client sees it; `None` if it already sees the mount there.
        origin: Option<(u64, u64)>,
    },
    /// Flush (unless `keep_dirty`), unmount and end the mount process; answers [`MoveReport`]
    /// when the mount is gone.
    Unmount {
        /// Detach the mount even while programs use it; their open files remain usable until they are closed, and only
        /// then does the mount process end. Copies of the mount, for example in other mount namespaces, are ended then.
        #[serde(default)]
        force: bool,
        /// Leave dirty data on the cache, to be flushed after the next mount.
        #[serde(default)]
        keep_dirty: bool,
    },
}

/// State of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the mount process.
    pub version: String,
    /// Process id of the mount process.
    pub pid: u32,
    /// Origin directory.
    #[serde(with = "wire::path")]
    pub origin: PathBuf,
    /// Cache directory.
    #[serde(with = "wire::path")]
    pub cache: PathBuf,
    /// How requests arrive from the kernel: `device` or `io_uring`.
    #[serde(default)]
    pub transport: String,
    /// Mode.
    pub mode: Mode,
    /// Admission policy.
    pub policy: String,
    /// Eviction policy.
    pub eviction: String,
    /// Limit of cached data in bytes on disk: the size of the cache less the reserve for its records.
    pub limit_bytes: u64,
    /// Bytes of data on disk in use or reserved; more than `limit_bytes` only if that has just decreased (I5).
    pub used_bytes: u64,
    /// Upper bound of the bytes that the records take on disk; 0 on a file tier.
    #[serde(default)]
    pub records_bytes: u64,
    /// File bytes on the cache.
    pub mapped_bytes: u64,
    /// File bytes that only the cache has.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty extent in milliseconds; `None` if nothing is dirty.
    pub oldest_dirty_age_ms: Option<u64>,
    /// Number of extents.
    pub extents: u64,
    /// Number of dirty extents.
    pub dirty_extents: u64,
    /// Ranges waiting to be fetched (`C_flag`).
    pub wanted_ranges: u64,
    /// Dirty bytes that are damaged on the cache: neither read nor flushed.
    #[serde(default)]
    pub damaged_bytes: u64,
    /// Clean bytes that were damaged on the cache and came from the origin instead.
    #[serde(default)]
    pub repaired_bytes: u64,
    /// Opens whose reads the kernel serves by itself (`warm_passthrough`), since the mount began.
    #[serde(default)]
    pub warm_opens: u64,
    /// Processes that still use the mount after it was detached; it ends when they are done.
    #[serde(default)]
    pub detached: Option<String>,
    /// Health of the cache device.
    pub health: Health,
    /// What the rebuilder is doing.
    pub rebuilder: Rebuilder,
    /// The servers of both sides.
    pub servers: Vec<ServerStatus>,
    /// Pin and exclude globs.
    pub rules: Rules,
    /// What was served since the mount began.
    pub report: Report,
    /// Notes for people: conflicts (I9), files that lost data (I6), equally fast sides.
    pub notes: Vec<String>,
}

/// Health of the cache device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Health {
    /// Requests are admitted.
    Ok,
    /// A device failed recently: nothing new is admitted until it is tried again.
    Degraded {
        /// What happened, and the remedy.
        reason: String,
    },
    /// A file system is nearly full: nothing is admitted, or, if it is the origin's, nothing that needs more space
    /// there.
    Full {
        /// Which one, and the remedy.
        reason: String,
    },
    /// A directory does not respond: its device, or the server of a network file system, hangs. Requests that need it
    /// wait.
    Silent {
        /// Which one, and the remedy.
        reason: String,
    },
}

/// What the rebuilder is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rebuilder {
    /// Nothing to do.
    Idle,
    /// Dirty data waits for its age, the flush window or a threshold.
    Waiting,
    /// Writing dirty extents to the origin.
    Flushing,
    /// Fetching wanted ranges.
    Fetching,
}

/// A side of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The slow side.
    Origin,
    /// The fast side.
    Cache,
}

/// One server of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Which volume it belongs to.
    pub side: Side,
    /// Its directory.
    #[serde(with = "wire::path")]
    pub path: PathBuf,
    /// Name of the device profile in use, for example `hdd`, `calibrated` or `emulated hdd`.
    pub profile: String,
    /// Read requests to the device.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests to the device.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Requests waiting or in service now.
    pub queued: u64,
    /// How many times as long as calibrated its requests take, if that is much more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower: Option<f64>,
}

/// A maximal range of a file with one location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentInfo {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The side that answers reads.
    pub side: Side,
    /// Layout on the cache; `None` on the origin.
    pub layout: Option<Layout>,
    /// Server (1-DV) or group (2-D); 0 otherwise.
    pub group: u16,
    /// Whether only the cache has the newest bytes.
    pub dirty: bool,
    /// Last read, write or fill in milliseconds since the epoch; `None` on the origin.
    pub last_use_ms: Option<u64>,
    /// When it became dirty, in milliseconds since the epoch; `None` if clean.
    pub dirty_since_ms: Option<u64>,
}

/// Progress of a flush, warm or evict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes to do in all; may grow while programs write.
    pub total_bytes: u64,
    /// The file being processed, if there is one.
    #[serde(with = "wire::path", default)]
    pub path: PathBuf,
}

/// A change of the pin and exclude globs. Globs match paths relative to the mount's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", content = "glob", rename_all = "kebab-case")]
pub enum RuleChange {
    /// Extents of matching files are never evicted.
    Pin(String),
    /// Removes a pin.
    Unpin(String),
    /// Nothing of matching files is admitted; their cached bytes are flushed and evicted.
    Exclude(String),
    /// Removes an exclude.
    Include(String),
}

/// The globs in force, from the configuration and from commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Pin globs.
    pub pin: Vec<String>,
    /// Exclude globs.
    pub exclude: Vec<String>,
}

/// What a process says about itself, or about one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessHint {
    /// Process id; the server replaces it by the peer's, whatever was sent.
    #[serde(default)]
    pub pid: u32,
    /// Rank in the communicator: the owner of 1-DV and 2-D placements.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Number of processes p that share the file; `None` leaves it to be measured.
    #[serde(default)]
    pub size: Option<u32>,
    /// The file; empty for all files of the process.
    #[serde(with = "wire::path", default)]
    pub path: PathBuf,
    /// `halocline_cache=enable|disable`.
    #[serde(default)]
    pub cache: Option<bool>,
    /// `halocline_policy=NAME`.
    #[serde(default)]
    pub policy: Option<String>,
    /// Each read of the file shall be a request: direct I/O from the next open on.
    #[serde(default)]
    pub direct: bool,
}
