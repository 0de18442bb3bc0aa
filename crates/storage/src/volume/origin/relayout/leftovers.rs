//! What moves have left that were killed, or whose former object could not be removed: of the two objects in a note, those
//! to which no file refers.
//!
//! What must hold: no object is taken for superfluous that is a file's, wherever that file is meanwhile. An object is bound to one
//! file, so if that file is found and refers to another object of its note, it is superfluous. If no such file is found, nothing is
//! known: it may be gone, was moved past the reader or out of the tree, or is on a file system below it that is not mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use super::super::identity::{ObjectId, ObjectNumber, Reference};
use super::super::move_notes::{MoveNote, MoveNotes};
use super::super::orphans::ids_on;
use super::super::tree_walk::{Unread, each_file_if_still};
use super::Origin;
use crate::volume::object_paths;
use halocline_os::error::{Error, Result};

/// What moves have left.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Objects to which no file refers.
    pub(super) objects: Vec<ObjectId>,
    /// Moves of whose objects that is not known, because no file was found that refers to one of them.
    pub(super) unknown: Vec<MoveNote>,
    /// Objects in these notes to which no file refers, while one refers to its own object there: the moves seem to have left
    /// them, but whose they are is not known, as in a copy of the volume.
    likely: BTreeSet<ObjectId>,
    /// What could not be read of the tree: their files may be there.
    pub(super) unread: Unread,
    /// The file systems with the files that refer to others, by device numbers.
    file_systems: BTreeMap<u64, OwnedFd>,
}

impl Leftovers {
    /// Finds what is left in a volume. Changes nothing.
    ///
    /// # Errors
    /// If a server or a name cannot be read.
    pub fn of(origin: &Origin) -> Result<Self> {
        Self::find(origin, MoveNotes::read(origin.servers())?.all())
    }

    /// Finds what is left of these moves.
    pub(super) fn find(origin: &Origin, notes: &[MoveNote]) -> Result<Self> {
        let mut found = Self::default();
        let objects = objects_of(origin, notes)?;
        if objects.is_empty() {
            return Ok(found);
        }
        let numbers: BTreeSet<_> = notes.iter().flatten().collect();
        // The files that refer to each, by their inode numbers and birth times, and those whose reference is nonsense.
        let mut named: BTreeMap<ObjectNumber, BTreeSet<(u64, u64)>> = BTreeMap::new();
        let mut nonsense = BTreeSet::new();
        // Whether it is still matters no further than that it may show more when it is read again.
        let unread = each_file_if_still(origin.namespace_dir(), &mut |file, state| {
            let of = (state.inode, state.born_ns);
            match state.reference {
                Reference::Object(number) if numbers.contains(&number) => {
                    named.entry(number).or_default().insert(of);
                    found.file_systems.extend([file.file_system()?]);
                }
                Reference::BeingGiven(_) | Reference::Nonsense => drop(nonsense.insert(of)),
                Reference::None | Reference::Object(_) => {}
            }
            Ok(())
        })?;
        found.unread = unread.unwrap_or_default();
        for note in notes {
            let of_note = || note.iter().filter_map(|number| objects.get(number)).flatten();
            let owners: BTreeSet<_> =
                note.iter().filter_map(|it| named.get(it)).flatten().collect();
            // Whoever knows the number of a file that refers to nonsense can write it again.
            let is_of = |id: &ObjectId, file: &(u64, u64)| id.is_of(file.0, file.1);
            let is_known = |id: &ObjectId| {
                owners.iter().any(|file| is_of(id, file))
                    && !nonsense.iter().any(|file| is_of(id, file))
            };
            found
                .objects
                .extend(of_note().filter(|id| is_known(id) && !named.contains_key(&id.number)));
            if !of_note().all(is_known) {
                found.unknown.push(note.clone());
                let names_its_own = |id: &ObjectId| {
                    named.get(&id.number).is_some_and(|by| by.iter().any(|file| is_of(id, file)))
                };
                let unnamed = of_note().filter(|id| !named.contains_key(&id.number));
                let is_moved = of_note().any(names_its_own);
                found.likely.extend(unnamed.filter(|id| is_moved && !is_known(id)));
            }
        }
        Ok(found)
    }

    /// Bytes of blocks that they use on each server.
    ///
    /// # Errors
    /// If a server cannot be read.
    pub fn bytes_by_server(&self, origin: &Origin) -> Result<Vec<u64>> {
        let on = |server: &std::sync::Arc<crate::volume::Server>| {
            let used = self.objects.iter().map(|id| server.directory().allocated_of(&id.path()));
            let used = used.collect::<std::io::Result<Vec<_>>>();
            let used = used.map_err(Error::at(server.dir(), "look at the objects in"))?;
            Ok(used.into_iter().fold(0, u64::saturating_add))
        };
        origin.servers().iter().map(on).collect()
    }

    /// The same, with the bytes of blocks that each uses on all servers.
    ///
    /// # Errors
    /// If a server cannot be read.
    pub fn objects_and_bytes(&self, origin: &Origin) -> Result<BTreeMap<ObjectId, u64>> {
        let mut found = BTreeMap::new();
        for server in origin.servers() {
            for id in &self.objects {
                let used = server.directory().allocated_of(&id.path());
                *found.entry(*id).or_default() +=
                    used.map_err(Error::at(server.dir(), "look at the objects in"))?;
            }
        }
        Ok(found)
    }

    /// Makes durable that no file refers to them.
    ///
    /// # Errors
    /// If a file system with names does not sync.
    pub fn sync(&self, origin: &Origin) -> Result<()> {
        let mut synced = self.file_systems.values().map(rustix::fs::syncfs);
        let synced = synced.try_for_each(|synced| synced);
        synced.map_err(|errno| Error::at(origin.namespace_dir(), "sync")(errno.into()))
    }

    /// Whether a move seems to have left this object, but whose it is is not known.
    pub fn has_likely(&self, object: &ObjectId) -> bool {
        self.likely.contains(object)
    }

    /// How many moves seem to have left such objects.
    pub(super) fn likely_moves(&self) -> usize {
        let is_likely = |number: &ObjectNumber| self.likely.iter().any(|id| id.number == *number);
        self.unknown.iter().filter(|note| note.iter().any(is_likely)).count()
    }

    /// The objects to which no file refers.
    pub fn objects(&self) -> &[ObjectId] {
        &self.objects
    }
}

/// What the servers have of the objects of these moves.
fn objects_of(
    origin: &Origin,
    notes: &[MoveNote],
) -> Result<BTreeMap<ObjectNumber, BTreeSet<ObjectId>>> {
    let numbers: BTreeSet<_> = notes.iter().flatten().collect();
    let mut objects: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    if numbers.is_empty() {
        return Ok(objects);
    }
    for server in origin.servers() {
        for root in [ObjectId::ROOT, object_paths::LAYOUTS] {
            let failed = Error::at(server.dir(), "list the objects in");
            for id in ids_on(server, root).map_err(failed)? {
                if numbers.contains(&id.number) {
                    objects.entry(id.number).or_default().insert(id);
                }
            }
        }
    }
    Ok(objects)
}
