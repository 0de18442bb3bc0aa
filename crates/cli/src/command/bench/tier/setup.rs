//! The directories and mounts of a benchmark, as seen by the process that measures.

use std::path::{Path, PathBuf};

use halocline_api::control::mount::is_mountpoint;
use halocline_os::error::{Error, Result};

/// The directories that must exist before anything is mounted on them.
pub(super) const DIRECTORIES: [&str; 7] = ["ssd", "hdd", TIER, "bare", "one", "two", MERGED];
/// Where the tier is mounted.
pub(super) const TIER: &str = "mount";
/// Where mergerfs is mounted, if it is installed.
pub(super) const MERGED: &str = "merged";

/// A tier mount, a bare directory and a mergerfs mount side by side.
#[derive(Debug)]
pub(super) struct Setup {
    root: PathBuf,
    mergerfs: bool,
}

impl Setup {
    /// Finds what was created in `root`.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let mergerfs = is_mountpoint(&root.join(MERGED)).map_err(Error::at(root, "look at"))?;
        Ok(Self { root: root.to_owned(), mergerfs })
    }

    /// The tier mount.
    pub(super) fn tier(&self) -> PathBuf {
        self.below(TIER)
    }

    /// A directory of the tiers themselves, below the mount.
    pub(super) fn below(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The places that are compared: the mount, the bare directory, and mergerfs if it is mounted.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let mut places = vec![self.tier(), self.below("bare")];
        if self.mergerfs {
            places.push(self.below(MERGED));
        }
        places
    }
}
