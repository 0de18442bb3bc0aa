//! Links and special files that the shared disk did not follow. They carry no number, and are what their names say.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::xattr;

use super::disks::Disk;
use super::merge::{At, FoundNames, name_of};
use super::scan::tell;
use super::view::View;
use crate::acl::ACCESS;
use crate::places::shared_disk::links_and_devices;
use crate::places::tree::candidates;

/// A name of the store that the disk does not have: its directory, its name, its number, and its attributes.
type Missing<'v> = (u64, &'v Name, u64, &'v Attributes);

/// What a sound store has no name for. In a directory that was put there by hand it gets one.
pub(super) fn without_name(view: &View, found: &FoundNames) -> Vec<At> {
    let known = view.others.iter().flat_map(|((directory, name), (number, _))| {
        candidates(name, *number).map(|name| (*directory, name))
    });
    let known: BTreeSet<(u64, Name)> = known.collect();
    let by_hand = found.directories.iter().filter(|one| !one.is_numbered);
    let by_hand: BTreeSet<u64> = by_hand.map(|one| one.number).collect();
    let others = found.others.iter().filter(|one| {
        !known.contains(&(one.directory, one.name.clone())) && !by_hand.contains(&one.directory)
    });
    others.map(|one| one.at).collect()
}

/// What a store has and the disk has not, or not as it should be.
fn missing<'v>(shared: &Disk, view: &'v View, found: &FoundNames) -> Vec<Missing<'v>> {
    let keeps_acls = keeps_acls(shared);
    let there: BTreeMap<(u64, &Name), &Attributes> =
        found.others.iter().map(|one| ((one.directory, &one.name), &one.attributes)).collect();
    let is_there = |directory: u64, name: &Name, number: u64, of: &Attributes| {
        let mut names = candidates(name, number).into_iter();
        names.any(|name| {
            there.get(&(directory, &name)).is_some_and(|there| is_same(there, of, keeps_acls))
        })
    };
    let all =
        view.others.iter().map(|((directory, name), (number, of))| (*directory, name, *number, of));
    all.filter(|(directory, name, number, of)| !is_there(*directory, name, *number, of)).collect()
}

/// Lists them, for people.
pub(super) fn tell_missing(shared: &Disk, view: &View, found: &FoundNames, list: &mut Vec<String>) {
    for (directory, name, ..) in missing(shared, view, found) {
        tell(list, view.path(directory, name));
    }
}

/// Whether both are the same link or device, for which the same is allowed.
fn is_same(one: &Attributes, other: &Attributes, keeps_acls: bool) -> bool {
    let acl = |of: &Attributes| of.xattrs.get(ACCESS).cloned();
    let owner = |of: &Attributes| (of.uid, of.gid);
    (one.kind, one.rdev, &one.target) == (other.kind, other.rdev, &other.target)
        && owner(one) == owner(other)
        && (one.kind == Kind::Symlink || one.mode == other.mode)
        && (!keeps_acls || acl(one) == acl(other))
}

/// Whether the shared disk keeps ACLs.
fn keeps_acls(shared: &Disk) -> bool {
    let found = shared.tree.look(None).map_err(Error::from);
    let found = found.and_then(|root| xattr::get_on(&root, OsStr::from_bytes(ACCESS)));
    !found.is_err_and(|error| error.errno() == libc::EOPNOTSUPP)
}

/// Puts those that lie beside their names, because files lay there, at their names where these are free by now; else
/// beside them, by the numbers that they have in the store by now.
fn put_at_names(shared: &Disk, view: &View, found: &FoundNames) -> Result<()> {
    for one in &found.others {
        let lies_at = name_of(&shared.scanned.items[one.at.1]);
        let Some((number, _)) = view.others.get(&(one.directory, one.name.clone())) else {
            continue;
        };
        if lies_at == one.name {
            continue;
        }
        let Some(above) = shared.tree.find(&view.steps(one.directory))? else { continue };
        for name in candidates(&one.name, *number).iter().take_while(|name| **name != lies_at) {
            match shared.tree.rename_between((&above.0, &lies_at), (&above.0, name)) {
                Err(error) if error.errno() == libc::EEXIST => {}
                Err(error) if error.errno() != libc::ENOENT => return Err(error),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Makes what is missing; directories are where the store has them, and files have left what is not their place.
pub(super) fn make(shared: &Disk, view: &View, found: &FoundNames) -> Result<()> {
    put_at_names(shared, view, found)?;
    for (directory, name, number, of) in missing(shared, view, found) {
        if let Some(above) = shared.tree.find(&view.steps(directory))? {
            links_and_devices::make(&shared.tree, &above, (name, number), of)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
