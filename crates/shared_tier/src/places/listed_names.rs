//! The names of a file that are recorded with its bytes: a file without such names has the name of its place.

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::Location;
use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use rustix::fs::{AtFlags, CWD, linkat};

use super::descriptor_path::proc_path;
use super::found_file::FoundFile;
use super::tree::{Tree, below, candidates};
use super::{DirectoryStep, Places, SHARED, own_xattrs};
use crate::entry_names::os;

/// Names that a file gets and loses, each in the directory with a number.
type Changes<'a> = (&'a [(u64, Name)], &'a [(u64, Name)]);

/// The names that are recorded with the files at these places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedNames<'a>(pub(super) &'a Places);

impl ListedNames<'_> {
    /// Records which names a file has, each in the directory with a number. Names must be recorded if there are
    /// several, or if the name differs from that of the place; a scan takes a single name that does not differ from
    /// the place.
    ///
    /// # Errors
    /// `EMLINK` if there are more than an attribute holds; as [`Places::open_file`].
    #[cfg(test)]
    pub(crate) fn set(self, place: &Location, inode: u64, names: &[(u64, Name)]) -> Result<()> {
        self.0.find(place, inode, |tree, fd, at| {
            let is_plain = match names {
                [(directory, name)] => {
                    name.as_bytes() == at.name() && at.directory_number()? == Some(*directory)
                }
                _ => false,
            };
            tree.step("listing a file's names", || {
                own_xattrs::set_names(&fd, if is_plain { &[] } else { names })
            })
        })
    }

    /// The names that are listed with a file; if there are none, the name of its place.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn of(self, place: &Location, inode: u64) -> Result<Vec<(u64, Name)>> {
        self.0.find(place, inode, |_, fd, at| listed_names(&fd, &at))
    }

    /// Adds names to a file's list, or removes them; other nodes may change other names meanwhile. A file with an
    /// empty list has the name of its place.
    ///
    /// # Errors
    /// `ENOSPC` if there are more than the file system keeps; as [`Places::open_file`].
    pub(crate) fn change(
        self,
        place: &Location,
        inode: u64,
        (add, remove): Changes<'_>,
    ) -> Result<()> {
        self.0.find(place, inode, |tree, fd, at| {
            if !add.is_empty() {
                own_xattrs::clear_other_renaming(&fd, add)?;
            }
            let mut add = add.to_vec();
            // Where it is not known whether there are others, each one counts for itself.
            if own_xattrs::listed(&fd).is_some_and(|listed| listed.is_empty()) {
                let of_place = listed_names(&fd, &at)?;
                if add.iter().all(|name| of_place.contains(name)) {
                    return Ok(());
                }
                add.extend(of_place.into_iter().filter(|name| !remove.contains(name)));
            }
            change(tree, &fd, (&add, remove))
        })
    }

    /// The same, but also lists a single name that is that of the place: nodes that have the file open find it by
    /// that.
    ///
    /// # Errors
    /// As [`ListedNames::change`].
    pub(crate) fn tell(
        self,
        place: &Location,
        inode: u64,
        (add, remove): Changes<'_>,
    ) -> Result<()> {
        self.0.find(place, inode, |tree, fd, _| change(tree, &fd, (add, remove)))
    }

    /// Notes on a file, before the disks follow, that a rename of two files has given it another name: names that are
    /// rebuilt meanwhile are those of before or after the rename. Returns the file, for
    /// [`own_xattrs::clear_renaming`].
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn note_renaming(
        self,
        place: &Location,
        inode: u64,
        renaming: &own_xattrs::TwoNames,
    ) -> Result<OwnedFd> {
        self.0.find(place, inode, |tree, fd, _| {
            tree.step("noting a rename of two files", || own_xattrs::set_renaming(&fd, renaming))?;
            Ok(fd)
        })
    }

    /// Gives a file on the shared disk a second place beside its name there, which something else is to get. The first
    /// one is removed once the store has the new one, or if the file has no name any more.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn link_beside(
        self,
        place: &Location,
        inode: u64,
        near: &[DirectoryStep],
        name: &Name,
    ) -> Result<Location> {
        let directory = near.last().map_or(ROOT.0, |step| step.number);
        let [_, beside] = candidates(name, inode);
        self.0.find(place, inode, |tree, fd, _| {
            let above = self.0.shared.find(directory, Some(near))?;
            tree.step("listing a file's name", || {
                let are_listed = !own_xattrs::names(&fd).is_empty();
                if are_listed { Ok(()) } else { own_xattrs::add_name(&fd, directory, name) }
            })?;
            // By descriptor: a name could lead to another file by now.
            let flags = AtFlags::SYMLINK_FOLLOW;
            let link = || linkat(CWD, proc_path(&fd), &above.0, os(&beside), flags);
            tree.step("linking a file", link)?;
            self.0.place(SHARED, directory, &below(above.1.as_ref(), &beside)?)
        })
    }
}

fn change(tree: &Tree, fd: &OwnedFd, (add, remove): Changes<'_>) -> Result<()> {
    tree.step("listing a file's names", || {
        let add = || {
            add.iter().try_for_each(|(directory, name)| own_xattrs::add_name(fd, *directory, name))
        };
        let remove = || {
            let mut names = remove.iter();
            names.try_for_each(|(directory, name)| own_xattrs::remove_name(fd, *directory, name))
        };
        match add() {
            // The new names may have room once the old ones are gone.
            Err(error) if own_xattrs::is_without_room(&error) => remove().and_then(|()| add()),
            added => added.and_then(|()| remove()),
        }
    })
}

fn listed_names(fd: &OwnedFd, at: &FoundFile<'_>) -> Result<Vec<(u64, Name)>> {
    let listed = own_xattrs::names(fd);
    if !listed.is_empty() {
        return Ok(listed);
    }
    let directory = at.directory_number()?;
    Ok(directory.map(|directory| (directory, Name::from(at.name()))).into_iter().collect())
}
