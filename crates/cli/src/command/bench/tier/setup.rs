//! The directories and mounts of a benchmark, as the process sees them that measures.

use std::path::{Path, PathBuf};

use halocline_api::control::mount::is_mountpoint;
use halocline_os::error::{Error, Result};

/// Everything that must be there before it is mounted on.
pub(super) const DIRECTORIES: [&str; 7] = ["ssd", "hdd", TIER, "bare", "one", "two", MERGED];
/// Where the tier is mounted.
pub(super) const TIER: &str = "mount";
/// Where mergerfs is mounted, if it is installed.
pub(super) const MERGED: &str = "merged";

/// A tier mount, a bare directory and a mergerfs mount beside each other.
#[derive(Debug)]
pub(super) struct Setup {
    root: PathBuf,
    mergerfs: bool,
}

impl Setup {
    /// What was made in `root`.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let mergerfs = is_mountpoint(&root.join(MERGED)).map_err(Error::at(root, "look at"))?;
        Ok(Self { root: root.to_owned(), mergerfs })
    }

    /// The tier mount.
    pub(super) fn tier(&self) -> PathBuf {
        self.below(TIER)
    }

    /// A directory of the tiers, below the mount.
    pub(super) fn below(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The places that are compared: the mount, the bare directory, mergerfs where it is.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let mut places = vec![self.tier(), self.below("bare")];
        if self.mergerfs {
            places.push(self.below(MERGED));
        }
        places
    }
}
