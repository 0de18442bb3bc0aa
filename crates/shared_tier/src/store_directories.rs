//! Where directories are, according to the store.

use std::sync::Arc;

use halocline_cluster::names::PAGE_ENTRIES_MAX;
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{InodeNumber, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::circles::Passed;
use crate::errors::of_names;
use crate::places::ssd_directories::{self, too_deep};
use crate::places::{Directories, DirectoryStep};

/// How often to retry while others rename.
const TRIES: usize = 8;

/// Asks the store: for each parent, one round trip and its pages up to the name. For directories that are not known
/// in memory.
#[derive(Debug)]
pub(crate) struct StoreDirectories(pub(crate) Arc<Namespace>);

impl StoreDirectories {
    /// The name of a directory in its parent; `None` if it is not there (any more).
    fn step(&self, parent: InodeNumber, directory: InodeNumber) -> Result<Option<DirectoryStep>> {
        let mut cursor = 0;
        loop {
            let page = match self.0.list(parent, cursor, PAGE_ENTRIES_MAX) {
                Err(Failure::Refused(Errno::NOENT)) => return Ok(None),
                page => page.map_err(of_names)?,
            };
            let found = page.0.iter().find(|one| one.is_directory && one.inode == directory);
            if let Some(found) = found {
                let step = DirectoryStep { number: directory.0, name: found.name.clone() };
                return Ok(Some(step));
            }
            match page.0.last() {
                Some(last) if !page.1 => cursor = last.cursor,
                _ => return Ok(None),
            }
        }
    }

    /// The steps from the root to a directory, if their names have no more bytes than that.
    fn walk(&self, directory: u64, bytes_max: usize) -> Result<Vec<DirectoryStep>> {
        'again: for _ in 0..TRIES {
            let (mut steps, mut bytes) = (Vec::new(), 0);
            let (mut at, mut passed) = (directory, Passed::new(directory));
            while at != ROOT.0 {
                let Some((parent, step)) = self.up(at)? else { continue 'again };
                bytes += step.name.as_bytes().len() + 1;
                if bytes > bytes_max {
                    return Err(too_deep());
                }
                steps.push(step);
                at = parent;
                if passed.is_again(at) {
                    return Err(Errno::LOOP.into());
                }
            }
            steps.reverse();
            return Ok(steps);
        }
        Err(Errno::BUSY.into())
    }

    /// The parent of a directory, and the step from there; `None` if it is moved just now.
    fn up(&self, directory: u64) -> Result<Option<(u64, DirectoryStep)>> {
        let directory = InodeNumber(directory);
        let parent = self.0.parent(directory).map_err(of_names)?;
        Ok(self.step(parent, directory)?.map(|step| (parent.0, step)))
    }
}

impl Directories for StoreDirectories {
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.walk(directory, usize::MAX)
    }

    fn steps_on_ssd(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.walk(directory, ssd_directories::BYTES_MAX)
    }

    fn step_up(&self, directory: u64) -> Result<(u64, DirectoryStep)> {
        for _ in 0..TRIES {
            if let Some(up) = self.up(directory)? {
                return Ok(up);
            }
        }
        Err(Errno::BUSY.into())
    }
}
