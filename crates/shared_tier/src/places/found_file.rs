//! Where a file was found: below an open directory. Other nodes may rename and exchange the directories above it at any moment,
//! and then its path leads elsewhere, maybe to another file with its name. So nothing is removed or synced by its path.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::ROOT;
use halocline_os::beneath;
use halocline_os::error::Result;
use rustix::fs::{AtFlags, Mode, OFlags, fsync, unlinkat};

use super::own_xattrs;
use super::tree::{FoundDirectory, Tree, below_path};

/// The place of a file.
#[derive(Debug)]
pub(crate) struct FoundFile<'a> {
    tree: &'a Tree,
    base: OwnedFd,
    is_root: bool,
    below: &'a RelativePath,
}

impl<'a> FoundFile<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        (base, path): FoundDirectory,
        below: &'a RelativePath,
    ) -> Result<Self> {
        // Nothing of ours is a file of the tree.
        below_path(path.as_ref(), below)?;
        Ok(Self { tree, base, is_root: path.is_none(), below })
    }

    /// Opens what is there, with [`OFlags::PATH`].
    pub(super) fn look(&self) -> rustix::io::Result<OwnedFd> {
        beneath::open(&self.base, self.below.as_path(), OFlags::PATH, Mode::empty())
    }

    /// Its last name there.
    pub(super) fn name(&self) -> &[u8] {
        self.below.last()
    }

    /// Removes it.
    pub(super) fn remove(&self) -> Result<()> {
        self.tree.step("removing a name", || {
            let (above, name) = beneath::parent(self.base.as_fd(), self.below.as_path())?;
            unlinkat(&above, name, AtFlags::empty())
        })
    }

    fn directory(&self) -> &Path {
        self.below.as_path().parent().unwrap_or(Path::new(""))
    }

    /// Makes its directory durable.
    pub(super) fn sync_directory(&self) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = beneath::open(&self.base, self.directory(), flags, Mode::empty())?;
        self.tree.step("syncing a directory", || fsync(&directory))
    }

    /// The number of its directory, if that has one.
    pub(super) fn directory_number(&self) -> Result<Option<u64>> {
        let directory = self.directory();
        if self.is_root && directory.as_os_str().is_empty() {
            return Ok(Some(ROOT.0));
        }
        let directory = beneath::open(&self.base, directory, OFlags::PATH, Mode::empty())?;
        Ok(own_xattrs::number(&directory, own_xattrs::DIRECTORY))
    }
}
