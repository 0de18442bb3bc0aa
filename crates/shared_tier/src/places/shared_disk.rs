//! Directories on the shared disk: they are renamed as in the store, and identified by their numbers.
//!
//! What must hold: a directory on the disk is always either where the store has it, or where a note ([`notes`]) says
//! that it may be. So it is found, even if a rename is under way or its node died. For that:
//! - A rename notes the directory's old and new position before the store's rename, and each further position before
//!   the disk's. A directory is moved to the position that the store had at that moment.
//! - Notes are removed by their makers, once the disk has had the directory where the store has it. A later change of
//!   the store notes the position that the store had before, which is where the directory is.

mod exchanges;
pub(crate) mod links_and_devices;
mod notes;
mod remembered_paths;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::{Name, ROOT};
use halocline_os::beneath;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::shown_name::shown_name;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::directories::up_to_known;
use super::found_directory::{DirectoryPlace, is_at};
use super::tree::directory_names::{record, without_number};
use super::tree::{FoundDirectory, Owner, Tree, candidates, child, find_below};
use super::{Directories, DirectoryStep, number_of, own_xattrs};
use crate::remedies::CHECK;
use notes::{Noted, Notes};
use remembered_paths::RememberedPaths;

pub(crate) use exchanges::exchange;
pub(crate) use notes::Position;
pub(crate) use notes::RenameNotes;
#[cfg(any(test, fuzzing))]
pub(crate) use notes::fuzzing;

/// How often a directory is looked for while others rename it: two seconds in all.
const TRIES: u32 = 44;
/// How many of these tries are made at once: each one fails only because another node has renamed it again.
const AT_ONCE: u32 = 4;
/// The pause after that; it doubles each time, up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// How many notes are followed to one directory, if each leads into a directory that is being renamed itself.
const NOTES_MAX: u32 = 16;
/// How often we try to put a directory where others keep renaming it to.
const SETTLED_AFTER: u32 = 8;

/// The shared disk.
#[derive(Debug)]
pub(crate) struct SharedDisk {
    pub(crate) tree: Tree,
    notes: Notes,
    directories: Arc<dyn Directories>,
    pub(super) clock: Clock,
    /// Where directories were last seen. Entries may be stale: the number is compared at each use.
    remembered: Mutex<RememberedPaths>,
}

impl SharedDisk {
    pub(crate) fn new(
        tree: Tree,
        node: &str,
        directories: Arc<dyn Directories>,
        clock: &Clock,
    ) -> Result<Self> {
        let notes = Notes::new(&tree, node)?;
        let (clock, remembered) = (clock.clone(), Mutex::default());
        Ok(Self { tree, notes, directories, clock, remembered })
    }

