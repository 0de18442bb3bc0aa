//! Moves of whole files between SSDs and the shared disk.
//!
//! A move is announced in the store by a compare-and-swap (`writer`), copied, and committed by another one that
//! compares where the file is and who moves it. An open removes the announcement, so a file that somebody opens
//! meanwhile stays where it is. What must hold (I15): the store leads to a whole copy at each moment, and a crash at
//! any step leaves copies of which a scan can tell the right one ([`crate::places`]).

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::{Attributes, Kind, Location};
use halocline_cluster::names::namespace::{Failure, Namespace, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::copies::{Copies, CopyName, mtime_ns};
use crate::places::moving::{Arrived, Source};
use crate::places::{Directories, DirectoryStep, FileMove, Places, SHARED, directory_times};
use crate::stat_conversion::take_over;
use crate::told_names::tell_names;

/// The outcome of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is there now; so many bytes were copied.
    Done(u64),
    /// It was there already.
    Already,
    /// Somebody has it open, is moving it, or has changed it meanwhile.
    Busy,
    /// It is gone, or is no file.
    Gone,
}

/// Moves files for one node.
#[derive(Debug)]
pub(crate) struct Migrator<'a> {
    pub(crate) names: &'a Namespace,
    pub(crate) places: &'a Places,
    pub(crate) directories: &'a dyn Directories,
    pub(crate) session: Session,
    pub(crate) clock: &'a Clock,
}

/// Whether a session is over, so that its opens count as closed.
pub(crate) type IsOver<'a> = &'a dyn Fn(Session) -> bool;

/// Whether two states of a file differ only in what a move may change: where its bytes are, and who moves it.
pub(crate) fn is_same(one: &Attributes, other: &Attributes) -> bool {
    let place_aside = |attributes: &Attributes| Attributes {
        location: None,
        writer: None,
        opens: Vec::new(),
        ..attributes.clone()
    };
    place_aside(one) == place_aside(other)
}

