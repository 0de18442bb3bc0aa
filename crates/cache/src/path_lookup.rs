//! Whether a file of the origin is gone, or only cannot be examined now.
//!
//! Dirty bytes of a file that is gone have nowhere to go; those of a file that cannot be examined wait. What
//! must hold: a file is gone only if
//! - each directory on its path was examined, and one of them answered that the name does not exist, or belongs to
//!   another file;
//! - the directory that answered is on the same mount as the file was: a mount point on which nothing is mounted yet
//!   shows other directories, which do not have the file;
//! - the whole origin was searched for it, and every directory could be read.

use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use halocline_meta::{FileRecord, OriginKey};
use halocline_os::error::{Error, Result};
use halocline_vfs::Stat;
use halocline_vfs::namespace::{Namespace, Vnode};

/// Stands for a mount that could not be examined: no file on it is considered gone.
const UNKNOWN: OriginKey = OriginKey { inode: 0, born_ns: 0 };

/// Where a path below the origin leads.
enum Lead {
    /// To this node.
    Here(Vnode, Stat),
    /// Nowhere: this node, the last one found, has no such name.
    NotBelow(Vnode),
}

/// Whether an error says that a name does not exist, rather than that this is unknown.
pub(crate) fn says_not_there(error: &Error) -> bool {
    [libc::ENOENT, libc::ENOTDIR].contains(&error.errno())
}

/// The vnode that a record of the cache refers to, with its attributes; `None` if its path now leads to another file,
/// or nowhere. `dir` is the tree's directory, for messages.
///
/// # Errors
/// If that is unknown: names what could not be examined, and why.
pub fn find(
    namespace: &Namespace,
    dir: &Path,
    record: &FileRecord,
) -> Result<Option<(Vnode, Stat)>> {
    let unseen = |error| cannot_look(dir, &record.path, &error);
    let last = match lead_to(namespace, dir, &record.path)? {
        Lead::Here(vnode, stat) if origin_key(&stat) == record.key => {
            return Ok(Some((vnode, stat)));
        }
        Lead::Here(vnode, _) | Lead::NotBelow(vnode) => vnode,
    };
    if mount_of(namespace, &last).map_err(unseen)? == record.mount {
        return Ok(None);
    }
    let what = match record.mount {
        Some(_) => "what it lies on is not mounted there",
        None => "something else is mounted there",
    };
    Err(Error::at(dir.join(&record.path), LOOK)(io::Error::other(what)))
}

fn lead_to(namespace: &Namespace, dir: &Path, path: &Path) -> Result<Lead> {
    let mut vnode = namespace.root();
    let mut stat =
        namespace.stat(&vnode).map_err(|error| cannot_look(dir, Path::new(""), &error))?;
    let mut at = PathBuf::new();
    for name in path {
        at.push(name);
        (vnode, stat) = match namespace.lookup(&vnode, name) {
            Ok(found) => found,
            Err(error) if says_not_there(&error) => return Ok(Lead::NotBelow(vnode)),
            Err(error) => return Err(cannot_look(dir, &at, &error)),
        };
    }
    Ok(Lead::Here(vnode, stat))
}

/// Root of the mount below the tree's root that `vnode` is on; `None` if it is on the root's own mount.
fn mount_of(namespace: &Namespace, vnode: &Vnode) -> Result<Option<OriginKey>> {
    let of_root = namespace.mount_of(&namespace.root())?;
    let mount = namespace.mount_of(vnode)?;
    if mount == of_root {
        return Ok(None);
    }
    let mut root = vnode.clone();
    while let Some((parent, _)) = root.known_as()
        && namespace.mount_of(&parent)? == mount
    {
        root = parent;
    }
    Ok(Some(origin_key(&namespace.stat(&root)?)))
}

/// The operation on a path below the origin that failed, for errors.
const LOOK: &str = "look at it";

/// An error of examining a path below `dir`, with the path.
pub(crate) fn cannot_look(dir: &Path, path: &Path, error: &Error) -> Error {
    Error::at(dir.join(path), LOOK)(io::Error::from_raw_os_error(error.errno()))
}

/// The vnode at a path below the origin, if there is one. An error means that this is unknown, and names what could
/// not be examined.
pub(crate) fn vnode_at(namespace: &Namespace, dir: &Path, path: &Path) -> Result<Option<Vnode>> {
    match lead_to(namespace, dir, path)? {
        Lead::Here(vnode, _) => Ok(Some(vnode)),
        Lead::NotBelow(_) => Ok(None),
    }
}

/// The mount that a file is on, for its record.
pub(crate) fn known_mount_of(namespace: &Namespace, vnode: &Vnode) -> Option<OriginKey> {
    mount_of(namespace, vnode).unwrap_or(Some(UNKNOWN))
}

/// Identity on the origin of what `stat` describes.
pub(crate) fn origin_key(stat: &Stat) -> OriginKey {
    let born_ns = stat
        .born
        .and_then(|born| born.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
    OriginKey { inode: stat.raw.st_ino, born_ns }
}
