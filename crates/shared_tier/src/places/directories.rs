//! Where directories are, as whoever has the names says.

use std::fmt::Debug;

use halocline_model::namespace::Name;
use halocline_os::error::Result;

/// A directory on the way from the root to another one; the root itself is no step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirectoryStep {
    /// Its number.
    pub(crate) number: u64,
    /// Its name in the directory before.
    pub(crate) name: Name,
}

/// Says where directories are in the store.
pub(crate) trait Directories: Debug + Send + Sync {
    /// The steps from the root to the directory with a number, it included. They may be wrong by the time of the answer.
    ///
    /// # Errors
    /// `ENOENT` if there is no such directory.
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>>;

    /// The same as it is known here, which may be out of date.
    ///
    /// # Errors
    /// As [`steps`](Self::steps).
    fn near(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.steps(directory)
    }
}
