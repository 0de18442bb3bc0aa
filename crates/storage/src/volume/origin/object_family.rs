//! What the objects of a number's family tell of a file whose own object has no data: it names the data of another file, or of
//! itself before it got another object; or it has holes alone.
//!
//! What must hold: a file with holes alone is read whatever a move has left of its former object. So what the file has got last
//! counts for it: a layout of its own, and the order of numbers in the note of a move.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::identity::{ObjectId, ObjectNumber};
use super::move_notes::{MoveNote, MoveNotes};
use super::not_own::NotOwn;
use crate::volume::{Volume, object_paths};
use halocline_os::error::{Error, Result};

/// What the file that names `id` refers to, if that object has no data; `has_layout` if it has its layout, or needs none. `None` if it
/// has holes alone, or nothing yet.
pub(super) fn not_own(
    id: ObjectId,
    has_layout: bool,
    volume: &Volume,
) -> io::Result<Option<NotOwn>> {
    if id.number.has_layout && has_layout {
        // A layout is made for one object of one file, and goes before its object does.
        return Ok(None);
    }
    let there = of_family(id, volume, object_paths::ROOT)?;
    let others: Vec<_> = there.iter().copied().filter(|other| *other != id).collect();
    if !others.is_empty() {
        let notes = MoveNotes::read(volume.servers()).map_err(as_io)?;
        if !are_former(&others, id, notes.all()) {
            return Ok(Some(NotOwn::OfAnother));
        }
    }
    // A file that had data has them or their layout; what was killed before it wrote any has a number of its own alone.
    let is_known = if id.number.has_layout { has_layout } else { id.is_first_of_its_number() };
    if there.len() > others.len() || is_known {
        return Ok(None);
    }
    // There may be a layout of another object of the family: its file has holes alone.
    let is_anothers = !of_family(id, volume, object_paths::LAYOUTS)?.is_empty();
    let gone = NotOwn::Gone(id.inode.unwrap_or(0));
    Ok(Some(if is_anothers { NotOwn::OfAnother } else { gone }))
}

/// The objects of the family of `id` to which files below `root` on the servers belong.
fn of_family(id: ObjectId, volume: &Volume, root: &str) -> io::Result<BTreeSet<ObjectId>> {
    let dir = id.number.directory_in(root);
    let mut found = BTreeSet::new();
    for server in volume.servers() {
        let names = server.directory().names(&dir)?;
        let ids = names.iter().filter_map(|name| ObjectId::parse(name.to_str()?));
        found.extend(ids.filter(|other| other.number.family() == id.number.family()));
    }
    Ok(found)
}

/// Whether `others` are former objects of the file that names `id`, which it has got since: a move that has not ended left them.
fn are_former(others: &[ObjectId], id: ObjectId, notes: &[MoveNote]) -> bool {
    let is_before = |other: &ObjectId, note: &MoveNote| {
        let at = |number: ObjectNumber| note.iter().position(|it| *it == number);
        at(other.number).zip(at(id.number)).is_some_and(|(other, own)| other < own)
    };
    let file = id.inode.zip(id.born_ns);
    file.is_some_and(|(inode, born_ns)| {
        let is_former = |other: &ObjectId| {
            other.is_of(inode, born_ns) && notes.iter().any(|note| is_before(other, note))
        };
        others.iter().all(is_former)
    })
}

fn as_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => {
            io::Error::new(io::Error::from_raw_os_error(other.errno()).kind(), other.to_string())
        }
    }
}

/// The objects of a volume by their families.
#[derive(Debug)]
pub(super) struct Families {
    objects: BTreeMap<u64, Vec<ObjectId>>,
    notes: Vec<MoveNote>,
    volume: Volume,
}

impl Families {
    /// Those of these objects of a volume.
    ///
    /// # Errors
    /// If a server cannot be read.
    pub(super) fn of(objects: impl IntoIterator<Item = ObjectId>, volume: &Volume) -> Result<Self> {
        let notes = MoveNotes::read(volume.servers())?.all().to_vec();
        let mut families = Self { objects: BTreeMap::new(), notes, volume: volume.clone() };
        for id in objects {
            families.objects.entry(id.number.family()).or_default().push(id);
        }
        Ok(families)
    }

    /// Whether there is an object of the family of this number.
    pub(super) fn has(&self, number: ObjectNumber) -> bool {
        self.objects.contains_key(&number.family())
    }

    /// Whether the file that names `id`, which is not there, names the data of another by that, as [`not_own`] finds it.
    pub(super) fn are_of_another(&self, id: ObjectId) -> bool {
        let others = self.objects.get(&id.number.family()).map_or(&[][..], Vec::as_slice);
        let with_files = others.iter().filter(|other| self.has_files(**other));
        let with_files: Vec<_> = with_files.copied().collect();
        if with_files.is_empty() || id.number.has_layout {
            let is_empty = id.is_first_of_its_number() && !id.number.has_layout;
            return !others.is_empty() && !is_empty;
        }
        !are_former(&with_files, id, &self.notes)
    }

    fn has_files(&self, id: ObjectId) -> bool {
        let path = id.path();
        let mut servers = self.volume.servers().iter();
        servers.any(|server| !matches!(server.directory().open_to_read(&path), Ok(None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: &str, file: u64) -> ObjectId {
        ObjectId::of_file(ObjectNumber::parse(number).unwrap(), file, 70 + file)
    }

    #[test]
    fn what_stands_before_in_a_note_is_what_the_same_file_had() {
        let numbers = [1, 2, 3, 4].map(|last| format!("{last:032x}t"));
        let [first, second, third, away] = [0, 1, 2, 3].map(|at| id(&numbers[at], 5));
        let notes = [vec![away.number], vec![first.number, second.number, third.number]];
        for (others, of, want) in [
            (vec![first], second, true),
            (vec![first, second], third, true),
            (vec![third], second, false),
            (vec![first, third], second, false),
            (vec![away], second, false),
            (vec![first], away, false),
            (vec![id(&numbers[0], 6)], second, false),
            (vec![first], id(&numbers[1], 6), false),
        ] {
            assert_eq!(are_former(&others, of, &notes), want, "{others:?} {of}");
        }
    }
}
