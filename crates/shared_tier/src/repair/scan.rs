//! Scans one disk: every directory, file and link below its root, with the claims in their attributes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::names::attributes::{Attributes, Kind, Location, RelativePath};
use halocline_cluster::names::coding::encode_attributes;
use halocline_model::namespace::Name;
use halocline_os::beneath;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use crate::entry_names::REGISTRY;
use crate::places::own_xattrs::{self, TwoNames};
use crate::places::tree::Tree;
use crate::stat_conversion::{joined, kind};

/// The most lines of each kind that are kept for display.
const TOLD_MAX: usize = 1000;

/// How many steps of a path that is too long are shown.
const SHOWN_STEPS: usize = 3;

/// Something on a disk.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) path: RelativePath,
    /// The item of the parent directory; `None` in the root.
    pub(crate) above: Option<usize>,
    pub(crate) attributes: Attributes,
    /// Device and inode number on the disk.
    pub(crate) key: (u64, u64),
    /// The number that it claims.
    pub(crate) number: Option<u64>,
    /// The names that it claims.
    pub(crate) names: Vec<(u64, Name)>,
    pub(crate) leaving: Option<u64>,
    pub(crate) arriving: Option<u64>,
    /// Where the old copy is, as it claims, if it is the new one.
    pub(crate) from: Option<Location>,
    /// An unfinished rename of it and another file, as it claims.
    pub(crate) renaming: Option<TwoNames>,
}

/// Everything on a disk; directories come before their contents.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) items: Vec<Item>,
    /// The root's attributes.
    pub(crate) root: Option<Attributes>,
    /// What could not be read, and why.
    pub(crate) unread: Vec<String>,
}

/// Reads a disk. Unreadable things are listed, and hide nothing else.
pub(crate) fn scan(tree: &Tree) -> Result<Scanned> {
    let mut scanned = Scanned { root: Some(describe(&tree.look(None)?)?.0), ..Scanned::default() };
    let mut todo: Vec<Option<usize>> = vec![None];
    while let Some(above) = todo.pop() {
        let path = above.map(|at| scanned.items[at].path.clone());
        let names = match names(tree, path.as_ref()) {
            Ok(names) => names,
            Err(error) => {
                let path = path.map_or_else(|| "/".to_owned(), |path| path.to_string());
                tell(&mut scanned.unread, format!("{path}: {error}"));
                continue;
            }
        };
        for name in names {
            if above.is_none() && [PRIVATE, REGISTRY].iter().any(|ours| name == **ours) {
                continue;
            }
            let Some(path) = RelativePath::below(path.as_ref(), name.as_bytes()) else {
                tell(&mut scanned.unread, too_long(path.as_ref(), &name));
                continue;
            };
            match item(tree, &path, above) {
                Ok(Some(item)) => {
                    if item.attributes.kind == Kind::Directory {
                        todo.push(Some(scanned.items.len()));
                    }
                    scanned.items.push(item);
                }
                // It was removed meanwhile.
                Ok(None) => {}
                Err(error) => tell(&mut scanned.unread, format!("{path}: {error}")),
            }
        }
    }
    Ok(scanned)
}

/// Keeps a line for display, unless there are too many.
pub(crate) fn tell(lines: &mut Vec<String>, line: String) {
    if lines.len() < TOLD_MAX {
        lines.push(line);
    }
}

fn names(tree: &Tree, path: Option<&RelativePath>) -> Result<Vec<std::ffi::OsString>> {
    let dir = tree.look(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut names = beneath::names(openat(&dir, ".", flags, Mode::empty())?)?;
    // Sorted, so that decisions that depend on the order are reproducible.
    names.sort_unstable();
    Ok(names)
}

fn item(tree: &Tree, path: &RelativePath, above: Option<usize>) -> Result<Option<Item>> {
    let fd = match tree.look_at_link(path) {
        Err(Errno::NOENT) => return Ok(None),
        fd => fd?,
    };
    let is_link = stat_descriptor(&fd)?.kind() == libc::S_IFLNK;
    let claims = |what| if is_link { None } else { own_xattrs::number(&fd, what) };
    let what = match stat_descriptor(&fd)?.kind() {
        libc::S_IFDIR => own_xattrs::DIRECTORY,
        _ => own_xattrs::INODE,
    };
    let number = claims(what).filter(|number| *number > 1);
    let names = if is_link { Vec::new() } else { own_xattrs::names(&fd) };
    let (leaving, arriving) = (claims(own_xattrs::LEAVING), claims(own_xattrs::ARRIVING));
    let from = if is_link { None } else { own_xattrs::from(&fd) };
    let renaming = if is_link { None } else { own_xattrs::renaming(&fd) };
    let (attributes, stat) = describe(&fd)?;
    let (key, path) = (stat.key(), path.clone());
    Ok(Some(Item {
        path,
        above,
        attributes,
        key,
        number,
        names,
        leaving,
        arriving,
        from,
        renaming,
    }))
}

/// The attributes of something, in the form of the store.
fn describe(fd: &OwnedFd) -> Result<(Attributes, Stat)> {
    let stat = stat_descriptor(fd)?;
    let raw = &stat.raw;
    let kind = kind(raw.st_mode);
    let mut attributes =
        Attributes::new(kind, raw.st_mode & 0o7777, joined(raw.st_mtime, raw.st_mtime_nsec));
    (attributes.uid, attributes.gid, attributes.rdev) = (raw.st_uid, raw.st_gid, raw.st_rdev);
    attributes.atime_ns = joined(raw.st_atime, raw.st_atime_nsec);
    attributes.ctime_ns = joined(raw.st_ctime, raw.st_ctime_nsec);
    if kind == Kind::File {
        attributes.size = raw.st_size.unsigned_abs();
    }
    if kind == Kind::Symlink {
        attributes.target = readlinkat(fd, "", Vec::new())?.into_bytes();
    } else {
        attributes.xattrs = xattrs(fd, &attributes)?;
    }
    Ok((attributes, stat))
}

/// Says where a path is too long: whoever looks for it needs the way to it more than its end.
fn too_long(above: Option<&RelativePath>, name: &OsStr) -> String {
    let mut way = above.into_iter().flat_map(|above| above.as_path().components());
    let first: PathBuf = way.by_ref().take(SHOWN_STEPS).collect();
    format!(
        "{}/ and {} directories below it, then {}: its path is too long; move a directory on this way to a place nearer to \
         the root, past the mounts",
        first.as_os_str().as_bytes().escape_ascii(),
        way.count(),
        name.as_bytes().escape_ascii(),
    )
}

/// The extended attributes that programs see, except for those for which the store has no room.
fn xattrs(fd: &impl AsFd, attributes: &Attributes) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match xattr::list_on(fd) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(BTreeMap::new()),
        names => names?,
    };
    let mut with = attributes.clone();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if xattr::hidden_xattr(OsStr::from_bytes(name)) {
            continue;
        }
        if let Ok(value) = xattr::get_on(fd, OsStr::from_bytes(name)) {
            with.xattrs.insert(name.to_vec(), value);
            if encode_attributes(&with).is_none() {
                with.xattrs.remove(name);
                tracing::warn!(name = %name.escape_ascii(), "an extended attribute that is too long is left out");
            }
        }
    }
    Ok(with.xattrs)
}