    /// The directory to which these are the steps from the root.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn at(&self, near: &[DirectoryStep]) -> Result<FoundDirectory> {
        self.find(number_of(near), Some(near))
    }

    /// The directory with a number. `near` are the steps to it, if the caller knows them.
    ///
    /// # Errors
    /// `ENOENT` if the store has no such directory; `EIO` if the store has it and the disk has not.
    pub(crate) fn find(
        &self,
        number: u64,
        near: Option<&[DirectoryStep]>,
    ) -> Result<FoundDirectory> {
        if number == ROOT.0 {
            return Ok((self.tree.look(None)?, None));
        }
        if let Some(found) = self.look(number, near)? {
            return Ok(found);
        }
        // Meanwhile others may rename it, or one of its parents, again and again.
        for again in 0..TRIES {
            if let Some(slow) = again.checked_sub(AT_ONCE) {
                self.clock.sleep(PAUSE.saturating_mul(1 << slow.min(16)).min(PAUSE_MAX));
            }
            if let Some(found) = self.below_known(number)? {
                return Ok(found);
            }
            let steps = self.directories.steps(number)?;
            if let Some(found) = self.look(number, Some(&steps))? {
                return Ok(found);
            }
            let noted = self.notes.all()?;
            if let Some(found) = self.by_notes(number, &steps, &noted, NOTES_MAX)? {
                return Ok(found);
            }
        }
        Err(Error::Unreached {
            what: format!(
                "{}: directory {number} of the store is not on the shared disk",
                self.tree.path.display()
            ),
            remedy: format!("have them compared: {CHECK}"),
        })
    }

    fn look(&self, number: u64, near: Option<&[DirectoryStep]>) -> Result<Option<FoundDirectory>> {
        let remembered = self.remembered.lock().of(number);
        if let Some(path) = remembered
            && let Some(fd) = self.tree.directory_at(Some(&path), number)?
        {
            return Ok(Some((fd, Some(path))));
        }
        let Some(near) = near.filter(|near| near.last().is_some_and(|step| step.number == number))
        else {
            return Ok(None);
        };
        let found = self.tree.find(near)?;
        if let Some((_, Some(path))) = &found {
            self.remember(number, path.clone());
        }
        Ok(found)
    }

    /// Finds a directory below its lowest ancestor whose path is remembered. So the store is not asked for the whole way
    /// to each directory of a deep tree.
    ///
    /// # Errors
    /// `ENOENT` if the store has no such directory.
    fn below_known(&self, number: u64) -> Result<Option<FoundDirectory>> {
        let known = &mut |above: u64| match above {
            _ if above == ROOT.0 => Ok(Some((self.tree.look(None)?, None))),
            above => self.look(above, None),
        };
        let Some((above, steps)) = up_to_known(&*self.directories, number, known)? else {
            return Ok(None);
        };
        let found = match above.1 {
            None => self.tree.find(&steps)?,
            Some(_) => find_below(above, &steps)?,
        };
        if let Some((_, Some(path))) = &found {
            self.remembered.lock().add_on_way(path, &steps);
        }
        Ok(found)
    }

    pub(crate) fn remember(&self, number: u64, path: RelativePath) {
        self.remembered.lock().add(number, path);
    }

    /// Finds a directory that is being renamed, or is below one. `steps` are those in the store.
    fn by_notes(
        &self,
        number: u64,
        steps: &[DirectoryStep],
        noted: &Noted<'_>,
        notes_max: u32,
    ) -> Result<Option<FoundDirectory>> {
        if let Some(found) = self.at_a_note(number, noted, notes_max)? {
            return Ok(Some(found));
        }
        // Its lowest ancestor with a note.
        for (at, step) in steps.iter().enumerate().rev() {
            if step.number != number
                && let Some(above) = self.at_a_note(step.number, noted, notes_max)?
                && let Some(found) = find_below(above, &steps[at + 1..])?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a directory at the positions in its notes.
    fn at_a_note(
        &self,
        number: u64,
        noted: &Noted<'_>,
        notes_max: u32,
    ) -> Result<Option<FoundDirectory>> {
        let Some(notes_max) = notes_max.checked_sub(1) else { return Ok(None) };
        for (directory, name) in noted.positions(number)? {
            let above = if directory == ROOT.0 {
                Some((self.tree.look(None)?, None))
            } else {
                self.without_waiting(directory, noted, notes_max)?
            };
            let step = DirectoryStep { number, name };
            if let Some(above) = above
                && let Some(found) = child(&above, &step)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn without_waiting(
        &self,
        number: u64,
        noted: &Noted<'_>,
        notes_max: u32,
    ) -> Result<Option<FoundDirectory>> {
        if let Some(found) = self.look(number, None)? {
            return Ok(Some(found));
        }
        match self.directories.steps(number) {
            // The store no longer has it.
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
            Ok(steps) => match self.look(number, Some(&steps))? {
                Some(found) => Ok(Some(found)),
                None => self.by_notes(number, &steps, noted, notes_max),
            },
        }
    }

    /// Makes a directory.
    pub(crate) fn make(
        &self,
        near: &[DirectoryStep],
        step: &DirectoryStep,
        owner: Owner,
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        let (_, path) = self.tree.make_directory(&above, step, owner)?;
        if let Some(path) = path {
            self.remember(step.number, path);
        }
        Ok(())
    }

    /// Called before a rename in the store, so that the directory is found afterwards, whatever happens.
    pub(crate) fn begin_rename(&self, number: u64, positions: &[Position]) -> Result<RenameNotes> {
        let mut notes = self.notes.begin(number);
        self.notes.add(&self.tree, &mut notes, positions)?;
        Ok(notes)
    }

    /// The same for a further position, to which the store has renamed it meanwhile.
    pub(crate) fn note(&self, notes: &mut RenameNotes, position: Position) -> Result<()> {
        self.notes.add(&self.tree, notes, &[position])
    }

    /// Removes the notes: the rename was not made, or the disk has followed.
    pub(crate) fn end_rename(&self, notes: &RenameNotes) -> Result<()> {
        self.notes.end(&self.tree, notes)
    }

    /// Follows the store's rename on the disk. `replaced` is the number of the empty directory that had the name.
    pub(crate) fn rename(
        &self,
        number: u64,
        near: &[DirectoryStep],
        name: &Name,
        replaced: Option<u64>,
    ) -> Result<()> {
        let to = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(to, Some(near))?;
        if let Some(replaced) = replaced {
            let gone = DirectoryStep { number: replaced, name: name.clone() };
            self.remove(replaced, &[near, &[gone]].concat())?;
        }
        let there = DirectoryStep { number, name: name.clone() };
        if let Some((fd, Some(path))) = child(&above, &there)? {
            record(&self.tree, &fd, &there, path.last())?;
            // Another node found the rename unfinished, and completed it.
            self.remember(number, path);
            return Ok(());
        }
        self.put_into(&above, &there)
    }

    /// Renames a directory, wherever it is, to a name in another one. Notes for both positions exist.
    fn put_into(&self, above: &FoundDirectory, step: &DirectoryStep) -> Result<()> {
        let found = self.find(step.number, None)?;
        let from = DirectoryPlace::of(&found, step.number)?.ok_or(Errno::BUSY)?;
        let mut put = Err(Errno::EXIST.into());
        for name in candidates(&step.name, step.number) {
            record(&self.tree, &found.0, step, name.as_bytes())?;
            if is_at(&above.0, &name, step.number)? {
                // It is there by now, maybe beside something else that has its name.
                return Ok(());
            }
            put = from.rename(&self.tree, above, (&name, step.number));
            if !put.as_ref().is_err_and(|error: &Error| error.errno() == libc::EEXIST) {
                break;
            }
        }
        put.map(|path| self.remember(step.number, path))
    }

    /// Moves a directory to its position in the store, after its parents, even if another node is at it; removes one
    /// that the store does not have.
    pub(crate) fn settle(&self, number: u64) -> Result<()> {
        for _ in 0..SETTLED_AFTER {
            let steps = match self.directories.steps(number) {
                Err(error) if error.errno() == libc::ENOENT => return self.remove(number, &[]),
                steps => steps?,
            };
            let put = self.put_all(&steps)?;
            if self.directories.steps(number).is_ok_and(|now| now == steps) {
                return put.iter().try_for_each(|notes| self.end_rename(notes));
            }
        }
        Err(Errno::BUSY.into())
    }

    /// From the root downwards, so that no directory is put below itself.
    fn put_all(&self, steps: &[DirectoryStep]) -> Result<Vec<RenameNotes>> {
        let (mut above, mut directory): (FoundDirectory, _) =
            ((self.tree.look(None)?, None), ROOT.0);
        let mut put = Vec::new();
        for step in steps {
            above = if let Some(found) = child(&above, step)? {
                let shown = found.1.as_ref().map_or(&[][..], RelativePath::last);
                record(&self.tree, &found.0, step, shown)?;
                found
            } else {
                put.push(self.begin_rename(step.number, &[(directory, step.name.clone())])?);
                self.put_into(&above, step)?;
                child(&above, step)?.ok_or(Errno::BUSY)?
            };
            directory = step.number;
        }
        Ok(put)
    }

    /// Settles this node's unfinished renames. Notes in `before` are removed: the store's part of those renames is
    /// done by now, if it ever will be. Returns the other notes.
    pub(crate) fn finish_renames(&self, before: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut left = BTreeSet::new();
        let mut notes = self.notes.left()?;
        // Directories that are gone come first, which frees their names.
        notes.sort_by_cached_key(|(number, _)| self.directories.steps(*number).is_ok());
        for (number, note) in notes {
            self.settle(number)?;
            if before.contains(&note) {
                self.notes.remove(&self.tree, &note)?;
            } else {
                left.insert(note);
            }
        }
        Ok(left)
    }

    /// Removes a directory. One that still holds something without a name in the store stays, for a check.
    pub(crate) fn remove(&self, number: u64, near: &[DirectoryStep]) -> Result<()> {
        let found = match self.look(number, Some(near))? {
            Some(found) => Some(found),
            None => match self.in_its_parent(near)? {
                Some(found) => Some(found),
                None => self.at_a_note(number, &self.notes.all()?, NOTES_MAX)?,
            },
        };
        if let Some(found) = found {
            self.remove_found(&found, number)?;
        }
        self.remembered.lock().remove(number);
        Ok(())
    }

    /// The directory at the end of these steps, even if the steps above it are stale.
    fn in_its_parent(&self, near: &[DirectoryStep]) -> Result<Option<FoundDirectory>> {
        let Some((last, above)) = near.split_last() else { return Ok(None) };
        match self.find(above.last().map_or(ROOT.0, |step| step.number), None) {
            Ok(above) => child(&above, last),
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove_found(&self, found: &FoundDirectory, number: u64) -> Result<()> {
        let Some(place) = DirectoryPlace::of(found, number)? else { return Ok(()) };
        let mut removed = place.remove(&self.tree);
        let is_full = |removed: &Result<()>| {
            removed
                .as_ref()
                .is_err_and(|error| matches!(error.errno(), libc::ENOTEMPTY | libc::EEXIST))
        };
        // Directories that were renamed to elsewhere in the store may still be here on the disk.
        if is_full(&removed) && self.settle_children(&found.0)? {
            removed = place.remove(&self.tree);
        }
        match removed {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            removed if is_full(&removed) => {
                let path = found.1.as_ref().map(RelativePath::as_bytes).unwrap_or_default();
                let directory = shown_name(without_number(path, number).unwrap_or(path));
                tracing::warn!(
                    %directory,
                    "a directory that was removed has something left in it on the shared disk; \
                     {CHECK} says what"
                );
                Ok(())
            }
            other => other,
        }
    }

    /// Settles the directories in it; returns whether there were any with numbers.
    fn settle_children(&self, found: &OwnedFd) -> Result<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(found, ".", flags, Mode::empty())?;
        let mut are_there = false;
        for name in beneath::names(&dir)? {
            let fd = beneath::open(&dir, Path::new(&name), OFlags::PATH, Mode::empty());
            if let Ok(Some(number)) = fd.map(|fd| own_xattrs::number(&fd, own_xattrs::DIRECTORY)) {
                self.settle(number)?;
                are_there = true;
            }
        }
        Ok(are_there)
    }

    /// The descriptor of a directory, by number.
    pub(crate) fn descriptor(&self, number: u64) -> Result<OwnedFd> {
        let (fd, _) = self.find(number, None)?;
        debug_assert!(
            number == ROOT.0 || own_xattrs::number(&fd, own_xattrs::DIRECTORY) == Some(number)
        );
        Ok(fd)
    }
}
