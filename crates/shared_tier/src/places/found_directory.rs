//! Where a directory was found: at a name in an open directory. Other nodes may rename and exchange the directories above it at
//! any moment, and then its path leads elsewhere, maybe to another directory with its name. So nothing is removed or renamed
//! by its path (as [`super::found_file`] has it for files).

use std::os::fd::OwnedFd;
use std::path::Path;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::Name;
use halocline_os::beneath;
use halocline_os::error::Result;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::own_xattrs;
use super::tree::{FoundDirectory, Tree, below};
use crate::entry_names::os;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct DirectoryPlace {
    above: OwnedFd,
    name: Name,
}

/// Whether the directory with a number is at a name.
pub(crate) fn is_at(above: &OwnedFd, name: &Name, number: u64) -> Result<bool> {
    match beneath::open(above, Path::new(os(name)), DIRECTORY, Mode::empty()) {
        Ok(fd) => Ok(own_xattrs::number(&fd, own_xattrs::DIRECTORY) == Some(number)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a directory that was just found. One that is not empty, or gone, is no error.
///
/// # Errors
/// Those of `rmdir(2)`.
pub(super) fn remove_if_empty(tree: &Tree, found: &FoundDirectory, number: u64) -> Result<()> {
    let Some(place) = DirectoryPlace::of(found, number)? else { return Ok(()) };
    match place.remove(tree) {
        Err(error) if matches!(error.errno(), libc::ENOENT | libc::ENOTEMPTY) => Ok(()),
        done => done,
    }
}

impl DirectoryPlace {
    /// Where a directory that was just found is: in the one that it lies in now, whatever has become of its path. `None` if
    /// it has another name by now, or is gone.
    pub(crate) fn of((fd, path): &FoundDirectory, number: u64) -> Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let above = match openat(fd, "..", DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            above => above?,
        };
        let name = Name::from(path.last());
        Ok(is_at(&above, &name, number)?.then_some(Self { above, name }))
    }

    /// Removes it, if it is empty.
    pub(crate) fn remove(&self, tree: &Tree) -> Result<()> {
        tree.step("removing a name", || unlinkat(&self.above, os(&self.name), AtFlags::REMOVEDIR))
    }

    /// Renames it to a free name in another directory; returns the path that it has there. If another directory had its name by
    /// then, that goes back.
    ///
    /// # Errors
    /// `EBUSY` in that case; `EEXIST` if the name is not free.
    pub(crate) fn rename(
        &self,
        tree: &Tree,
        (to, to_path): &FoundDirectory,
        (name, number): (&Name, u64),
    ) -> Result<RelativePath> {
        let path = below(to_path.as_ref(), name)?;
        tree.rename_between((&self.above, &self.name), (to, name))?;
        if is_at(to, name, number)? {
            return Ok(path);
        }
        tree.rename_between((to, name), (&self.above, &self.name))?;
        Err(Errno::BUSY.into())
    }
}
