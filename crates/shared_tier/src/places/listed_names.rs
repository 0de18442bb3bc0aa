//! The names of a file, as they are kept with its bytes: one of which none is listed has that of its place.

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::Name;
use halocline_os::error::Result;

use super::tree::Tree;
use super::{Place, Places, own_xattrs};

/// Names that a file gets and loses, each in the directory with a number.
type Changes<'a> = (&'a [(u64, Name)], &'a [(u64, Name)]);

/// The names that are kept with the files of these places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedNames<'a>(pub(super) &'a Places);

impl ListedNames<'_> {
    /// Keeps with a file which names it has, each in the directory with a number. All names have to be said where there are several, or
    /// where the name is not that of the place; a single one that is is taken from there by a scan.
    ///
    /// # Errors
    /// `EMLINK` if there are more than an attribute holds; as [`Places::open_file`].
    #[cfg(test)]
    pub(crate) fn set(self, place: &Place, inode: u64, names: &[(u64, Name)]) -> Result<()> {
        self.0.find(place, inode, |tree, fd, path| {
            let is_plain = match names {
                [(directory, name)] => {
                    name.as_bytes() == path.last() && tree.parent_number(&path)? == Some(*directory)
                }
                _ => false,
            };
            tree.step("listing a file's names", || {
                own_xattrs::set_names(&fd, if is_plain { &[] } else { names })
            })
        })
    }

    /// The names that are listed with a file, and if there are none, that of its place.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn of(self, place: &Place, inode: u64) -> Result<Vec<(u64, Name)>> {
        self.0.find(place, inode, |tree, fd, path| listed_names(tree, &fd, &path))
    }

    /// Lists names with a file, or takes them off its list; other nodes may change other ones meanwhile. A file of which no name is
    /// listed has that of its place.
    ///
    /// # Errors
    /// `ENOSPC` if there are more than the file system keeps; as [`Places::open_file`].
    pub(crate) fn change(
        self,
        place: &Place,
        inode: u64,
        (add, remove): Changes<'_>,
    ) -> Result<()> {
        self.0.find(place, inode, |tree, fd, path| {
            if !add.is_empty() {
                own_xattrs::clear_other_renaming(&fd, add)?;
            }
            let mut add = add.to_vec();
            if own_xattrs::names(&fd).is_empty() {
                let of_place = listed_names(tree, &fd, &path)?;
                if add.iter().all(|name| of_place.contains(name)) {
                    return Ok(());
                }
                add.extend(of_place.into_iter().filter(|name| !remove.contains(name)));
            }
            change(tree, &fd, (&add, remove))
        })
    }

    /// The same, and lists them also where the only name is that of the place: nodes that have the file open find it by that.
    ///
    /// # Errors
    /// As [`ListedNames::change`].
    pub(crate) fn tell(self, place: &Place, inode: u64, (add, remove): Changes<'_>) -> Result<()> {
        self.0.find(place, inode, |tree, fd, _| change(tree, &fd, (add, remove)))
    }
}

fn change(tree: &Tree, fd: &OwnedFd, (add, remove): Changes<'_>) -> Result<()> {
    tree.step("listing a file's names", || {
        add.iter().try_for_each(|(directory, name)| own_xattrs::add_name(fd, *directory, name))?;
        remove
            .iter()
            .try_for_each(|(directory, name)| own_xattrs::remove_name(fd, *directory, name))
    })
}

fn listed_names(tree: &Tree, fd: &OwnedFd, path: &RelativePath) -> Result<Vec<(u64, Name)>> {
    let listed = own_xattrs::names(fd);
    if !listed.is_empty() {
        return Ok(listed);
    }
    let directory = tree.parent_number(path)?;
    Ok(directory.map(|directory| (directory, Name::from(path.last()))).into_iter().collect())
}
