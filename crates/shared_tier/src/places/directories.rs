//! Positions of directories, as the owner of the names gives them.

use std::fmt::Debug;

use halocline_model::namespace::Name;
use halocline_os::error::Result;

/// A step on the path from the root to a directory; the root itself is no step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirectoryStep {
    /// Its number.
    pub(crate) number: u64,
    /// Its name in its parent.
    pub(crate) name: Name,
}

/// Gives the positions that directories have in the store.
pub(crate) trait Directories: Debug + Send + Sync {
    /// The steps from the root to a directory, including itself. They may be stale when they are returned.
    ///
    /// # Errors
    /// `ENOENT` if there is no such directory.
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>>;

    /// The steps as this node knows them, which may be stale.
    ///
    /// # Errors
    /// As [`steps`](Self::steps).
    fn near(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.steps(directory)
    }
}
