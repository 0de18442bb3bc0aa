//! What a move of bytes between the sides did.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a flush, warm or evict did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Bytes moved: written to the origin, fetched, or freed on the cache.
    pub bytes: u64,
    /// Files touched.
    pub files: u64,
    /// Files with nothing to move, because they were already where they should go.
    #[serde(default)]
    pub already_files: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes of files that had a clean copy at their destination, so that nothing was copied.
    #[serde(default)]
    pub clean_bytes: u64,
    /// Bytes that should have moved but did not: still dirty, without room, or pinned.
    pub left_bytes: u64,
    /// Files that were skipped or failed, with the reason.
    pub skipped: Vec<Skipped>,
    /// Files that others had changed, whose dirty bytes are saved elsewhere, and where: those that no flush has
    /// reported yet.
    #[serde(default)]
    pub conflicts: Vec<Skipped>,
    /// Of the end of a mount: everything was written, and the mount is gone, but something else could not be put in
    /// order after it, such as the end of its node's session in a store that does not answer; why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_order: Option<String>,
}

impl MoveReport {
    /// Adds what another move did after this one.
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.already_files += other.already_files;
        self.seconds += other.seconds;
        self.clean_bytes += other.clean_bytes;
        self.left_bytes += other.left_bytes;
        self.skipped.extend(other.skipped);
        self.conflicts.extend(other.conflicts);
        self.not_in_order = self.not_in_order.take().or(other.not_in_order);
    }
}

/// A file that was not moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The file.
    #[serde(with = "super::wire::path")]
    pub path: PathBuf,
    /// Why, and what to do about it.
    pub reason: String,
}
