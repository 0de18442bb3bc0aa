//! The paths from the root to directories, as programs here found them.

mod recent_steps;

use std::path::PathBuf;
use std::sync::Arc;

use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use parking_lot::Mutex;

use crate::circles::Passed;
use crate::entry_names::os;
use crate::inodes::{Inode, Table};
use crate::places::ssd_directories::{self, too_deep};
use crate::places::{Directories, DirectoryStep};
use crate::store_directories::StoreDirectories;
use recent_steps::RecentSteps;

/// The most steps of a path for messages.
const SHOWN_MAX: usize = 2048;

/// Finds the path from the root to a directory.
#[derive(Debug)]
pub(crate) struct DirectoryPaths {
    table: Arc<Table>,
    store: StoreDirectories,
    recent: Mutex<RecentSteps>,
    clock: Clock,
}

impl DirectoryPaths {
    pub(crate) fn new(table: &Arc<Table>, store: StoreDirectories, clock: &Clock) -> Self {
        let (table, clock) = (Arc::clone(table), clock.clone());
        Self { table, store, recent: Mutex::default(), clock }
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

    /// The name of a directory in its parent, as programs found it, or as the store had it [lately](recent_steps).
    fn up_lately(&self, directory: u64) -> Result<EntryName> {
        if let Some(name) = self.table.find(InodeNumber(directory)).and_then(|vnode| vnode.0.name())
        {
            return Ok(name);
        }
        if let Some(name) = self.recent.lock().find(directory, self.clock.instant()) {
            return Ok(name);
        }
        let name = self.up(InodeNumber(directory))?;
        self.recent.lock().add(directory, name.clone(), self.clock.instant());
        Ok(name)
    }

    /// Whether a directory is too deep for an SSD, as far as that is known without asking the store.
    pub(crate) fn is_too_deep_for_ssd(&self, directory: InodeNumber) -> bool {
        let (mut bytes, mut at) = (0, directory);
        let mut passed = Passed::new(at.0);
        while let Some(name) = self.table.find(at).and_then(|vnode| vnode.0.name()) {
            bytes += name.name.as_bytes().len() + 1;
            at = name.directory;
            if bytes > ssd_directories::BYTES_MAX || passed.is_again(at.0) {
                break;
            }
        }
        bytes > ssd_directories::BYTES_MAX
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

    /// An SSD does not follow renames of directories, so what was so a moment ago will do.
    fn steps_on_ssd(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        let (mut steps, mut at, mut bytes) = (Vec::new(), directory, 0);
        let mut passed = Passed::new(directory);
        while at != ROOT.0 {
            let up = self.up_lately(at)?;
            bytes += up.name.as_bytes().len() + 1;
            if bytes > ssd_directories::BYTES_MAX {
                return Err(too_deep());
            }
            steps.push(DirectoryStep { number: at, name: up.name });
            at = up.directory.0;
            // Names seen at different times may form a circle.
            if passed.is_again(at) {
                return self.store.steps_on_ssd(directory);
            }
        }
        steps.reverse();
        Ok(steps)
    }

    fn step_up(&self, directory: u64) -> Result<(u64, DirectoryStep)> {
        self.store.step_up(directory)
    }

    fn near(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.known(InodeNumber(directory))
    }
}
