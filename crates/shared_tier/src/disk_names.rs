//! The names on the shared disk follow those in the store.
//!
//! Nodes change a name one after the other in the store, but follow on the disk in any order. What must hold: once
//! all are done, the disk has what the store has. So whoever changed the disk reads the store again and repeats the
//! change if the store has changed: the last one to change the disk has seen the last change of the store.

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::namespace::{Failure, Namespace, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::shared_disk::links_and_devices::{self, several_names};
use crate::places::tree::{FoundDirectory, Tree, candidates};
use crate::places::{Directories, DirectoryStep, Places, RenameNotes};

/// How often a change is repeated while others change the same name.
const TRIES: usize = 64;
/// How often a directory that has just moved away is looked for again.
const FAILURES_MAX: usize = 2;

/// Changes names on the shared disk.
#[derive(Debug)]
pub(crate) struct DiskNames<'a> {
    pub(crate) names: &'a Namespace,
    pub(crate) places: &'a Places,
    pub(crate) directories: &'a dyn Directories,
}

impl DiskNames<'_> {
    /// Something that is neither a file nor a directory got a name: makes it on the disk.
    pub(crate) fn made(
        &self,
        name: &EntryName,
        number: InodeNumber,
        of: &Attributes,
    ) -> Result<()> {
        self.make(name, number, of)?;
        self.settle(name, Some(number))
    }

    /// A link or special file has got a second or further name in the store: both are names of one inode on the disk, too.
    pub(crate) fn linked(
        &self,
        (from, to): (&EntryName, &EntryName),
        of: &StoredInode,
    ) -> Result<()> {
        let _kept = self.one_of_several(from, (of.inode, &of.attributes))?;
        self.settle_attributes(to, of)?;
        // What is not there is still being renamed.
        if links_and_devices::is_other((&self.above(from)?, &from.name))? {
            self.made(from, of.inode, &of.attributes)?;
        }
        self.made(to, of.inode, &of.attributes)
    }

    /// The inode of a link or special file with several names, of which one is given.
    pub(crate) fn one_of_several(
        &self,
        name: &EntryName,
        (number, of): (InodeNumber, &Attributes),
    ) -> Result<OwnedFd> {
        let (tree, above) = (&self.places.shared().tree, self.above(name)?);
        several_names::open_or_make(tree, &above, (&name.name, number.0), of)
    }

    /// The store has changed attributes of a link or special file with several names: the disk has them once all who
    /// change them are done, as the last one to change the disk has seen the last change of the store.
    pub(crate) fn settle_attributes(&self, name: &EntryName, changed: &StoredInode) -> Result<()> {
        let tree = &self.places.shared().tree;
        let mut done = changed.clone();
        for _ in 0..TRIES {
            let of = (done.inode, &done.attributes);
            several_names::bring_up_to_date(tree, &self.one_of_several(name, of)?, of.1)?;
            match self.names.lookup(name) {
                Ok(now) if now.inode == done.inode && now.attributes != done.attributes => {
                    done = now;
                }
                // Whoever has taken the name away since leaves the attributes as they are.
                Ok(_) | Err(Failure::Refused(_)) => return Ok(()),
                Err(failure) => return Err(of_names(failure)),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// A link or special file with several names has lost the last one.
    pub(crate) fn lost_all(&self, number: InodeNumber) -> Result<()> {
        several_names::forget(&self.places.shared().tree, number.0)
    }

    /// Changes a link or special file at one of its names, if it is there as the store has it. Returns whether it is: if
    /// not, the disk has yet to follow the store.
    pub(crate) fn change_other(
        &self,
        name: &EntryName,
        (number, of): (InodeNumber, &Attributes),
        change: &dyn Fn(&Tree, &OwnedFd) -> Result<()>,
    ) -> Result<bool> {
        match links_and_devices::open(&self.above(name)?, (&name.name, number.0), of)? {
            Some(fd) => change(&self.places.shared().tree, &fd).map(|()| true),
            None => Ok(false),
        }
    }

    /// Something that is no directory lost a name: if it is a link or special file, removes the name from the disk.
    pub(crate) fn lost(&self, name: &EntryName, number: InodeNumber) -> Result<()> {
        self.remove(name, number)?;
        self.settle(name, None)
    }

    /// A link or special file is about to lose its name to another one, which takes its place on the disk: removes it
    /// from the place beside that.
    pub(crate) fn lost_beside(&self, name: &EntryName, number: InodeNumber) -> Result<()> {
        let [_, beside] = candidates(&name.name, number.0);
        self.remove(&EntryName { directory: name.directory, name: beside }, number)
    }

    /// The disk could not follow when something lost a name: the name gets what the store has there by now. Returns whether it has
    /// it: if not, a file or directory is still there, which another node has yet to move away.
    pub(crate) fn follow_later(&self, name: &EntryName, number: InodeNumber) -> Result<bool> {
        let found = match self.names.lookup(name) {
            Ok(found) => Some(found).filter(|found| found.attributes.kind.is_other()),
            Err(Failure::Refused(_)) => None,
            Err(failure) => return Err(of_names(failure)),
        };
        let Some(found) = found else { return self.lost(name, number).map(|()| true) };
        if found.inode != number {
            self.lost_beside(name, number)?;
        }
        self.made(name, found.inode, &found.attributes)?;
        if self.lies_beside(name, &found.attributes)? {
            return Ok(false);
        }
        // A file or directory was at its name when it was made.
        self.lost_beside(name, found.inode).map(|()| true)
    }

    /// Whether a link or special file is not at its name, which a file or directory still has on the disk, but beside it.
    pub(crate) fn lies_beside(&self, name: &EntryName, of: &Attributes) -> Result<bool> {
        Ok(!links_and_devices::is_as_in_store((&self.above(name)?, &name.name), of)?)
    }

    /// Something that is neither a file nor a directory was renamed: renames it on the disk, in one step where
    /// only another such thing is in the way, so that it has one of the two names at each moment.
    pub(crate) fn renamed_other(
        &self,
        (from, to): (&EntryName, &EntryName),
        number: InodeNumber,
        of: &Attributes,
    ) -> Result<()> {
        let (from_above, to_above) = (self.above(from)?, self.above(to)?);
        let (from_at, to_at) = ((&from_above, &from.name), (&to_above, &to.name));
        let tree = &self.places.shared().tree;
        if !links_and_devices::rename(tree, from_at, to_at, (number.0, of))? {
            self.make(to, number, of)?;
        }
        self.settle(to, Some(number))?;
        // In an exchange the old name is right by now.
        self.settle(from, Some(number))
    }

    /// The disk has `done` under a name. If the store has something else by now, the disk is changed to match.
    fn settle(&self, name: &EntryName, mut done: Option<InodeNumber>) -> Result<()> {
        for _ in 0..TRIES {
            let found = match self.names.lookup(name) {
                Ok(found) => Some(found),
                Err(Failure::Refused(_)) => None,
                Err(failure) => return Err(of_names(failure)),
            };
            let found = found.filter(|found| found.attributes.kind.is_other());
            let now = found.as_ref().map(|found| found.inode);
            if now == done {
                return Ok(());
            }
            match (&found, done) {
                (Some(found), _) => self.make(name, found.inode, &found.attributes)?,
                (None, Some(done)) => self.remove(name, done)?,
                (None, None) => {}
            }
            done = now;
        }
        Err(Errno::BUSY.into())
    }

    /// The directory of a name on the disk.
    fn above(&self, name: &EntryName) -> Result<FoundDirectory> {
        self.places.shared().at(&self.directories.near(name.directory.0)?)
    }

    fn make(&self, name: &EntryName, number: InodeNumber, of: &Attributes) -> Result<()> {
        let (tree, above) = (&self.places.shared().tree, self.above(name)?);
        links_and_devices::make_missing(tree, &above, (&name.name, number.0), of)
    }

    fn remove(&self, name: &EntryName, number: InodeNumber) -> Result<()> {
        let (tree, above) = (&self.places.shared().tree, self.above(name)?);
        links_and_devices::remove(tree, &above, (&name.name, number.0))
    }

    /// A directory was renamed: renames it on the disk. `replaced` is the number of the directory that had the name;
    /// `notes` say where the directory is found meanwhile.
    pub(crate) fn renamed(
        &self,
        mut notes: RenameNotes,
        to: &EntryName,
        replaced: Option<InodeNumber>,
    ) -> Result<()> {
        let directory = InodeNumber(notes.number());
        let (mut to, mut replaced) = (to.clone(), replaced);
        let (mut done, mut failures) = (Err(Errno::BUSY.into()), 0);
        for _ in 0..TRIES {
            done = self.directories.near(to.directory.0).and_then(|near| {
                let replaced = replaced.map(|number| number.0);
                self.places.rename_directory(directory.0, &near, &to.name, replaced)
            });
            match self.names.lookup(&to) {
                Ok(found) if found.inode == directory => match done {
                    Ok(()) => return self.places.end_rename(&notes),
                    // Either another node renamed it first, and looks again, or a directory above it has moved.
                    Err(_) if failures < FAILURES_MAX => {
                        failures += 1;
                        done = self.places.settle_directory(directory.0);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Ok(_) | Err(Failure::Refused(_)) => replaced = None,
                Err(failure) => return Err(of_names(failure)),
            }
            let steps = match self.directories.steps(directory.0) {
                Err(error) if error.errno() == libc::ENOENT => {
                    return self.gone(&notes, &to);
                }
                steps => steps?,
            };
            let [above @ .., last] = steps.as_slice() else { return Ok(()) };
            let above = above.last().map_or(ROOT, |above| InodeNumber(above.number));
            to = EntryName { directory: above, name: last.name.clone() };
            self.places.note_rename(&mut notes, (above.0, &to.name))?;
        }
        done
    }

    /// The directory was removed while it was renamed here: whoever removed it may not have found it on the disk.
    fn gone(&self, notes: &RenameNotes, last: &EntryName) -> Result<()> {
        let mut steps = self.directories.near(last.directory.0)?;
        steps.push(DirectoryStep { number: notes.number(), name: last.name.clone() });
        self.places.remove_directory(&steps)?;
        self.places.end_rename(notes)
    }
}

#[cfg(test)]
mod tests;
