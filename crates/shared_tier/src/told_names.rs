//! The names of a file, as they are recorded with its bytes.

use halocline_cluster::names::attributes::Location;
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use rustix::io::Errno;

use crate::errors::of_names;
use crate::places::missed::{self, MissedChange, MissedNotes};
use crate::places::own_xattrs::NameIn;
use crate::places::{Places, own_xattrs};

/// How often to retry recording a file's names with its bytes while others change them.
const TRIES: usize = 16;
/// How many further names, which nobody changed just now, are then compared with the store.
const LOOKED_AT_MAX: usize = 8;

/// Where names are, and where they are recorded with files.
type Listing<'a> = (&'a Namespace, &'a Places);
/// Names that a file has got, and that it has lost.
pub(crate) type Changed<'a> = (&'a [&'a EntryName], &'a [&'a EntryName]);

/// Records with a file's bytes whether these names lead to it in the store; what an SSD does not record is noted on the
/// shared disk.
///
/// # Errors
/// `ENOSPC` if a new name finds no room with the file; if nothing records the change.
pub(crate) fn tell_names(
    listing: Listing<'_>,
    number: InodeNumber,
    place: Result<&Location>,
    changed: Changed<'_>,
) -> Result<()> {
    let place = place?;
    or_note(listing, (number, place), changed, tell(listing, number, place, changed))
}

/// After a try to record changed names of a file with its bytes: what an SSD has missed is noted on the shared disk.
///
/// # Errors
/// As [`tell_names`].
pub(crate) fn or_note(
    (names, places): Listing<'_>,
    (number, place): (InodeNumber, &Location),
    (is, was): Changed<'_>,
    told: Result<()>,
) -> Result<()> {
    let Err(error) = told else {
        return note_again((names, places), (number, place), [is, was].concat());
    };
    // A name that is only new is taken away again.
    let is_refused = was.is_empty() && own_xattrs::is_without_room(&error);
    if is_refused || !missed::has_missed(place, &error) {
        return Err(error);
    }
    tracing::debug!(%error, ?place, "a change of names is noted on the shared disk");
    let noted = MissedNotes::of(places)
        .and_then(|notes| note(names, &notes, (number, place), &[is, was].concat()));
    match noted {
        Err(why) if !matches!(why, Error::Cluster { .. }) => {
            Err(missed::not_noted(places, place, (error, &why)))
        }
        noted => noted,
    }
}

/// A disk has recorded names of a file, of which it may have missed an earlier change: the note of that is made to say what
/// the store says now. Until the disk has followed it, rebuilt names are those that are recorded, less and besides those
/// that are noted.
fn note_again(
    (names, places): Listing<'_>,
    (number, place): (InodeNumber, &Location),
    changed: Vec<&EntryName>,
) -> Result<()> {
    let mut noted = Vec::new();
    for name in changed {
        let key = (name.directory.0, name.name.clone());
        if missed::is_noted(places, number.0, key)? {
            noted.push(name);
        }
    }
    if noted.is_empty() {
        return Ok(());
    }
    note(names, &MissedNotes::of(places)?, (number, place), &noted)
}

/// Notes which of these names lead to a file in the store. Repeats this until both agree, because other nodes change and
/// note the names meanwhile.
fn note(
    names: &Namespace,
    notes: &MissedNotes<'_>,
    (number, place): (InodeNumber, &Location),
    changed: &[&EntryName],
) -> Result<()> {
    let has = |name: &&EntryName| match names.lookup(name) {
        Ok(found) => Ok(found.inode == number),
        Err(Failure::Refused(_)) => Ok(false),
        Err(failure) => Err(of_names(failure)),
    };
    let have = || changed.iter().map(has).collect::<Result<Vec<bool>>>();
    let mut now = have()?;
    for _ in 0..TRIES {
        let change = |(name, has): (&&EntryName, &bool)| {
            let key = (name.directory.0, name.name.clone());
            if *has { MissedChange::Has(key) } else { MissedChange::Lost(key) }
        };
        let those: Vec<MissedChange> = changed.iter().zip(&now).map(change).collect();
        notes.note_all(number.0, &those, place)?;
        let before = std::mem::replace(&mut now, have()?);
        if before == now {
            return Ok(());
        }
    }
    Err(Errno::BUSY.into())
}

/// Records with a file's bytes whether these names lead to it in the store. Repeats this until both agree,
/// because other nodes change names and move files meanwhile.
///
/// # Errors
/// Those of the store, and of the disk with the bytes.
pub(crate) fn tell(
    (names, places): Listing<'_>,
    number: InodeNumber,
    place: &Location,
    (is, was): Changed<'_>,
) -> Result<()> {
    let mut place = place.clone();
    let changed = [is, was].concat();
    // At once: the store may fail before it can confirm them.
    let keys = [is, was].map(|of| -> Vec<_> {
        of.iter().map(|name| (name.directory.0, name.name.clone())).collect()
    });
    match places.listed_names().change(&place, number.0, (&keys[0], &keys[1])) {
        Err(error) if error.errno() == libc::ENOENT => {}
        changed => changed?,
    }
    for _ in 0..TRIES {
        let listed = match places.listed_names().of(&place, number.0) {
            Err(error) if error.errno() == libc::ENOENT => Vec::new(),
            listed => listed?,
        };
        let (mut now, mut add, mut remove) = (None, Vec::new(), Vec::new());
        let listed_names = listed.iter().map(|(directory, name)| EntryName {
            directory: InodeNumber(*directory),
            name: name.clone(),
        });
        let others = listed_names.filter(|name| !changed.contains(&name)).take(LOOKED_AT_MAX);
        for name in changed.iter().map(|name| (*name).clone()).chain(others) {
            let key = (name.directory.0, name.name.clone());
            let is_listed = listed.contains(&key);
            match names.lookup(&name) {
                Ok(found) if found.inode == number => {
                    now = found.attributes.location;
                    add.extend((!is_listed).then_some(key));
                }
                Ok(_) | Err(Failure::Refused(_)) => remove.extend(is_listed.then_some(key)),
                Err(failure) => return Err(of_names(failure)),
            }
        }
        if now.is_none() && remove.len() == listed.len() {
            (now, add) = noted_names((names, places), number)?;
        }
        let is_there = now.as_ref().is_none_or(|now| *now == place);
        if is_there && add.is_empty() && remove.is_empty() {
            return Ok(());
        }
        let is_without_names = now.is_none() && remove.len() == listed.len();
        place = now.unwrap_or(place);
        match places.listed_names().change(&place, number.0, (&add, &remove)) {
            // It was moved or removed meanwhile.
            Err(error) if error.errno() == libc::ENOENT => {}
            changed => changed?,
        }
        if is_without_names {
            // Whoever took the last name removes the file. A list cannot say that it has none.
            return Ok(());
        }
    }
    Err(Errno::BUSY.into())
}

/// The names that a file has in the store, of those that its disk has missed so far, and where it is. They are needed where
/// it loses the last one that the disk knows: without any, it would be at the name of its place.
fn noted_names(
    (names, places): Listing<'_>,
    number: InodeNumber,
) -> Result<(Option<Location>, Vec<NameIn>)> {
    let (mut place, mut found) = (None, Vec::new());
    for note in MissedNotes::of(places)?.all()? {
        let MissedChange::Has(name) = note.change else { continue };
        if note.number != number.0 {
            continue;
        }
        let at = EntryName { directory: InodeNumber(name.0), name: name.1.clone() };
        match names.lookup(&at) {
            Ok(stored) if stored.inode == number => {
                place = stored.attributes.location;
                found.push(name);
            }
            Ok(_) | Err(Failure::Refused(_)) => {}
            Err(failure) => return Err(of_names(failure)),
        }
    }
    Ok((place, found))
}
