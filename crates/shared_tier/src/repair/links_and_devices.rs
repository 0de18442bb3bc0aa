//! Links and special files that the shared disk did not follow. They carry no number, and are what their names say.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::{stat_descriptor, xattr};

use super::disks::Disk;
use super::findings::{About, Finding, note};
use super::merge::{At, FoundNames, FoundOther, Numbers, name_of};
use super::refused::Refused;
use super::view::View;
use crate::acl::ACCESS;
use crate::places::own_xattrs::NameIn;
use crate::places::shared_disk::links_and_devices::{self, several_names};
use crate::places::tree::candidates;

/// Device and inode number.
type Inode = (u64, u64);

/// A name of the store that the disk does not have: its directory, its name, its number, and its attributes.
type Missing<'v> = (u64, &'v Name, u64, &'v Attributes);

/// A link or special file, with the number that it gets, and all its names.
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) names: Vec<NameIn>,
    pub(super) attributes: Attributes,
}

/// Numbers what gets names. Names of one inode on the disk have one number: in a rebuilt store that by which it is known
/// on the disk (`several`).
pub(super) fn numbered(
    others: &[&FoundOther],
    (several, is_rebuilt): (&BTreeMap<u64, Inode>, bool),
    numbers: &mut dyn Numbers,
) -> Result<Vec<Numbered>> {
    let known: BTreeMap<Inode, u64> = several.iter().map(|(number, key)| (*key, *number)).collect();
    let mut by_inode: BTreeMap<Inode, Vec<&FoundOther>> = BTreeMap::new();
    for other in others {
        by_inode.entry(other.key).or_default().push(other);
    }
    let mut all = Vec::with_capacity(by_inode.len());
    for (key, names) in by_inode {
        let known = known.get(&key).copied();
        let number = match known.filter(|known| is_rebuilt && *known < numbers.first_unused()) {
            Some(number) => number,
            None => numbers.fresh()?,
        };
        let attributes = names[0].attributes.clone();
        let names = names.iter().map(|one| (one.directory, one.name.clone())).collect();
        all.push(Numbered { number, names, attributes });
    }
    Ok(all)
}

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

/// What a store has and the disk has not, or not as it should be. `inodes` are those of numbers with several names.
fn missing<'v>(
    shared: &Disk,
    view: &'v View,
    found: &FoundNames,
    mut inodes: BTreeMap<u64, Inode>,
) -> Vec<Missing<'v>> {
    let keeps_acls = keeps_acls(shared);
    let there: BTreeMap<(u64, &Name), &FoundOther> =
        found.others.iter().map(|one| ((one.directory, &one.name), one)).collect();
    let is_at = |(directory, name, number, of): &Missing<'v>| {
        let mut names = candidates(name, *number).into_iter();
        let one = names.find_map(|name| there.get(&(*directory, &name)).copied());
        one.filter(|one| is_same(&one.attributes, of, keeps_acls)).map(|one| one.key)
    };
    let counts = counts(view);
    // Names of one number are names of one inode: the known one, or that of the first name.
    let mut is_there = |one: &Missing<'v>| {
        let is_at = is_at(one);
        is_at.is_some_and(|at| counts[&one.2] < 2 || *inodes.entry(one.2).or_insert(at) == at)
    };
    let all =
        view.others.iter().map(|((directory, name), (number, of))| (*directory, name, *number, of));
    all.filter(|one| !is_there(one)).collect()
}

/// How many names each link and special file of the store has.
fn counts(view: &View) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for (number, _) in view.others.values() {
        *counts.entry(*number).or_default() += 1;
    }
    counts
}

/// What is said of a link or special file that could not be made.
const NOT_MADE: &str = "it cannot be made on the shared disk";

/// Has one inode for each number with several names, by which it is found, and none for numbers that are gone.
fn keep_several(shared: &Disk, view: &View, refused: &mut Refused) -> Result<BTreeMap<u64, Inode>> {
    let (counts, mut inodes) = (counts(view), BTreeMap::new());
    for ((directory, name), (number, of)) in &view.others {
        if counts[number] > 1
            && let Some(above) = shared.tree.find(&view.steps(*directory))?
        {
            let kept = several_names::open_or_make(&shared.tree, &above, (name, *number), of);
            let key = kept.and_then(|kept| Ok(stat_descriptor(&kept)?.key()));
            let path = view.path(*directory, name);
            if let Some(key) = refused.unless((&path, *number), NOT_MADE, key)? {
                inodes.insert(*number, key);
            }
        }
    }
    let mut gone = shared.several.keys().filter(|number| !counts.contains_key(number));
    gone.try_for_each(|number| several_names::forget(&shared.tree, *number))?;
    Ok(inodes)
}

/// Lists them, for people.
pub(super) fn tell_missing(
    shared: &Disk,
    view: &View,
    found: &FoundNames,
    list: &mut Vec<Finding>,
) {
    for (directory, name, number, of) in missing(shared, view, found, shared.several.clone()) {
        let about = About::Numbered(number, of.ctime_ns);
        note(list, Finding::new(about, view.path(directory, name)));
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

/// Whether a disk keeps ACLs.
pub(super) fn keeps_acls(disk: &Disk) -> bool {
    let found = disk.tree.look(None).map_err(Error::from);
    let found = found.and_then(|root| xattr::get_on(&root, OsStr::from_bytes(ACCESS)));
    !found.is_err_and(|error| error.errno() == libc::EOPNOTSUPP)
}

/// Puts those that lie beside their names, because files lay there, at their names where these are free by now; else
/// beside them, by the numbers that they have in the store by now.
fn put_at_names(
    shared: &Disk,
    view: &View,
    found: &FoundNames,
    refused: &mut Refused,
) -> Result<()> {
    for one in &found.others {
        let lies_at = name_of(&shared.scanned.items[one.at.1]);
        let Some((number, _)) = view.others.get(&(one.directory, one.name.clone())) else {
            continue;
        };
        if lies_at == one.name {
            continue;
        }
        let path = shared.shown(one.at.1);
        let Some(above) = shared.tree.find(&view.steps(one.directory))? else { continue };
        for name in candidates(&one.name, *number).iter().take_while(|name| **name != lies_at) {
            match shared.tree.rename_between((&above.0, &lies_at), (&above.0, name)) {
                Err(error) if error.errno() == libc::EEXIST => {}
                Err(error) if error.errno() != libc::ENOENT => {
                    refused.is_made((&path, *number), "it stays beside its name", Err(error))?;
                    break;
                }
                _ => break,
            }
        }
    }
    Ok(())
}

/// Makes what is missing; directories are where the store has them, and files have left what is not their place.
pub(super) fn make(
    shared: &Disk,
    view: &View,
    found: &FoundNames,
    refused: &mut Refused,
) -> Result<()> {
    put_at_names(shared, view, found, refused)?;
    let inodes = keep_several(shared, view, refused)?;
    for (directory, name, number, of) in missing(shared, view, found, inodes) {
        if let Some(above) = shared.tree.find(&view.steps(directory))? {
            let made = links_and_devices::make(&shared.tree, &above, (name, number), of);
            refused.is_made((&view.path(directory, name), number), NOT_MADE, made.map(drop))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
