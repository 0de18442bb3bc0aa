//! The SSDs follow the changes of names that they have missed ([`crate::places::missed`]).
//!
//! What must hold: a note is removed only once the disk has what the store has, or the file is gone. Whoever changes a
//! name after that finds the disk, or notes it again; so the disk is compared with the store once more after its notes
//! are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;

use crate::errors::of_names;
use crate::places::Places;
use crate::places::missed::{MissedChange, MissedNote, MissedNotes, reaches};
use crate::told_names::{tell, tell_names};

/// What a node has tried to follow.
#[derive(Debug, Default)]
pub(crate) struct TriedNotes(BTreeSet<OsString>);

impl TriedNotes {
    /// Follows the notes of this node's SSD; of those that it has tried before, and of other nodes' SSDs, only if `all` of
    /// them are due.
    pub(crate) fn follow(&mut self, listing: (&Namespace, &Places), all: bool) {
        if all {
            self.0.clear();
        }
        match self.follow_untried(listing, all) {
            Ok(()) => {}
            // Each second would be too often.
            Err(error) if !all => {
                tracing::debug!(%error, "the notes of missed changes are not read");
            }
            Err(error) => {
                tracing::warn!(%error, "the SSDs do not follow the changes of names that they have missed");
            }
        }
    }

    fn follow_untried(&mut self, listing: (&Namespace, &Places), all: bool) -> Result<()> {
        let notes = MissedNotes::of(listing.1)?;
        let mut names = notes.names()?;
        names.retain(|name| !self.0.contains(name));
        let mut by_file: BTreeMap<u64, Vec<MissedNote>> = BTreeMap::new();
        let mut reached: BTreeMap<String, bool> = BTreeMap::new();
        for name in names {
            let Some(note) = notes.read(&name)? else { continue };
            let Some(whose) = note.place.node.clone() else { continue };
            let own = listing.1.node() == whose;
            if (own || all)
                && *reached.entry(whose).or_insert_with_key(|node| reaches(listing.1, node))
            {
                self.0.insert(name);
                by_file.entry(note.number).or_default().push(note);
            }
        }
        for (number, of_file) in by_file {
            if let Err(error) = follow(listing, &notes, InodeNumber(number), &of_file) {
                tracing::debug!(%error, number, "an SSD follows later");
            }
        }
        Ok(())
    }
}

/// Follows all notes of a file.
fn follow(
    listing: (&Namespace, &Places),
    notes: &MissedNotes<'_>,
    number: InodeNumber,
    of_file: &[MissedNote],
) -> Result<()> {
    let mut named = of_file.iter().filter(|note| note.change != MissedChange::Gone);
    if let Some(gone) = of_file.iter().find(|note| note.change == MissedChange::Gone) {
        listing.1.remove_all(&gone.place, number.0)?;
    } else if let Some(first) = named.next() {
        let (mut is, mut was) = (Vec::new(), Vec::new());
        for note in of_file {
            match &note.change {
                MissedChange::Has(name) => is.push(entry_name(name)),
                MissedChange::Lost(name) => was.push(entry_name(name)),
                MissedChange::Gone => {}
            }
        }
        let (is, was): (Vec<_>, Vec<_>) = (is.iter().collect(), was.iter().collect());
        match names_of_file(listing, number, first, &[&*is, &*was].concat())? {
            Known::Named => {}
            // A store that was rebuilt without this SSD: a check gives the file its names.
            Known::Nameless => return Ok(()),
            Known::Gone => return of_file.iter().try_for_each(|note| notes.remove(&note.note)),
        }
        tell(listing, number, &first.place, (&is, &was))?;
        of_file.iter().try_for_each(|note| notes.remove(&note.note))?;
        return tell_names(listing, number, Ok(&first.place), (&is, &was));
    }
    of_file.iter().try_for_each(|note| notes.remove(&note.note))
}

fn entry_name((directory, name): &(u64, halocline_model::namespace::Name)) -> EntryName {
    EntryName { directory: InodeNumber(*directory), name: name.clone() }
}

/// What the store and its disk know of a file.
enum Known {
    Named,
    Nameless,
    Gone,
}

/// Whether the store has a file under one of the noted names, or of those that are recorded with it.
fn names_of_file(
    (names, places): (&Namespace, &Places),
    number: InodeNumber,
    note: &MissedNote,
    noted: &[&EntryName],
) -> Result<Known> {
    let listed = match places.listed_names().of(&note.place, number.0) {
        Err(error) if error.errno() == libc::ENOENT => None,
        listed => Some(listed?),
    };
    let listed_names = listed.iter().flatten().map(entry_name);
    for name in noted.iter().map(|name| (*name).clone()).chain(listed_names) {
        match names.lookup(&name) {
            Ok(found) if found.inode == number => return Ok(Known::Named),
            Ok(_) | Err(Failure::Refused(_)) => {}
            Err(failure) => return Err(of_names(failure)),
        }
    }
    Ok(if listed.is_some() { Known::Nameless } else { Known::Gone })
}
