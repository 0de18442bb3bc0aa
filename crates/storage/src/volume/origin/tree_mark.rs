//! The mark of the tree of a striped volume: which volume's names a directory has.
//!
//! A file that is not there has no data, so an empty directory is a tree in which all data of the volume belongs to nobody. What
//! must hold: a directory that is not the volume's tree, such as the mount point of a file system with names that is not mounted, is
//! refused. An extended attribute says so, like the numbers of the files' objects: a copy without the one is without the others. A
//! tree without the right mark, as earlier versions made them, shows by the objects that it names whose it is.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

use super::identity::Reference;
use super::orphans;
use super::tree_walk::each_file;
use crate::volume::Volume;
use halocline_os::error::{Error, Result};

/// The extended attribute of the tree's root with the volume's name.
pub(super) const ATTRIBUTE: &str = "user.halocline.tree";

/// Marks `tree` as that of the volume called `name`, durably.
pub(super) fn write(tree: &File, name: &str) -> io::Result<()> {
    fsetxattr(tree, ATTRIBUTE, name.as_bytes(), XattrFlags::empty())?;
    tree.sync_all()
}

/// Whether the directory at `path` has the mark of any volume.
pub(super) fn is_on(path: &Path) -> bool {
    rustix::fs::getxattr(path, ATTRIBUTE, &mut [0_u8; 64]).is_ok_and(|len| len > 0)
}

/// Whether `tree` has the mark of the volume called `name`; any mark counts for a volume without a name.
fn has(tree: &File, name: Option<&str>) -> io::Result<bool> {
    let mut value = [0_u8; 64];
    match fgetxattr(tree, ATTRIBUTE, &mut value) {
        Ok(len) => Ok(name.is_none_or(|name| name.as_bytes() == &value[..len])),
        // Longer than any name.
        Err(Errno::RANGE | Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Refuses `tree`, the directory `dir`, if it is not that of `volume`, which has this name. Returns whether it is marked: else it
/// names most of the objects, or there are none. `is_bound` says whether it has the inode number of the volume's tree.
pub(super) fn check(
    (tree, dir): (&File, &Path),
    (volume, name): (&Volume, Option<&str>),
    is_bound: bool,
) -> Result<bool> {
    if has(tree, name).map_err(Error::at(dir, "read the mark of"))? {
        return Ok(true);
    }
    let objects = orphans::all(volume)?;
    let objects: BTreeSet<_> = objects.into_iter().map(|id| id.number).collect();
    let all = objects.len();
    let mut named = BTreeSet::new();
    let is_enough = |named: usize| named.saturating_mul(2) >= all;
    let walked = each_file(dir, &mut |_, state| {
        if is_enough(named.len()) {
            // Nothing more needs to be read.
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        if let Reference::Object(number) = state.reference
            && objects.contains(&number)
        {
            named.insert(number);
        }
        Ok(())
    });
    if is_enough(named.len()) {
        return Ok(false);
    }
    // Users can keep others from looking into their directories, but nobody from using a volume.
    match walked {
        Err(_) if is_bound => return Ok(false),
        Ok(unread) if is_bound && !unread.is_empty() => return Ok(false),
        other => drop(other?),
    }
    let (dir, named) = (dir.display(), named.len());
    let name = name.unwrap_or("known");
    Err(Error::invalid(
        format!(
            "{dir}: its files name {named} of the {all} objects on the servers, and it has no mark: it is not the tree of this \
             volume, or was restored without extended attributes"
        ),
        format!(
            "mount the file system with the names there, or restore the tree with its extended attributes; if you know that \
             these are all names that are left, mark it: setfattr -n {ATTRIBUTE} -v {name} {dir}"
        ),
    ))
}
