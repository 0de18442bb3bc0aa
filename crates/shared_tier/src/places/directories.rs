//! Positions of directories, as the owner of the names gives them.

use std::fmt::Debug;

use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::circles::Passed;

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

    /// The same for a directory on an SSD.
    ///
    /// # Errors
    /// `ENAMETOOLONG` as soon as it is [too deep](super::ssd_directories) for one; as [`steps`](Self::steps).
    fn steps_on_ssd(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.steps(directory)
    }

    /// The parent of a directory, and the step from there.
    ///
    /// # Errors
    /// As [`steps`](Self::steps).
    fn step_up(&self, directory: u64) -> Result<(u64, DirectoryStep)> {
        let mut steps = self.steps(directory)?;
        let last = steps.pop().ok_or(Errno::NOENT)?;
        Ok((steps.last().map_or(ROOT.0, |above| above.number), last))
    }

    /// The steps as this node knows them, which may be stale.
    ///
    /// # Errors
    /// As [`steps`](Self::steps).
    fn near(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.steps(directory)
    }
}

/// Something known of a directory, and the steps from there to another one.
type KnownAbove<T> = (T, Vec<DirectoryStep>);

/// The lowest directory above another one of which something is known, and the steps from there; `None` if directories on
/// the way are moved or removed meanwhile.
///
/// # Errors
/// `ENOENT` if there is no such directory; those of `known`.
pub(crate) fn up_to_known<T>(
    directories: &dyn Directories,
    number: u64,
    known: &mut dyn FnMut(u64) -> Result<Option<T>>,
) -> Result<Option<KnownAbove<T>>> {
    let (mut steps, mut at, mut passed) = (Vec::new(), number, Passed::new(number));
    loop {
        let (above, step) = match directories.step_up(at) {
            Err(_) if at != number => return Ok(None),
            up => up?,
        };
        steps.push(step);
        if let Some(known) = known(above)? {
            steps.reverse();
            return Ok(Some((known, steps)));
        }
        if above == ROOT.0 || passed.is_again(above) {
            return Ok(None);
        }
        at = above;
    }
}
