//! Files on the disk below get the names that their links have on the SSD.
//!
//! A file may lie where a directory or another file goes: directories above it were renamed since, and others have
//! their names. So all files that do not lie at their names first leave the tree: they are renamed into a private
//! directory. There each is found by the inode number of its link, until all its names are made. What must hold: a
//! link is removed once the file has its name, and the file leaves the private directory once it has all of them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::RelativePath;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;

use super::{OnSsd, stopped_at};
use crate::places::adoption_mark::ADOPTING;
use crate::places::descriptor_path::proc_path;
use crate::places::own_xattrs;
use crate::places::tree::Tree;
use crate::repair::scan::Item;

/// A name of a file below, and the path where the file is or was.
pub(super) type NameOfFile<'a> = (OnSsd<'a>, RelativePath);

/// Opens a file below by one of its links, with [`OFlags::PATH`]; `None` if it is not there.
///
/// # Errors
/// Those of `open(2)`.
pub(super) fn open(shared: &Tree, link: &Item, place: &RelativePath) -> Result<Option<OwnedFd>> {
    if let Some(waiting) = open_waiting(shared, link)? {
        return Ok(Some(waiting));
    }
    match shared.look(Some(place)) {
        Ok(fd) if stat_descriptor(&fd)?.kind() == libc::S_IFREG => Ok(Some(fd)),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn open_waiting(shared: &Tree, link: &Item) -> Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&shared.private, format!("{ADOPTING}/{}", link.key.1), flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Gives files below their names.
pub(super) struct FilesBelow<'a> {
    ssd: &'a Tree,
    shared: &'a Tree,
    waiting: PrivateDir,
}

impl<'a> FilesBelow<'a> {
    pub(super) fn new(ssd: &'a Tree, shared: &'a Tree) -> Result<Self> {
        let waiting = shared.private.sub(ADOPTING)?;
        Ok(Self { ssd, shared, waiting })
    }

    /// Takes those out of the tree that do not lie at their names.
    pub(super) fn take_out(&self, names: &[NameOfFile<'_>]) -> Result<()> {
        let mut elsewhere = BTreeMap::new();
        for (item, place) in names.iter().filter(|(item, place)| item.path() != *place) {
            elsewhere.insert(item.key.1, (item, place));
        }
        for (link, (item, place)) in elsewhere {
            if open_waiting(self.shared, item)?.is_none() {
                let taken = self.shared.rename_to(place, &self.waiting, &link.to_string());
                taken.map_err(|error| stopped_at(self.shared, &place.to_string(), error))?;
            }
        }
        Ok(())
    }

    /// Gives a file one of its names, and removes the link on the SSD.
    pub(super) fn name(&self, (item, place): &NameOfFile<'_>) -> Result<()> {
        let path = item.path();
        let fd = open(self.shared, item, place)?.ok_or(Errno::NOENT)?;
        clear_own_xattrs(self.shared, &fd)?;
        if open_waiting(self.shared, item)?.is_some() {
            let to = self.shared.parent_of(&path)?;
            let name = std::ffi::OsStr::from_bytes(item.name.as_bytes());
            let link = || linkat(CWD, proc_path(&fd), &to, name, AtFlags::SYMLINK_FOLLOW);
            match self.shared.step("linking a file", link) {
                // A run that was killed has done it.
                Err(error) if error.errno() == libc::EEXIST => {
                    let there = self.shared.look_at_link(&path)?;
                    if stat_descriptor(&there)?.key() != stat_descriptor(&fd)?.key() {
                        return Err(error);
                    }
                }
                done => done?,
            }
        }
        self.ssd.unlink(&path, AtFlags::empty())
    }

    /// Ends the wait: all of them have their names.
    pub(super) fn end(&self) -> Result<()> {
        for name in self.waiting.names()? {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(&self.waiting, &name, flags, Mode::empty())?;
            if stat_descriptor(&fd)?.raw.st_nlink < 2 {
                return Err(Error::invalid(
                    format!("{}: no link leads to it", self.waiting.path().join(&name).display()),
                    "move it to where it belongs, and begin again",
                ));
            }
            self.shared.step("removing a name", || self.waiting.remove(&name))?;
        }
        Ok(())
    }
}

/// Removes the own attributes, whether from the tier of one node or from anybody else: numbers are given anew.
pub(super) fn clear_own_xattrs(tree: &Tree, fd: &OwnedFd) -> Result<()> {
    use own_xattrs::{ARRIVING, COPIED, INODE, LEAVING};
    tree.step("taking our attributes away", || {
        let all = [INODE, LEAVING, ARRIVING, COPIED];
        all.into_iter().try_for_each(|own| own_xattrs::clear(fd, own))?;
        own_xattrs::clear_renaming(fd)?;
        own_xattrs::clear_from(fd)?;
        own_xattrs::set_names(fd, &[])
    })
}
