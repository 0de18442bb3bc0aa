//! The paths from the root to directories, as programs here found them.

use std::path::PathBuf;
use std::sync::Arc;

use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::error::Result;

use crate::circles::Passed;
use crate::entry_names::os;
use crate::inodes::{Inode, Table};
use crate::places::{Directories, DirectoryStep};
use crate::store_directories::StoreDirectories;

/// The most steps of a path for messages.
const SHOWN_MAX: usize = 2048;

/// Finds the path from the root to a directory.
#[derive(Debug)]
pub(crate) struct DirectoryPaths {
    table: Arc<Table>,
    store: StoreDirectories,
}

impl DirectoryPaths {
    pub(crate) fn new(table: &Arc<Table>, store: StoreDirectories) -> Self {
        Self { table: Arc::clone(table), store }
    }

    /// The steps to a directory by the names under which programs found it, which may be stale; the store is asked
    /// only for the missing ones.
    ///
    /// # Errors
    /// `ENOENT` if the directory is gone.
    pub(crate) fn known(&self, directory: InodeNumber) -> Result<Vec<DirectoryStep>> {
        let (mut steps, mut at) = (Vec::new(), directory);
        let mut passed = Passed::new(directory.0);
        while at != ROOT {
            let Some(name) = self.table.find(at).and_then(|vnode| vnode.0.name()) else {
                let mut above = self.store.steps(at.0)?;
                above.extend(steps.into_iter().rev());
                return Ok(above);
            };
            steps.push(DirectoryStep { number: at.0, name: name.name });
            at = name.directory;
            // Names seen at different times may form a circle.
            if passed.is_again(at.0) {
                return self.store.steps(directory.0);
            }
        }
        steps.reverse();
        Ok(steps)
    }

    /// The name of a directory in its parent, as far as known here; else the store is asked.
    ///
    /// # Errors
    /// As [`known`](Self::known).
    pub(crate) fn up(&self, directory: InodeNumber) -> Result<EntryName> {
        if let Some(name) = self.table.find(directory).and_then(|vnode| vnode.0.name()) {
            return Ok(name);
        }
        let (above, step) = self.store.step_up(directory.0)?;
        Ok(EntryName { directory: InodeNumber(above), name: step.name })
    }

    /// The directory's path from the root for messages, as far as it is known.
    pub(crate) fn shown(&self, inode: &Inode) -> PathBuf {
        let (mut names, mut at): (Vec<Name>, _) = (Vec::new(), inode.name());
        while let Some(name) = at.filter(|_| names.len() < SHOWN_MAX) {
            names.push(name.name);
            at = self.table.find(name.directory).and_then(|vnode| vnode.0.name());
        }
        names.iter().rev().map(|name| PathBuf::from(os(name))).collect()
    }
}

impl Directories for DirectoryPaths {
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.store.steps(directory)
    }

    fn steps_on_ssd(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.store.steps_on_ssd(directory)
    }

    fn step_up(&self, directory: u64) -> Result<(u64, DirectoryStep)> {
        self.store.step_up(directory)
    }

    fn near(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.known(InodeNumber(directory))
    }
}