impl Migrator<'_> {
    /// Whether a file's bytes are on a tier: on the own SSD, or the shared disk.
    pub(crate) fn is_on(&self, place: &Location, tier: u8) -> bool {
        place.tier == tier && (tier == SHARED || place.node.as_deref() == Some(self.places.node()))
    }

    /// Moves a file to the own SSD or the shared disk; `goes_on` is told of each piece that was copied.
    ///
    /// # Errors
    /// If the store or a disk fails. The file is then where it was, or where it should go.
    pub(crate) fn move_file(
        &self,
        name: &EntryName,
        inode: InodeNumber,
        tier: u8,
        is_over: IsOver<'_>,
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Moved> {
        let _under_way = self.names.begin_change();
        // The shared disk finds the directory by its number. What is too deep for an SSD is not announced first.
        let near = match tier {
            SHARED => Vec::new(),
            _ => match self.directories.steps_on_ssd(name.directory.0) {
                Err(error) if error.errno() == libc::ENOENT => {
                    return self.why_not(name, inode, tier);
                }
                steps => steps?,
            },
        };
        let Some(before) = self.announce(name, inode, tier, is_over)? else {
            return self.why_not(name, inode, tier);
        };
        let Some(place) = &before.location else { return Ok(Moved::Gone) };
        let done = self.copy_and_switch((name, inode), (&before, place), (tier, &near), goes_on);
        match done {
            Ok(moved) => Ok(moved),
            Err(error) => {
                // If the store's answer was lost, both copies stay; whoever comes next compares them.
                if !matches!(error, Error::Cluster { .. }) {
                    self.give_up((name, inode), place);
                }
                Err(error)
            }
        }
    }

    /// Announces the move. `None` if the file cannot be moved now.
    fn announce(
        &self,
        name: &EntryName,
        inode: InodeNumber,
        tier: u8,
        is_over: IsOver<'_>,
    ) -> Result<Option<Attributes>> {
        let announced = self.names.attributes().update_of((name, inode), |attributes| {
            // A kernel may serve a file longer than its node's session lives.
            let is_open = attributes.many_opens
                || attributes.opens.iter().any(|open| open.by_kernel || !is_over(open.session));
            let is_moved = attributes.writer.is_some_and(|by| by != self.session && !is_over(by));
            let place = attributes.location.as_ref();
            let is_there = place.is_none_or(|place| self.is_on(place, tier));
            if is_open || is_moved || is_there || attributes.kind != Kind::File {
                return Err(Failure::Refused(Errno::BUSY));
            }
            attributes.writer = Some(self.session);
            Ok(())
        });
        match announced {
            Ok(stored) => Ok(Some(stored.attributes)),
            Err(Failure::Refused(Errno::BUSY | Errno::NOENT | Errno::STALE)) => Ok(None),
            Err(failure) => Err(of_names(failure)),
        }
    }

    fn why_not(&self, name: &EntryName, inode: InodeNumber, tier: u8) -> Result<Moved> {
        match self.names.lookup(name) {
            Ok(stored) if stored.inode == inode && stored.attributes.kind == Kind::File => {
                let place = stored.attributes.location.as_ref();
                let is_there = place.is_some_and(|place| self.is_on(place, tier));
                Ok(if is_there { Moved::Already } else { Moved::Busy })
            }
            Ok(_) | Err(Failure::Refused(_)) => Ok(Moved::Gone),
            Err(failure) => Err(of_names(failure)),
        }
    }

    fn copy_and_switch(
        &self,
        (name, inode): (&EntryName, InodeNumber),
        (before, place): (&Attributes, &Location),
        (tier, near): (u8, &[DirectoryStep]),
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Moved> {
        let number = self.names.number_of_copy().map_err(of_names)?;
        let moving = FileMove::new(self.places, place, inode.0);
        let source = moving.begin(number.0);
        let mut copied = 0;
        let clean = self.clean_copy(inode, before, &source)?.filter(|_| tier == SHARED);
        let taken = clean.and_then(|clean| {
            let taken = moving.take_copy((&clean, number.0), (name, before));
            taken.inspect_err(|error| tracing::debug!(%error, "a clean copy is not used")).ok()
        });
        let (source, to) = match (taken, source) {
            (Some(taken), source) => (source.ok(), Ok(taken)),
            (None, source) => {
                let source = source?;
                let from = (&moving, &source, before);
                let to = self.copy(from, (name, inode), (tier, near), &mut |bytes| {
                    copied += bytes;
                    goes_on(bytes).is_continue()
                });
                (Some(source), to)
            }
        };
        let arrived = match to {
            // Somebody writes it, or the caller no longer wants the move.
            Err(error) if error.errno() == libc::ECANCELED => {
                self.give_up((name, inode), place);
                return Ok(Moved::Busy);
            }
            to => to?,
        };
        let to = &arrived.place;
        let is_unchanged = source.as_ref().map_or(Ok(true), Source::is_unchanged)?;
        let switched = self.names.attributes().update_of((name, inode), |attributes| {
            let is_ours = attributes.writer == Some(self.session);
            let is_there = attributes.location.as_ref() == Some(place);
            if !is_ours || !is_there || !is_unchanged || !is_same(attributes, before) {
                return Err(Failure::Refused(Errno::BUSY));
            }
            // The size and times that a dead session wrote were never noted.
            if let Some(source) = source.as_ref().filter(|_| attributes.is_written()) {
                take_over(attributes, &source.stat);
            }
            attributes.opens.clear();
            attributes.location = Some(to.clone());
            (attributes.writer, attributes.copy) = (None, None);
            Ok(())
        });
        let moved = match switched {
            Ok(moved) => moved,
            Err(failure) => return self.not_switched((name, inode), (place, to), failure),
        };
        if let Some(copy) = CopyName::of(before, inode.0)
            && let Err(error) = Copies::of(self.places).unlink(&copy)
        {
            tracing::warn!(%error, ?copy, "a clean copy stays until a check removes it");
        }
        if let Err(error) = moving.end(&arrived) {
            tracing::warn!(%error, ?place, "the old copy of a file that was moved stays until a check removes it");
        }
        self.date(name.directory);
        self.tell_names((name, to), &moved);
        Ok(Moved::Done(copied))
    }

    /// The disks have changed a directory, and the store has not.
    fn date(&self, directory: InodeNumber) {
        let stored = self.names.directory(directory).map_err(of_names);
        let dated = stored.and_then(|stored| {
            let times = (stored.attributes.mtime_ns, self.clock.now_ns());
            directory_times::date(self.places, directory.0, times)
        });
        if let Err(error) = dated {
            tracing::debug!(%error, ?directory, "a rebuild will have the time of this move for a directory");
        }
    }

    /// The clean copy of a file, if it has one. It stands for the file on an SSD that is not reached; where it is, its size
    /// and time must be the file's: somebody may have written that past all mounts. One of which a program holds a lease is
    /// reached, and nobody knows whether it was written.
    ///
    /// # Errors
    /// If the file is older than its copy.
    fn clean_copy(
        &self,
        inode: InodeNumber,
        of: &Attributes,
        source: &Result<Source>,
    ) -> Result<Option<OwnedFd>> {
        let copies = Copies::of(self.places);
        if let Ok(source) = source {
            copies.refuse_older(source.file(), of, inode.0)?;
        }
        let Ok(Some((copy, stat))) = copies.standing_for(of, inode.0) else { return Ok(None) };
        let is_source = |source: &Source| {
            source.stat.raw.st_size == stat.raw.st_size && mtime_ns(&source.stat) == mtime_ns(&stat)
        };
        let stands = source.as_ref().map_or_else(|error| !error.is_leased(), is_source);
        Ok(stands.then_some(copy))
    }

    /// Copies a file to a tier.
    fn copy(
        &self,
        (moving, source, before): (&FileMove<'_>, &Source, &Attributes),
        (name, inode): (&EntryName, InodeNumber),
        (tier, near): (u8, &[DirectoryStep]),
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Arrived> {
        let arrived = moving.copy(source, tier, (name, near), goes_on)?;
        // Nobody would remove it there before the file is changed on its new SSD.
        let gone = CopyName::of(before, inode.0).map(|copy| Copies::of(self.places).remove(&copy));
        if let Err(error) = gone.unwrap_or(Ok(())) {
            self.places.remove(&arrived.place, inode.0)?;
            return Err(error);
        }
        Ok(arrived)
    }

    /// The store did not take the new place of a file. If it may have done so, both copies stay.
    fn not_switched(
        &self,
        it: (&EntryName, InodeNumber),
        (from, to): (&Location, &Location),
        failure: Failure,
    ) -> Result<Moved> {
        if !failure.is_doubtful() {
            self.places.remove(to, it.1.0)?;
            self.give_up(it, from);
        }
        match failure {
            // Renamed, removed, opened or changed meanwhile.
            Failure::Refused(_) => Ok(Moved::Busy),
            failure => Err(of_names(failure)),
        }
    }

    /// A file has been moved, and its old copy is gone: other nodes that gave it a name, or took one away, may have
    /// recorded that with the old copy, or not have found it.
    fn tell_names(&self, (name, place): (&EntryName, &Location), moved: &StoredInode) {
        let listed = self.places.listed_names().of(place, moved.inode.0);
        let it = [(name.directory.0, name.name.clone())];
        if moved.links == 1 && listed.is_ok_and(|names| names == it) {
            return;
        }
        let told = tell_names((self.names, self.places), moved.inode, Ok(place), (&[name], &[]));
        if let Err(error) = told {
            tracing::warn!(%error, ?place, "the names of a file that was moved are not recorded with it");
        }
    }

    /// Withdraws the move's attributes and its announcement.
    fn give_up(&self, (name, inode): (&EntryName, InodeNumber), place: &Location) {
        let _cleared = FileMove::new(self.places, place, inode.0).cancel();
        // It may have lost that name meanwhile; others are recorded with it.
        let listed = self.places.listed_names().of(place, inode.0).unwrap_or_default();
        let listed = listed
            .into_iter()
            .map(|(number, name)| EntryName { directory: InodeNumber(number), name });
        for name in std::iter::once(name.clone()).chain(listed) {
            let unannounced = self.names.attributes().update_of((&name, inode), |attributes| {
                if attributes.writer != Some(self.session) {
                    return Err(Failure::Refused(Errno::BUSY));
                }
                attributes.writer = None;
                Ok(())
            });
            if !matches!(unannounced, Err(Failure::Refused(Errno::NOENT | Errno::STALE))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
