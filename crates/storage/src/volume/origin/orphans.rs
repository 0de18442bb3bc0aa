//! Objects of a striped origin to which no namespace file refers. An unlink, or a rename over another file, first
//! removes the name, and the object when the last open file is closed; a crash in between leaves the object, which only
//! takes space.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Origin;
use super::identity::{ObjectId, ObjectNumber};
use super::layouts;
use crate::volume::{Server, object_paths};
use halocline_os::error::{Error, Result};

/// Objects without a name, with the bytes of blocks that each uses on all servers.
pub(crate) type Orphans = BTreeMap<ObjectId, u64>;

impl Origin {
    /// Finds the objects to which nothing refers. The caller guarantees that the origin is not mounted
    /// ([`Origin::open_alone`]): an open file without a name would count as an orphan.
    pub fn orphans(&self) -> Result<Orphans> {
        let mut orphans = Orphans::new();
        if !self.is_striped() {
            return Ok(orphans);
        }
        for server in self.servers() {
            let failed = || Error::at(server.dir(), "list the objects in");
            for id in ids_on(server, ObjectId::ROOT).map_err(failed())? {
                *orphans.entry(id).or_default() +=
                    server.directory().allocated_of(&id.path()).map_err(failed())?;
            }
        }
        let first = &self.servers()[0];
        let layouts = ids_on(first, object_paths::LAYOUTS);
        for id in layouts.map_err(Error::at(first.dir(), "list the layouts in"))? {
            orphans.entry(id).or_default();
        }
        // The names are read second: a file created meanwhile has a name before it has an object.
        take_named(self.namespace_dir(), &mut orphans)?;
        Ok(orphans)
    }

    /// Makes durable the names of all files, and the objects to which they refer.
    pub fn sync_names(&self) -> Result<()> {
        let names = fs::File::open(self.namespace_dir());
        let synced = names.and_then(|names| Ok(rustix::fs::syncfs(names)?));
        synced.map_err(Error::at(self.namespace_dir(), "sync"))
    }

    /// Removes an orphan from all servers. That no file refers to it must already be durable, by [`Origin::sync_names`]
    /// or a sync of the file that did: otherwise, after a power loss, the file would refer to an object that is gone.
    pub fn remove_orphan(&self, id: ObjectId) -> Result<()> {
        let path = id.path();
        for server in self.servers() {
            server
                .directory()
                .remove(&path)
                .map_err(Error::at(server.dir().join(&path), "remove the object"))?;
        }
        let failed = Error::at(self.servers()[0].dir(), "remove the layout of an object in");
        layouts::remove(id, &self.volume).map_err(failed)
    }
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
/// the search: a name that cannot be seen must not make its object an orphan.
fn take_named(dir: &Path, orphans: &mut Orphans) -> Result<()> {
    let mut named = BTreeSet::new();
    each_file(dir, &mut |path| {
        let number = ObjectNumber::named_by(path).map_err(Error::at(path, "read the object of"))?;
        named.extend(number);
        Ok(())
    })?;
    orphans.retain(|id, _| !named.contains(&id.number));
    Ok(())
}

/// Calls `look` for each name of a regular file below `dir`.
pub(super) fn each_file(dir: &Path, look: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let mut open: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(Error::at(&dir, "list"))? {
            let entry = entry.map_err(Error::at(&dir, "list"))?;
            let (path, kind) = (entry.path(), entry.file_type());
            let kind = kind.map_err(Error::at(&path, "stat"))?;
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                look(&path)?;
            }
        }
    }
    Ok(())
}
