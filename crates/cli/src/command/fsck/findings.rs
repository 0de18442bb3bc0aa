//! The findings of a check, for people and scripts: the names are an interface (`docs/METRICS.md`).

use std::path::PathBuf;

use halocline_api::control::{path_as_json, path_or_null_as_json};
use serde::Serialize;

/// A problem.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub(super) enum Problem {
    /// A power loss took these bytes; the next mount, or a repair, forgets them and reports it.
    LostAtPowerLoss {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// A record says that these bytes are on the cache, but they are not.
    MissingData {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        offset: u64,
        length: u64,
        dirty: bool,
    },
    /// These bytes on the cache differ from what was written there.
    DamagedData {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        offset: u64,
        length: u64,
        dirty: bool,
        /// Where the damaged bytes were saved before their records were dropped.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "path_or_null_as_json")]
        saved: Option<PathBuf>,
    },
    /// A server of the cache has nothing of it: its device is not mounted, or was replaced.
    LostServer {
        #[serde(serialize_with = "path_as_json")]
        server: PathBuf,
    },
    /// An object of a file that no record names: it only takes space. A killed mount leaves such objects, and the next
    /// mount removes them.
    StrayObject { file: u64, next_mount_removes: bool },
    /// The origin no longer has this file: its dirty bytes cannot be flushed.
    NoOrigin {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// The origin's file cannot be examined: its dirty bytes wait until it can.
    NotReachable {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
        reason: String,
    },
    /// Others changed the origin's file while there were dirty bytes: these are not written to the origin.
    Conflict {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// The directory is a copy of a cache, or was moved to another file system, with dirty bytes: some may be older
    /// than the origin's.
    Copy { dirty_bytes: u64 },
    /// An object of a striped origin to which no file refers: it only takes space, unless its file is elsewhere.
    OrphanObject { object: String, bytes: u64, removed: bool },
    /// An object of a striped origin whose file has another one: it only takes space.
    LeftoverObject { object: String, bytes: u64 },
    /// An object of a striped origin whose file is not found, and that others name: backups of it, or somebody who wants its data.
    MisnamedObject { object: String, named_by: Vec<NamedBy> },
    /// A directory or file of a striped origin's tree that cannot be read: any object may be that of a file there.
    UnreadName { reason: String },
    /// A file of a striped origin whose data cannot be read: programs get EIO.
    UnreadableFile {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        owner: u32,
        reason: String,
    },
    /// The tree of a striped origin is not that of its objects.
    OtherTree { reason: String },
    /// More blocks are in use than the records account for (I5).
    Uncounted { allocated_bytes: u64, counted_bytes: u64 },
}

/// A file that names an object.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NamedBy {
    /// Below the mount.
    #[serde(serialize_with = "path_as_json")]
    pub(super) path: PathBuf,
    /// The number of its owner.
    pub(super) owner: u32,
}

impl Problem {
    /// Whether the next mount resolves it.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(
            self,
            Self::Uncounted { .. }
                | Self::Copy { .. }
                | Self::StrayObject { next_mount_removes: true, .. }
        )
    }
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    #[serde(serialize_with = "path_or_null_as_json")]
    pub(super) origin: Option<PathBuf>,
    pub(super) files: usize,
    pub(super) extents: u64,
    pub(super) mapped_bytes: u64,
    pub(super) dirty_bytes: u64,
    /// Cached bytes that have a checksum. Whether the others are right is unknown.
    pub(super) verified_bytes: u64,
    pub(super) problems: Vec<Problem>,
    pub(super) repaired: bool,
    /// Why the origin was not examined: a striped one's objects, or any that is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin_unchecked: Option<String>,
}

impl Findings {
    /// Problems that the next mount does not resolve by itself. A killed mount leaves blocks that were written but not
    /// recorded: they were not acknowledged, and nothing is lost.
    pub(super) fn wrong(&self) -> usize {
        self.problems.iter().filter(|problem| !problem.ends_by_itself()).count()
    }

    /// Whether all was looked at, and nothing is wrong.
    pub(super) fn are_clean(&self) -> bool {
        self.wrong() == 0 && self.origin_unchecked.is_none()
    }
}
