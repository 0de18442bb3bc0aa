//! Objects of a striped origin to which no namespace file refers. An unlink, or a rename over another file, first
//! removes the name, and the object when the last open file is closed; a crash in between leaves the object, which only
//! takes space. But the object of a file that was moved out of the tree for a while, or whose file system below it is not
//! mounted, looks the same: nothing here knows which it is, so only people who do may have objects removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::identity::{ObjectId, ObjectNumber, Reference};
use super::layouts;
use super::tree_walk::{Unread, each_file_if_still};
use crate::volume::{Server, Volume, object_paths};
use halocline_os::error::{Error, Result};

/// Objects without a name, with the bytes of blocks that each uses on all servers.
pub(crate) type Orphans = BTreeMap<ObjectId, u64>;

/// Limit of the files that are told of one object.
const NAMES_MAX: usize = 8;

/// An object whose file is not found, and that other files name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misnamed {
    /// Its name.
    pub object: ObjectId,
    /// The paths of these files below the mount, with the numbers of their owners.
    pub named_by: Vec<(PathBuf, u32)>,
}

/// Whose the objects of a volume are.
#[derive(Debug, Default)]
pub struct NamedObjects {
    /// Those that no file names; empty if not all names could be read.
    pub unnamed: Orphans,
    /// Those that are named by others than their own files alone: backups of these, or somebody who wants to reach their data.
    /// Nothing here can tell; empty if not all names could be read.
    pub misnamed: Vec<Misnamed>,
    /// What could not be read of the tree.
    pub unread: Unread,
}

/// Finds out which objects of a striped volume no file below `tree` names, or others than their own alone.
///
/// # Errors
/// [`Error::Invalid`] while names of the tree change: the object without a name may be that of a file that was moved
/// meanwhile.
pub(super) fn find(volume: &Volume, tree: &Path) -> Result<NamedObjects> {
    let mut objects = Orphans::new();
    for server in volume.servers() {
        let failed = || Error::at(server.dir(), "list the objects in");
        for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
            *objects.entry(id).or_default() +=
                server.directory().allocated_of(&id.path()).map_err(failed())?;
        }
    }
    for server in volume.servers() {
        let layouts = ids_on(server, object_paths::LAYOUTS);
        for id in layouts.map_err(Error::at(server.dir(), "list the layouts in"))? {
            objects.entry(id).or_default();
        }
    }
    // The names are read second: a file created meanwhile has a name before it has an object.
    names(objects, tree)
}

/// Removes an object, with its layout, from all servers that can be changed, and returns the error of the first other one.
pub(super) fn remove(id: ObjectId, volume: &Volume) -> Result<()> {
    let path = id.path();
    let mut removed = Ok(());
    for server in volume.servers() {
        let failed = Error::at(server.dir().join(&path), "remove the object");
        removed = removed.and(server.directory().remove(&path).map_err(failed));
    }
    let path = id.path_in(object_paths::LAYOUTS);
    removed.and(
        layouts::remove(id, volume).map_err(|(server, error)| {
            Error::at(server.dir().join(path), "remove the layout")(error)
        }),
    )
}

/// The objects of a volume, named or not.
pub(super) fn all(volume: &Volume) -> Result<BTreeSet<ObjectId>> {
    let mut all = BTreeSet::new();
    for server in volume.servers() {
        let ids = ids_on(server, ObjectId::ROOT);
        all.extend(ids.map_err(Error::at(server.dir(), "list the objects in"))?);
    }
    Ok(all)
}

/// Bytes of blocks that objects use on a server, named or not.
pub(super) fn bytes_on(server: &Server) -> Result<u64> {
    let failed = || Error::at(server.dir(), "add up the objects in");
    let mut bytes = 0_u64;
    for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
        let used = server.directory().allocated_of(&id.path()).map_err(failed())?;
        bytes = bytes.saturating_add(used);
    }
    Ok(bytes)
}

/// The objects to which files below `root` on a server (data or layouts) belong. Names that are not ours are skipped.
pub(super) fn ids_on(server: &Server, root: &str) -> io::Result<Vec<ObjectId>> {
    let mut found = Vec::new();
    for dir in server.directory().names(Path::new(root))?.into_iter().filter(|dir| dir.len() == 2) {
        let dir = Path::new(root).join(dir);
        let names = server.directory().names(&dir)?;
        let ids = names.iter().filter_map(|name| Some((name, ObjectId::parse(name.to_str()?)?)));
        found.extend(ids.filter(|(name, id)| id.path_in(root) == dir.join(name)).map(|(_, id)| id));
    }
    Ok(found)
}

/// Who names these objects. What a file's owner can write is no error, or one user would keep all objects from being checked; of a
/// file that refers to nonsense, its own objects are kept, because whoever knows its number can write it again.
fn names(mut objects: Orphans, tree: &Path) -> Result<NamedObjects> {
    let numbers: BTreeSet<_> = objects.keys().map(|id| id.number).collect();
    // Objects whose files were found, and the others that are named, by whom.
    let mut found = BTreeSet::new();
    let mut named: BTreeMap<ObjectNumber, Vec<(PathBuf, u32)>> = BTreeMap::new();
    let mut nonsense = BTreeSet::new();
    let read = each_file_if_still(tree, &mut |file, state| {
        let number = match state.reference {
            Reference::Nonsense => {
                nonsense.insert((state.inode, state.born_ns));
                return Ok(());
            }
            Reference::Object(number) | Reference::BeingGiven(number)
                if numbers.contains(&number) =>
            {
                number
            }
            Reference::Object(_) | Reference::BeingGiven(_) | Reference::None => return Ok(()),
        };
        let id = ObjectId::of_file(number, state.inode, state.born_ns);
        // What is being given an object has none yet, also where some servers have followed.
        if matches!(state.reference, Reference::Object(_)) && objects.contains_key(&id) {
            found.insert(id);
        }
        let path = file.shown.strip_prefix(tree).unwrap_or(&file.shown);
        let paths = named.entry(number).or_default();
        // As many as anybody would look at.
        if !found.contains(&id) && paths.len() < NAMES_MAX && !paths.iter().any(|it| it.0 == path) {
            paths.push((path.to_owned(), state.owner));
        }
        Ok(())
    })?;
    let Some(unread) = read else {
        let what =
            format!("{}: names changed while objects without one were looked for", tree.display());
        return Err(Error::invalid(
            what,
            "end what renames, makes or removes files there, and look again",
        ));
    };
    if !unread.is_empty() {
        return Ok(NamedObjects { unread, ..NamedObjects::default() });
    }
    objects.retain(|id, _| {
        // Nobody can tell whose one of an earlier format is.
        let is_kept = id.inode.map_or(!nonsense.is_empty(), |_| {
            nonsense.iter().any(|(inode, born_ns)| id.is_of(*inode, *born_ns))
        });
        !is_kept && !found.contains(id)
    });
    let is_named = |id: &ObjectId| named.get(&id.number).is_some_and(|paths| !paths.is_empty());
    let has_own = |id: &ObjectId| found.iter().any(|other| other.number == id.number);
    let of_others = objects.keys().filter(|id| is_named(id) && !has_own(id));
    let misnamed =
        of_others.map(|id| Misnamed { object: *id, named_by: named[&id.number].clone() });
    let misnamed = misnamed.collect();
    objects.retain(|id, _| !named.contains_key(&id.number));
    Ok(NamedObjects { unnamed: objects, misnamed, unread })
}
