//! Where directories are, according to the store.

use std::sync::Arc;

use halocline_cluster::names::PAGE_ENTRIES_MAX;
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{InodeNumber, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::{Directories, DirectoryStep};

/// Deeper than any path can be.
const DEPTH_MAX: usize = 2048;
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
}

impl Directories for StoreDirectories {
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        'again: for _ in 0..TRIES {
            let mut steps = Vec::new();
            let mut at = InodeNumber(directory);
            while at != ROOT {
                let parent = self.0.parent(at).map_err(of_names)?;
                let Some(step) = self.step(parent, at)? else { continue 'again };
                steps.push(step);
                at = parent;
                if steps.len() > DEPTH_MAX {
                    return Err(Errno::NAMETOOLONG.into());
                }
            }
            steps.reverse();
            return Ok(steps);
        }
        Err(Errno::BUSY.into())
    }
}
