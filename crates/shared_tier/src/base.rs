//! What all components of the tier use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use halocline_cluster::names::namespace::Namespace;
use halocline_model::namespace::{EntryName, Inode as Number, Name, ROOT};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::directory_paths::DirectoryPaths;
use crate::inodes::{Inode, Table};
use crate::places::{DirectoryStep, Places};
use crate::sessions::Sessions;

/// Names in the root that are ours on the disks: programs do not get them.
const PRIVATE: [&str; 2] = [halocline_api::control::tier::PRIVATE, crate::REGISTRY];

/// The names, the places and the session of one node.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) names: Arc<Namespace>,
    pub(crate) places: Places,
    pub(crate) table: Arc<Table>,
    pub(crate) paths: Arc<DirectoryPaths>,
    pub(crate) sessions: Sessions,
    pub(crate) clock: Clock,
}

impl Base {
    /// A name in a directory that programs may use.
    ///
    /// # Errors
    /// `EPERM` for those that are ours.
    pub(crate) fn entry_name(&self, parent: &Inode, name: &OsStr) -> Result<EntryName> {
        if parent.number == ROOT && PRIVATE.iter().any(|private| name == *private) {
            return Err(Errno::PERM.into());
        }
        Ok(entry_name(parent.number, name))
    }

    /// The steps to a directory, as they are known here.
    pub(crate) fn near(&self, directory: Number) -> Result<Vec<DirectoryStep>> {
        self.paths.known(directory)
    }

    /// The time for attributes, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }
}

pub(crate) fn entry_name(directory: Number, name: &OsStr) -> EntryName {
    EntryName { directory, name: Name::from(name.as_bytes()) }
}

/// A name as the system has it.
pub(crate) fn os(name: &Name) -> &OsStr {
    OsStr::from_bytes(name.as_bytes())
}
