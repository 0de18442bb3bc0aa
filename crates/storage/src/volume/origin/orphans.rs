//! Objects of a striped origin to which no namespace file refers. An unlink, or a rename over another file, first
//! removes the name, and the object when the last open file is closed; a crash in between leaves the object, which only
//! takes space. But the object of a file that was moved out of the tree for a while, or whose file system below it is not
//! mounted, looks the same: nothing here knows which it is, so only people who do may have objects removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::identity::{ObjectId, Reference};
use super::layouts;
use super::tree_walk::{FileState, each_file_if_still};
use crate::volume::{Server, Volume, object_paths};
use halocline_os::error::{Error, Result};

/// Objects without a name, with the bytes of blocks that each uses on all servers.
pub(crate) type Orphans = BTreeMap<ObjectId, u64>;

/// Finds the objects of a striped volume to which no file below `names` refers.
///
/// # Errors
/// [`Error::Invalid`] while names of the tree change: the object without a name may be that of a file that was moved
/// meanwhile.
pub(super) fn find(volume: &Volume, names: &Path) -> Result<Orphans> {
    let mut orphans = Orphans::new();
    for server in volume.servers() {
        let failed = || Error::at(server.dir(), "list the objects in");
        for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
            *orphans.entry(id).or_default() +=
                server.directory().allocated_of(&id.path()).map_err(failed())?;
        }
    }
    for server in volume.servers() {
        let layouts = ids_on(server, object_paths::LAYOUTS);
        for id in layouts.map_err(Error::at(server.dir(), "list the layouts in"))? {
            orphans.entry(id).or_default();
        }
    }
    // The names are read second: a file created meanwhile has a name before it has an object.
    take_named(names, &mut orphans)?;
    Ok(orphans)
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

/// Removes the objects to which files below `dir` refer, whether they are those files' objects or not. Any error ends
/// the search: a name that cannot be seen must not make its object an orphan. What a file's owner can write is no such
/// error, or one user would keep all objects from being checked; of a file that refers to nonsense, its own objects are
/// kept, because whoever knows its number can write it again.
fn take_named(dir: &Path, orphans: &mut Orphans) -> Result<()> {
    let (mut named, mut inodes) = (BTreeSet::new(), BTreeSet::new());
    let is_still = each_file_if_still(dir, &mut |file| {
        let Some(FileState { reference, inode, .. }) = file.state()? else { return Ok(()) };
        match reference {
            Reference::None => {}
            Reference::Object(number) => drop(named.insert(number)),
            Reference::Nonsense => drop(inodes.insert(inode)),
        }
        Ok(())
    })?;
    if !is_still {
        let what =
            format!("{}: names changed while objects without one were looked for", dir.display());
        return Err(Error::invalid(
            what,
            "end what renames, makes or removes files there, and look again",
        ));
    }
    orphans.retain(|id, _| {
        // Nobody can tell whose one of an earlier format is.
        let is_kept = id.inode.map_or(!inodes.is_empty(), |inode| inodes.contains(&inode));
        !is_kept && !named.contains(&id.number)
    });
    Ok(())
}
