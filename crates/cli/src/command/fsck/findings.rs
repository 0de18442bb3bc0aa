//! What a check finds, for people and scripts: the names are an interface (`docs/METRICS.md`).

use std::path::PathBuf;

use halocline_api::control::{path_as_json, path_or_null_as_json};
use serde::Serialize;

/// Something that is wrong.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub(super) enum Problem {
    /// A power loss took these bytes; the next mount, or a repair, forgets them and says so.
    LostAtPowerLoss {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// A record says that these bytes are on the cache, and they are not.
    MissingData {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        offset: u64,
        length: u64,
        dirty: bool,
    },
    /// These bytes on the cache are not what was written there.
    DamagedData {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        offset: u64,
        length: u64,
        dirty: bool,
        /// Where what is there was saved before the records of it were dropped.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "path_or_null_as_json")]
        saved: Option<PathBuf>,
    },
    /// A server of the cache holds nothing of it: its device is not mounted, or was replaced.
    LostServer {
        #[serde(serialize_with = "path_as_json")]
        server: PathBuf,
    },
    /// An object of a file that no record names: it costs space and nothing else. A killed mount
    /// leaves such objects, and the next mount removes them.
    StrayObject { file: u64, next_mount_removes: bool },
    /// The origin has no such file any more: its dirty bytes have no place to go.
    NoOrigin {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// The origin's file cannot be looked at: its dirty bytes wait until it can.
    NotReachable {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
        reason: String,
    },
    /// Others changed the origin's file under dirty bytes: these are not written to the origin.
    Conflict {
        #[serde(serialize_with = "path_as_json")]
        path: PathBuf,
        dirty_bytes: u64,
    },
    /// The directory is a copy of a cache, or was moved to another file system, with dirty bytes: some
    /// may be older than the origin's.
    Copy { dirty_bytes: u64 },
    /// An object of a striped origin that no file names any more: it costs space and nothing else.
    OrphanObject { object: String, bytes: u64 },
    /// More blocks are in use than the records know of (I5).
    Uncounted { allocated_bytes: u64, counted_bytes: u64 },
}

impl Problem {
    /// Whether the next mount ends it.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(
            self,
            Self::Uncounted { .. }
                | Self::Copy { .. }
                | Self::StrayObject { next_mount_removes: true, .. }
        )
    }
}

/// What was found.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    #[serde(serialize_with = "path_or_null_as_json")]
    pub(super) origin: Option<PathBuf>,
    pub(super) files: usize,
    pub(super) extents: u64,
    pub(super) mapped_bytes: u64,
    pub(super) dirty_bytes: u64,
    /// Cached bytes that have a checksum. Of the others nobody knows whether they are right.
    pub(super) verified_bytes: u64,
    pub(super) problems: Vec<Problem>,
    pub(super) repaired: bool,
    /// Why a striped origin's objects were not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin_unchecked: Option<String>,
}

impl Findings {
    /// Problems that the next mount does not end by itself. A killed mount leaves blocks that were
    /// written and not yet recorded: nobody was told that they are stored, and nothing is lost.
    pub(super) fn wrong(&self) -> usize {
        self.problems.iter().filter(|problem| !problem.ends_by_itself()).count()
    }
}
