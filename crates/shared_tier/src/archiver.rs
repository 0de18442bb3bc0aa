//! Makes clean copies of files on this node's own SSD (`docs/decisions/0081-clean-copies-that-nodes-share.md`).
//!
//! A copy is announced in the store by a mark without a time; the first open for writing takes it away, and those for reading
//! leave it. What must hold: the store has the whole mark of a copy before the copy has its final name, and gets it only if
//! the announcement still stands: then nobody has opened the file for writing since before it was copied. A writer that took
//! an announced copy away before the mark was whole finds another mark than the one that it ends, and begins again.

use std::ops::ControlFlow;

use halocline_cluster::names::attributes::{Attributes, CleanCopy, Kind, Location, Open};
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use rustix::io::Errno;

use crate::errors::of_names;
use crate::moves::{IsOver, is_same};
use crate::places::copies::{Copies, CopyName, mark};
use crate::places::{FileMove, Places, SSD};
use crate::stat_conversion::take_over;

/// The outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Archived {
    /// So many bytes were copied.
    Done(u64),
    /// It has a copy already.
    Already,
    /// Somebody writes it, moves it or has changed it meanwhile, or it has several names.
    Busy,
    /// It has none, and there is no room for one.
    NoRoom,
    /// It is gone, or no longer on this SSD.
    Gone,
}

/// Makes copies for one node.
#[derive(Debug)]
pub(crate) struct Archiver<'a> {
    pub(crate) names: &'a Namespace,
    pub(crate) places: &'a Places,
}

