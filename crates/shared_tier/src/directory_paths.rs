//! Where directories are: the store finds them by number, and knows which directory each is in, but not its name there.

use std::path::PathBuf;
use std::sync::Arc;

use halocline_cluster::names::PAGE_ENTRIES_MAX;
use halocline_cluster::names::namespace::Namespace;
use halocline_model::namespace::{EntryName, Inode as Number, Name, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::errors::of_names;
use crate::inodes::{Inode, Table};
use crate::places::{Directories, DirectoryStep};

/// The deepest directory: what the store says may lead nowhere.
const DEPTH_MAX: usize = 4096;

/// Finds the way from the root to directories.
#[derive(Debug)]
pub(crate) struct DirectoryPaths {
    names: Arc<Namespace>,
    table: Arc<Table>,
}

impl DirectoryPaths {
    pub(crate) fn new(names: &Arc<Namespace>, table: &Arc<Table>) -> Self {
        Self { names: Arc::clone(names), table: Arc::clone(table) }
    }

    /// The steps to a directory by the names under which programs found it, which may have changed since.
    ///
    /// # Errors
    /// If one has to be asked for, and the store does not answer.
    pub(crate) fn known(&self, directory: Number) -> Result<Vec<DirectoryStep>> {
        self.walk(directory, |at| self.table.find(at).and_then(|node| node.0.name()))
    }

    fn walk(
        &self,
        directory: Number,
        name: impl Fn(Number) -> Option<EntryName>,
    ) -> Result<Vec<DirectoryStep>> {
        let (mut steps, mut at) = (Vec::new(), directory);
        while at != ROOT {
            if steps.len() >= DEPTH_MAX {
                return Err(Errno::LOOP.into());
            }
            let found = match name(at) {
                Some(found) => found,
                None => self.ask(at)?,
            };
            steps.push(DirectoryStep { number: at.0, name: found.name });
            at = found.directory;
        }
        steps.reverse();
        Ok(steps)
    }

    /// The name of a directory, as the store has it.
    fn ask(&self, directory: Number) -> Result<EntryName> {
        let parent = self.names.parent(directory).map_err(of_names)?;
        let mut after = 0;
        loop {
            let page = self.names.list(parent, after, PAGE_ENTRIES_MAX).map_err(of_names)?;
            let is_it = |listed: &&_| is_directory(listed, directory);
            if let Some(found) = page.0.iter().find(is_it) {
                return Ok(EntryName { directory: parent, name: found.name.clone() });
            }
            match page.0.last() {
                Some(last) if !page.1 => after = last.cursor,
                // It was renamed or removed meanwhile.
                _ => return Err(Errno::NOENT.into()),
            }
        }
    }

    /// Its path from the root for messages, as far as it is known.
    pub(crate) fn shown(&self, inode: &Inode) -> PathBuf {
        let (mut names, mut at): (Vec<Name>, _) = (Vec::new(), inode.name());
        while let Some(name) = at.filter(|_| names.len() < DEPTH_MAX) {
            names.push(name.name);
            at = self.table.find(name.directory).and_then(|node| node.0.name());
        }
        names.iter().rev().map(|name| PathBuf::from(crate::base::os(name))).collect()
    }
}

fn is_directory(
    listed: &halocline_cluster::names::namespace::Listed,
    directory: Number,
) -> bool {
    listed.is_directory && listed.inode == directory
}

impl Directories for DirectoryPaths {
    fn steps(&self, directory: u64) -> Result<Vec<DirectoryStep>> {
        self.walk(Number(directory), |at| {
            let name = self.table.find(at).and_then(|node| node.0.name())?;
            let is_it = self.names.lookup(&name).is_ok_and(|found| found.inode == at);
            is_it.then_some(name)
        })
    }
}
