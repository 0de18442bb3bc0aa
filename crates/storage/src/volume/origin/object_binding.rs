//! Binds the objects of a striped origin to the files that refer to them: if no version has done so yet, or if inode
//! numbers are new because the tree was copied or restored.
//!
//! What must hold: an object to which two files refer belongs to neither, because one of them may refer to it to reach
//! the other's data. The tree is only read; an interrupted pass is repeated.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::identity::{ObjectId, ObjectNumber};
use super::orphans::ids_on;
use super::tree_walk::{FileState, each_file};
use crate::volume::{Server, object_paths};
use halocline_os::error::{Error, Result};

/// An inode number that no file has.
const NOBODY: u64 = 0;

/// The files that refer to an object.
struct Claims {
    /// Their inode numbers, without duplicates.
    inodes: Vec<u64>,
    /// A name of the first file, and of the last of the others.
    paths: (PathBuf, PathBuf),
}

/// Whether the inode numbers in the objects' names are those of this tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bindings {
    /// They are those of another tree, or there are none.
    Old,
    /// They are this tree's: an object of an existing file remains that file's.
    Present,
}

/// Durably binds the objects on `servers` to the files below `tree`.
pub(super) fn bind(
    tree: &Path,
    servers: &[std::sync::Arc<Server>],
    bindings: Bindings,
) -> Result<()> {
    let claims = claims(tree)?;
    for server in servers {
        bind_below(server, ObjectId::ROOT, &claims, bindings)?;
        bind_below(server, object_paths::LAYOUTS, &claims, bindings)?;
        let failed = Error::at(server.dir(), "bind the objects in");
        server.directory().sync_all().map_err(failed)?;
    }
    Ok(())
}

/// Binds the objects below `root` on a server.
fn bind_below(
    server: &Server,
    root: &str,
    claims: &HashMap<ObjectNumber, Claims>,
    bindings: Bindings,
) -> Result<()> {
    let failed = || Error::at(server.dir(), "bind the objects in");
    for id in ids_on(server, root).map_err(failed())? {
        let Some(named) = claims.get(&id.number) else { continue };
        let inode = if let [inode] = named.inodes[..] {
            inode
        } else {
            tell_of_several(named);
            let stays = id.inode.is_some_and(|inode| named.inodes.contains(&inode));
            if bindings == Bindings::Present && stays {
                continue;
            }
            NOBODY
        };
        let bound = ObjectId { inode: Some(inode), ..id };
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
    Ok(())
}

fn tell_of_several(named: &Claims) {
    tracing::warn!(
        "{} and {} name the same data: remove the one that was copied past the mount, then run \
         halocline fsck --repair",
        named.paths.0.display(),
        named.paths.1.display()
    );
}

/// The files that refer to each object.
fn claims(tree: &Path) -> Result<HashMap<ObjectNumber, Claims>> {
    let mut claims: HashMap<ObjectNumber, Claims> = HashMap::new();
    each_file(tree, &mut |file| {
        let Some(FileState { reference, inode, .. }) = file.state()? else { return Ok(()) };
        let Some(number) = reference.object() else { return Ok(()) };
        let named = claims.entry(number).or_insert_with(|| Claims {
            inodes: Vec::new(),
            paths: (file.shown.clone(), file.shown.clone()),
        });
        if !named.inodes.contains(&inode) {
            named.inodes.push(inode);
            file.shown.clone_into(&mut named.paths.1);
        }
        Ok(())
    })?;
    Ok(claims)
}
