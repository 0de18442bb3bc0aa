//! The names on the shared disk follow those in the store.
//!
//! Nodes change a name one after the other in the store, but follow on the disk in any order. What must hold: once
//! all are done, the disk has what the store has. So whoever changed the disk reads the store again and repeats the
//! change if the store has changed: the last one to change the disk has seen the last change of the store.

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::namespace::{Failure, Namespace, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::shared_disk::links_and_devices::{
    self, Inode, OfStore, beside, keeping, proofs, several_names,
};
use crate::places::tree::{FoundDirectory, Tree, candidates};
use crate::places::{Directories, DirectoryStep, Places, RenameNotes};

/// How often a change is repeated while others change the same name.
const TRIES: usize = 64;
/// How often a directory that has just moved away is looked for again.
const FAILURES_MAX: usize = 2;

/// What a node has put under a name on the disk, or found there: a number, and the inode, if it was made, with the
/// attributes for which it was made.
#[derive(Debug)]
struct Done {
    number: InodeNumber,
    placed: Option<(Inode, Attributes)>,
}

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
        let placed = self.make(name, (number, of), None)?;
        self.settle(name, Some(Done { number, placed: placed.map(|inode| (inode, of.clone())) }))
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
        keeping::open_or_make(tree, &above, (&name.name, number.0), of)
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
        let tree = &self.places.shared().tree;
        match proofs::open(tree, &self.above(name)?, (&name.name, number.0), of)? {
            Some(fd) => change(tree, &fd).map(|()| true),
            None => Ok(false),
        }
    }

    /// A link or special file lost a name: removes it from there, if it is there. Whatever else is there, the store says
    /// what is to be.
    pub(crate) fn lost(
        &self,
        name: &EntryName,
        (number, of): (InodeNumber, Option<&Attributes>),
    ) -> Result<()> {
        let is_removed = match (of, or_gone(self.above(name))?) {
            (Some(of), Some(above)) => self.of_store(|tree| {
                links_and_devices::remove_lost(tree, &above, (&name.name, number.0), of)
            })?,
            _ => false,
        };
        self.settle(name, (!is_removed).then_some(Done { number, placed: None }))
    }

    /// A link or special file is about to lose its name to another one, which takes its place on the disk: removes it
    /// from the place beside that.
    pub(crate) fn lost_beside(&self, name: &EntryName, number: InodeNumber) -> Result<()> {
        let Some(above) = or_gone(self.above(name))? else { return Ok(()) };
        let is_removed = self.of_store(|tree| {
            links_and_devices::remove_beside(tree, &above, (&name.name, number.0))
        })?;
        if !is_removed {
            return Ok(());
        }
        // A program may have called something so meanwhile.
        let [_, name_beside] = candidates(&name.name, number.0);
        self.settle(&EntryName { directory: name.directory, name: name_beside }, None)
    }

    /// Puts all that lies beside its name at its name where that is free by now, whichever node has put it beside it: that may
    /// have died. Where it is not free, or the disk refuses this, it stays noted.
    ///
    /// # Errors
    /// If the notes cannot be read.
    pub(crate) fn put_at_names(&self) -> Result<()> {
        for noted in beside::all(&self.places.shared().tree)? {
            if let Err(error) = self.put_at_name(&noted) {
                tracing::debug!(%error, ?noted, "it stays beside its name for now");
            }
        }
        Ok(())
    }

    fn put_at_name(&self, noted: &beside::Beside) -> Result<()> {
        let (tree, number) = (&self.places.shared().tree, InodeNumber(noted.number));
        let (directory, name) = (InodeNumber(noted.name.0), noted.name.1.clone());
        let name = EntryName { directory, name };
        if !self.follow_later(&name, number)? {
            return Ok(());
        }
        beside::forget(tree, &noted.note)?;
        // Another node may have put it there meanwhile.
        match self.names.lookup(&name) {
            Ok(found) if found.attributes.kind.is_other() => {
                let of = (found.inode, &found.attributes);
                if self.lies_beside(&name, of)? {
                    beside::note(tree, (found.inode.0, &noted.name))?;
                }
                Ok(())
            }
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(of_names(failure)),
        }
    }

    /// The disk could not follow when something lost a name: the name gets what the store has there by now. Returns whether it has
    /// it: if not, a file or directory is still there, which another node has yet to move away.
    pub(crate) fn follow_later(&self, name: &EntryName, number: InodeNumber) -> Result<bool> {
        let found = match self.names.lookup(name) {
            Ok(found) => Some(found).filter(|found| found.attributes.kind.is_other()),
            Err(Failure::Refused(_)) => None,
            Err(failure) => return Err(of_names(failure)),
        };
        let Some(found) = found else { return self.lost(name, (number, None)).map(|()| true) };
        if found.inode != number {
            self.lost_beside(name, number)?;
        }
        self.made(name, found.inode, &found.attributes)?;
        if self.lies_beside(name, (found.inode, &found.attributes))? {
            return Ok(false);
        }
        // A file or directory was at its name when it was made.
        self.lost_beside(name, found.inode).map(|()| true)
    }

    /// Whether a link or special file is not at its name, which a file or directory still has on the disk, but beside it.
    fn lies_beside(
        &self,
        name: &EntryName,
        (number, of): (InodeNumber, &Attributes),
    ) -> Result<bool> {
        let (tree, above) = (&self.places.shared().tree, self.above(name)?);
        let [_, beside] = candidates(&name.name, number.0);
        let is_at = |name| proofs::is_as_in_store(tree, (&above, name), (number.0, of), None);
        Ok(!is_at(&name.name)? && links_and_devices::is_other((&above, &beside))?)
    }

    /// Something that is neither a file nor a directory was renamed: renames it on the disk, in one step where
    /// only another such thing is in the way, so that it has one of the two names at each moment.
    pub(crate) fn renamed_other(
        &self,
        (from, to): (&EntryName, &EntryName),
        number: InodeNumber,
        of: &Attributes,
    ) -> Result<()> {
        // A directory that is gone has left no name in the store; the other name is still to be put right.
        let (from_above, to_above) = (or_gone(self.above(from))?, or_gone(self.above(to))?);
        let (mut is_renamed, mut placed) = (false, None);
        if let (Some(from_above), Some(to_above)) = (&from_above, &to_above) {
            let (from, to) = ((from_above, &from.name), (to_above, &to.name));
            is_renamed =
                self.of_store(|tree| links_and_devices::rename(tree, from, to, (number.0, of)))?;
        }
        if !is_renamed && to_above.is_some() {
            placed = self.make(to, (number, of), None)?.map(|inode| (inode, of.clone()));
        }
        self.settle(to, Some(Done { number, placed }))?;
        // In an exchange the old name is right by now.
        self.settle(from, Some(Done { number, placed: None }))
    }

    /// The second of two things that are neither files nor directories, and were exchanged: the first one was renamed on the
    /// disk, and has left its name to this one, from which it has that of this one.
    pub(crate) fn exchanged_other(
        &self,
        (from, to): (&EntryName, &EntryName),
        number: InodeNumber,
        of: &Attributes,
    ) -> Result<()> {
        self.made(to, number, of)?;
        self.settle(from, Some(Done { number, placed: None }))
    }

    /// The disk has `done` under a name. If the store has something else by now, or the disk has, the disk is changed to
    /// match.
    fn settle(&self, name: &EntryName, mut done: Option<Done>) -> Result<()> {
        for _ in 0..TRIES {
            let found = match self.names.lookup(name) {
                Ok(found) => Some(found),
                Err(Failure::Refused(_)) => None,
                Err(failure) => return Err(of_names(failure)),
            };
            let Some(found) = found.filter(|found| found.attributes.kind.is_other()) else {
                let Some(gone) = done.take() else { return Ok(()) };
                self.remove(name, gone.number)?;
                continue;
            };
            let (number, of) = (found.inode, &found.attributes);
            if found.links > 1 {
                self.one_of_several(name, (number, of))?;
            }
            if let Some(other) = done.take_if(|done| done.number != number) {
                self.lost_beside(name, other.number)?;
            }
            let placed = done.and_then(|done| done.placed).filter(|(_, for_these)| for_these == of);
            let Some(made) = self.make(name, (number, of), placed.map(|(inode, _)| inode))? else {
                return Ok(());
            };
            done = Some(Done { number, placed: Some((made, of.clone())) });
        }
        Err(Errno::BUSY.into())
    }

    /// The directory of a name on the disk.
    fn above(&self, name: &EntryName) -> Result<FoundDirectory> {
        self.places.shared().at(&self.directories.near(name.directory.0)?)
    }

    /// Makes what is not there. Returns what was made.
    fn make(
        &self,
        name: &EntryName,
        (number, of): (InodeNumber, &Attributes),
        placed: Option<Inode>,
    ) -> Result<Option<Inode>> {
        let above = self.above(name)?;
        self.of_store(|tree| {
            links_and_devices::make_missing(tree, &above, (&name.name, number.0), of, placed)
        })
    }

    /// Changes the shared disk, knowing what else the store has.
    fn of_store<T>(&self, change: impl FnOnce(OfStore<'_>) -> Result<T>) -> Result<T> {
        let has = |directory: u64, name: &Name| {
            let name = EntryName { directory: InodeNumber(directory), name: name.clone() };
            match self.names.lookup(&name) {
                Ok(found) => Ok(found.attributes.kind.is_other()),
                Err(Failure::Refused(_)) => Ok(false),
                Err(failure) => Err(of_names(failure)),
            }
        };
        change((&self.places.shared().tree, &has))
    }

    fn remove(&self, name: &EntryName, number: InodeNumber) -> Result<()> {
        let tree = &self.places.shared().tree;
        let Some(above) = or_gone(self.above(name))? else { return Ok(()) };
        links_and_devices::remove(tree, &above, &name.name)?;
        self.lost_beside(name, number)
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

/// `None` where the store has no such directory any more.
fn or_gone(above: Result<FoundDirectory>) -> Result<Option<FoundDirectory>> {
    match above {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        above => above.map(Some),
    }
}

#[cfg(test)]
mod tests;