impl Archiver<'_> {
    /// Makes a clean copy of a file, if the shared disk `has_room` for it; `goes_on` is told of each piece that was copied.
    ///
    /// # Errors
    /// If the store or a disk fails.
    pub(crate) fn archive(
        &self,
        name: &EntryName,
        inode: InodeNumber,
        (is_over, has_room): (IsOver<'_>, bool),
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Archived> {
        let found = match self.names.lookup(name) {
            Ok(found) if found.inode == inode => found,
            Ok(_) | Err(Failure::Refused(_)) => return Ok(Archived::Gone),
            Err(failure) => return Err(of_names(failure)),
        };
        if found.attributes.kind != Kind::File || !self.is_here(found.attributes.location.as_ref())
        {
            return Ok(Archived::Gone);
        }
        if Copies::of(self.places).standing_for(&found.attributes, inode.0)?.is_some() {
            return Ok(Archived::Already);
        }
        if !has_room {
            return Ok(Archived::NoRoom);
        }
        if found.links > 1 {
            return Ok(Archived::Busy);
        }
        let number = self.names.number_of_copy().map_err(of_names)?.0;
        let Some(before) = self.announce((name, inode), number, is_over)? else {
            return Ok(Archived::Busy);
        };
        let Some(place) = &before.location else { return Ok(Archived::Gone) };
        let done = self.copy_and_mark((name, inode), (&before, place), number, is_over, goes_on);
        let is_done = matches!(done, Ok(Archived::Done(_)));
        // If the store's answer was lost, the copy stays under the name that nobody uses.
        if !is_done && !matches!(done, Err(Error::Cluster { .. })) {
            self.give_up((name, inode), place, number);
        }
        match done {
            // A later round finds it again.
            Err(error) if error.errno() == libc::ECANCELED || error.is_leased() => {
                Ok(Archived::Busy)
            }
            done => done,
        }
    }

    fn is_here(&self, place: Option<&Location>) -> bool {
        place.is_some_and(|place| {
            place.tier == SSD && place.node.as_deref() == Some(self.places.node())
        })
    }

    /// Announces the copy. `None` if the file cannot be copied now.
    fn announce(
        &self,
        at: (&EntryName, InodeNumber),
        number: u64,
        is_over: IsOver<'_>,
    ) -> Result<Option<Attributes>> {
        let announced = self.names.attributes().update_of(at, |attributes| {
            let is_written = attributes.many_opens
                || attributes.opens.iter().any(|open| may_write(open, is_over));
            let is_moved = attributes.writer.is_some_and(|by| !is_over(by));
            if is_written || is_moved || !self.is_here(attributes.location.as_ref()) {
                return Err(Failure::Refused(Errno::BUSY));
            }
            attributes.copy = Some(announcement(number));
            Ok(())
        });
        match announced {
            Ok(stored) if stored.links == 1 => Ok(Some(stored.attributes)),
            Ok(stored) => {
                if let Some(place) = &stored.attributes.location {
                    self.give_up(at, place, number);
                }
                Ok(None)
            }
            Err(Failure::Refused(Errno::BUSY | Errno::NOENT | Errno::STALE)) => Ok(None),
            Err(failure) => Err(of_names(failure)),
        }
    }

    fn copy_and_mark(
        &self,
        (name, inode): (&EntryName, InodeNumber),
        (before, place): (&Attributes, &Location),
        number: u64,
        is_over: IsOver<'_>,
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Archived> {
        let node = self.places.node().to_owned();
        let copy = CopyName { node, inode: inode.0, number, is_final: true };
        let moving = FileMove::new(self.places, place, inode.0);
        let source = moving.begin_copy(number)?;
        let mut bytes = 0;
        moving.keep_copy(&source, (name, &copy), &mut |piece| {
            bytes += piece;
            goes_on(piece).is_continue()
        })?;
        let is_unchanged = source.is_unchanged()?;
        let mark = mark(number, &source.stat);
        let marked = self.names.attributes().update_of((name, inode), |attributes| {
            let is_announced = attributes.copy == Some(announcement(number));
            let is_there = attributes.location.as_ref() == Some(place);
            let is_moved = attributes.writer.is_some_and(|by| !is_over(by));
            let is_as_before = is_unchanged && is_same(attributes, before);
            if !is_announced || !is_there || is_moved || !is_as_before {
                return Err(Failure::Refused(Errno::BUSY));
            }
            // The size and times that a dead session wrote were never noted.
            if attributes.is_written() {
                take_over(attributes, &source.stat);
            }
            attributes.opens.retain(|open| open.by_kernel || !is_over(open.session));
            attributes.copy = Some(mark);
            Ok(())
        });
        let copies = Copies::of(self.places);
        match marked {
            Ok(_) => {
                let is_there = copies.finish(&copy)?;
                Ok(if is_there { Archived::Done(bytes) } else { Archived::Busy })
            }
            Err(failure @ Failure::Unknown(_)) => Err(of_names(failure)),
            Err(failure) => {
                copies.unlink(&copy)?;
                match failure {
                    // Opened for writing, renamed, moved or changed meanwhile.
                    Failure::Refused(Errno::BUSY | Errno::NOENT | Errno::STALE) => {
                        Ok(Archived::Busy)
                    }
                    failure => Err(of_names(failure)),
                }
            }
        }
    }

    /// Withdraws the file's attribute and the announcement, unless somebody writes the file by now.
    fn give_up(&self, at: (&EntryName, InodeNumber), place: &Location, number: u64) {
        let withdrawn = self.names.attributes().update_of(at, |attributes| {
            if attributes.copy != Some(announcement(number)) {
                return Err(Failure::Refused(Errno::BUSY));
            }
            attributes.copy = None;
            Ok(())
        });
        if withdrawn.is_ok() {
            let _cleared = FileMove::new(self.places, place, at.1.0).cancel_copy();
        }
    }

    /// Removes copies of this node's files that have no mark, but whose files are found: their makers died. Only if nobody
    /// makes any. Others are left to a check.
    ///
    /// # Errors
    /// If the shared disk cannot be read, or the store does not answer.
    pub(crate) fn sweep(&self) -> Result<()> {
        let copies = Copies::of(self.places);
        for copy in copies.all(Some(self.places.node()))? {
            let stored = self.stored(&copy)?;
            let marked = stored.as_ref().and_then(|of| CopyName::of(of, copy.inode));
            let place = stored.as_ref().and_then(|of| of.location.as_ref());
            if marked.as_ref() != Some(&copy) && copies.is_seen(self.places, &copy, place)? {
                copies.remove(&copy)?;
            }
        }
        Ok(())
    }

    /// What the store has on the file of a copy, under a name that the copy carries.
    fn stored(&self, copy: &CopyName) -> Result<Option<Attributes>> {
        let copies = Copies::of(self.places);
        for (directory, name) in copies.names_of(copy)? {
            let name = EntryName { directory: InodeNumber(directory), name };
            match self.names.lookup(&name) {
                Ok(found) if found.inode.0 == copy.inode => return Ok(Some(found.attributes)),
                Ok(_) | Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(of_names(failure)),
            }
        }
        Ok(None)
    }
}

/// The mark of a copy that is being made.
const fn announcement(number: u64) -> CleanCopy {
    CleanCopy { number, mtime_ns: CleanCopy::BEING_MADE }
}

/// Whether somebody who has a file open may write it. A kernel may serve it, and its mappings, after its session is over.
fn may_write(open: &Open, is_over: IsOver<'_>) -> bool {
    open.writes && (open.by_kernel || !is_over(open.session))
}

#[cfg(test)]
mod explored;
#[cfg(test)]
mod tests;
