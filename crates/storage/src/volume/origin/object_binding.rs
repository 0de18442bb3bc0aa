//! Binds the objects of a striped origin to the files that refer to them: if no version has done so yet, or if inode
//! numbers are new because the tree was copied; and gives a file that was restored the object that it names.
//!
//! What must hold: an object to which two files refer belongs to neither, because one of them may refer to it to reach
//! the other's data; and in a tree whose files have their objects none is taken from a file that is not found, because it may be
//! elsewhere for the moment. The tree is only read; an interrupted pass is repeated.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Origin;
use super::identity::{ObjectId, ObjectNumber, Reference, by_descriptor};
use super::orphans::{self, ids_on};
use super::tree_walk::{each_file, file};
use crate::volume::{Server, object_paths};
use halocline_os::error::{Error, Result};

/// An inode number, and a birth time, that no file has.
const NOBODY: (u64, u64) = (0, 0);

/// The files that refer to an object.
struct Claims {
    /// Their inode numbers and birth times, without duplicates.
    files: Vec<(u64, u64)>,
    /// A name of the first file, and of the last of the others.
    paths: (PathBuf, PathBuf),
}

/// Durably binds the objects on `servers`, whose names have the inode numbers of another tree, or none, to the files below `tree`.
///
/// # Errors
/// If a directory cannot be read: the file whose object it is could be there, and another one name it.
pub(super) fn bind(tree: &Path, servers: &[std::sync::Arc<Server>]) -> Result<()> {
    let claims = claims(tree)?;
    for named in claims.values().filter(|named| named.files.len() > 1) {
        tell_of_several(named);
    }
    let owner = |id: ObjectId| {
        let [file] = claims.get(&id.number)?.files[..] else { return Some(NOBODY) };
        Some(file)
    };
    rename_objects(servers, &owner)
}

/// Gives the object with this name to the file at `relative`, as [`Origin::give_object`].
pub(super) fn give_named(origin: &Origin, object: &str, relative: &Path) -> Result<()> {
    let refused = |what: String| {
        let remedy = "give both as `halocline fsck CACHE` tells them";
        Err(Error::invalid(what, remedy))
    };
    let given = ObjectId::parse(object).filter(|_| origin.striped && origin.is_bound);
    let objects = orphans::all(&origin.volume)?;
    let Some(given) = given.filter(|id| objects.contains(id)) else {
        return refused(format!("the origin has no object {object}"));
    };
    let file = file(origin, relative, "leave it out")?;
    let bound = ObjectId::bound(given.number, &file.fd).map_err(Error::at(&file.shown, "stat"))?;
    let named = ObjectNumber::named_by(Path::new(&by_descriptor(&file.fd)));
    let named = match named.map_err(Error::at(&file.shown, "read the object of"))? {
        Reference::Object(number) | Reference::BeingGiven(number) => Some(number),
        Reference::None | Reference::Nonsense => None,
    };
    let is_named = |named: ObjectNumber| named.family() == given.number.family();
    let Some(inode) = bound.inode.filter(|_| named.is_some_and(is_named)) else {
        return refused(format!("{} does not name the object {object}", file.shown.display()));
    };
    // Names that are older than a move have the number before it.
    let own = objects.iter().find(|id| {
        id.is_of(inode, bound.born_ns.unwrap_or(0)) && **id != bound && named == Some(id.number)
    });
    if let Some(own) = own {
        return refused(format!("{} has its data, {own}", file.shown.display()));
    }
    // Of an interrupted call both may be there; what is left decides.
    if given == bound && objects.iter().any(|id| id.number == given.number && *id != given) {
        return refused(format!("{object} is a part of the object that was being given"));
    }
    let owner = (inode, bound.born_ns.unwrap_or(0));
    check_free(given, owner, origin.servers())?;
    // Until all servers have followed, some would have its bytes and others zeros, which nobody could tell from holes.
    let failed = || Error::at(&file.shown, "note the object of");
    given.number.announce_to(&file.fd).map_err(failed())?;
    origin.sync_names()?;
    rename_objects(origin.servers(), &|other| (other == given).then_some(owner))?;
    given.number.name_by(&file.fd, XattrFlags::REPLACE).map_err(failed())?;
    origin.sync_names()
}

/// Checks that the object `id` can become that of the file with this inode number and birth time.
///
/// # Errors
/// [`Error::Invalid`] if a server has both this object and one of that file with the same number.
fn check_free(id: ObjectId, file: (u64, u64), servers: &[std::sync::Arc<Server>]) -> Result<()> {
    let own = ObjectId::of_file(id.number, file.0, file.1);
    for server in servers {
        let there = ids_on(server, ObjectId::ROOT);
        let there = there.map_err(Error::at(server.dir(), "list the objects in"))?;
        if own != id && there.contains(&own) && there.contains(&id) {
            let what = format!("the file has an object of its own, {own}, beside {id}");
            return Err(Error::invalid(what, "leave it as it is, or remove the file's own one"));
        }
    }
    Ok(())
}

/// Gives each object the name that it has as one of its `owner`, if that says whose it is.
fn rename_objects(
    servers: &[std::sync::Arc<Server>],
    owner: &dyn Fn(ObjectId) -> Option<(u64, u64)>,
) -> Result<()> {
    for server in servers {
        let failed = || Error::at(server.dir(), "bind the objects in");
        // A layout first: an object without one has no bytes that anybody could read.
        for root in [object_paths::LAYOUTS, ObjectId::ROOT] {
            for id in ids_on(server, root).map_err(failed())? {
                let Some((inode, born_ns)) = owner(id) else { continue };
                let bound = ObjectId::of_file(id.number, inode, born_ns);
                if bound == id {
                    continue;
                }
                match server.directory().rename(&id.path_in(root), &bound.path_in(root)) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => {
                        let path = server.dir().join(id.path_in(root));
                        tracing::warn!("{}: left as it is, its file has another", path.display());
                    }
                    other => other.map_err(failed())?,
                }
            }
        }
        server.directory().sync_all().map_err(failed())?;
    }
    Ok(())
}

fn tell_of_several(named: &Claims) {
    tracing::warn!(
        "{} and {} name the same data: remove the one that was copied past the mount, then run \
         halocline fsck, which tells how the other one gets it",
        named.paths.0.display(),
        named.paths.1.display()
    );
}

/// The files that refer to each object.
fn claims(tree: &Path) -> Result<HashMap<ObjectNumber, Claims>> {
    let mut claims: HashMap<ObjectNumber, Claims> = HashMap::new();
    let unread = each_file(tree, &mut |file, state| {
        let Some(number) = state.reference.object() else { return Ok(()) };
        let named = claims.entry(number).or_insert_with(|| Claims {
            files: Vec::new(),
            paths: (file.shown.clone(), file.shown.clone()),
        });
        let key = (state.inode, state.born_ns);
        if !named.files.contains(&key) {
            named.files.push(key);
            file.shown.clone_into(&mut named.paths.1);
        }
        Ok(())
    })?;
    unread.into_iter().next().map_or(Ok(claims), Err)
}
