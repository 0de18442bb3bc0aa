//! What all components of the tier use.

use std::sync::Arc;

use halocline_cluster::names::namespace::Namespace;
use halocline_model::namespace::Inode as Number;
use halocline_os::clock::Clock;
use halocline_os::error::Result;

use crate::directory_paths::DirectoryPaths;
use crate::inodes::Table;
use crate::places::{DirectoryStep, Places};
use crate::sessions::Sessions;

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
    /// The steps to a directory, as they are known here.
    pub(crate) fn near(&self, directory: Number) -> Result<Vec<DirectoryStep>> {
        self.paths.known(directory)
    }

    /// The time for attributes, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }
}
