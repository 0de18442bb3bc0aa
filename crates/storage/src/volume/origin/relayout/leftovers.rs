//! What moves have left that were killed, or whose former object could not be removed: of the two objects in a note, those
//! to which no file refers.
//!
//! What must hold: no object is taken for superfluous that is a file's, whoever renames files meanwhile. An object is bound to
//! one file, so if that file refers to the other one of its note, it is superfluous. If no file is found that refers to either, the
//! file is gone, or it was moved from a directory that was not read yet to one that was: only a walk during which no name
//! changed can tell.

use std::collections::{BTreeMap, BTreeSet};

use super::super::identity::{ObjectId, ObjectNumber, Reference};
use super::super::orphans::ids_on;
use super::super::tree_walk::{FileState, each_file_if_still};
use super::Origin;
use super::notes::{MoveNote, MoveNotes};
use crate::volume::object_paths;
use halocline_os::error::{Error, Result};

/// What moves have left.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Objects to which no file refers.
    pub(super) objects: Vec<ObjectId>,
    /// Moves of whose objects that is not known, because names of the tree changed.
    pub(super) unknown: Vec<MoveNote>,
}

impl Leftovers {
    /// Finds what is left in a volume. Changes nothing.
    ///
    /// # Errors
    /// If a server or a name cannot be read.
    pub fn of(origin: &Origin) -> Result<Self> {
        Self::find(origin, MoveNotes::read(origin)?.all())
    }

    /// Finds what is left of these moves.
    pub(super) fn find(origin: &Origin, notes: &[MoveNote]) -> Result<Self> {
        let mut found = Self::default();
        let objects = objects_of(origin, notes)?;
        if objects.is_empty() {
            return Ok(found);
        }
        let (mut named, mut bound) = (BTreeSet::new(), BTreeSet::new());
        let mut nonsense = BTreeSet::new();
        let is_still = each_file_if_still(origin.namespace_dir(), &mut |file| {
            let Some(FileState { reference, inode, .. }) = file.state()? else { return Ok(()) };
            match reference {
                Reference::Object(number) if objects.contains_key(&number) => {
                    named.insert(number);
                    bound.insert(ObjectId { number, inode: Some(inode) });
                }
                Reference::Nonsense => drop(nonsense.insert(inode)),
                Reference::None | Reference::Object(_) => {}
            }
            Ok(())
        })?;
        for note in notes {
            let of_note = || note.iter().filter_map(|number| objects.get(number)).flatten();
            let owner = of_note().find(|id| bound.contains(*id)).and_then(|id| id.inode);
            // Whoever knows the number of a file that refers to nonsense can write it again.
            let may_return = |id: &ObjectId| id.inode.is_some_and(|it| nonsense.contains(&it));
            let is_known = |id: &ObjectId| {
                (is_still || (owner.is_some() && id.inode == owner)) && !may_return(id)
            };
            let is_named = |id: &ObjectId| named.contains(&id.number);
            found.objects.extend(of_note().filter(|id| is_known(id) && !is_named(id)));
            if !of_note().all(|id| is_known(id) || bound.contains(id)) {
                found.unknown.push(note.clone());
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
