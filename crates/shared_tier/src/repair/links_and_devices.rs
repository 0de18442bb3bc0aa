//! Links and special files that the shared disk did not follow. They carry no number, and are what their names say.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;

use super::disks::Disk;
use super::findings::{About, Finding, note};
use super::merge::{At, FoundNames, FoundOther, Numbers, name_of};
use super::refused::Refused;
use super::view::View;
use crate::acl::ACCESS;
use crate::places::own_xattrs::NameIn;
use crate::places::shared_disk::links_and_devices::{
    self, Inode, OfStore, beside, keeping, several_names,
};
use crate::places::tree::candidates;

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
    let by_hand = found.directories.iter().filter(|one| !one.is_numbered);
    let by_hand: BTreeSet<u64> = by_hand.map(|one| one.number).collect();
    let others = found.others.iter().filter(|one| {
        !view.others.contains_key(&(one.directory, one.name.clone()))
            && !by_hand.contains(&one.directory)
    });
    others.map(|one| one.at).collect()
}

/// What a store has and the disk has not, or not as it should be. `kept` are the inodes that the disk keeps for numbers.
fn missing<'v>(
    shared: &Disk,
    view: &'v View,
    found: &FoundNames,
    mut kept: Kept,
) -> Vec<Missing<'v>> {
    let keeps_acls = shared.keeps_acls();
    let there: BTreeMap<(u64, &Name), &FoundOther> =
        found.others.iter().map(|one| ((one.directory, &one.name), one)).collect();
    let is_at = |(directory, name, number, of): &Missing<'v>| {
        let one = there.get(&(*directory, *name)).copied();
        let one = one.filter(|one| is_same(&one.attributes, of, keeps_acls));
        one.filter(|_| !kept.doubled.contains(number)).map(|one| one.key)
    };
    let all =
        view.others.iter().map(|((directory, name), (number, of))| (*directory, name, *number, of));
    let all: Vec<(Missing<'v>, Option<Inode>)> = all.map(|one| (one, is_at(&one))).collect();
    let mut is_there =
        |number, inode: Option<Inode>| inode.is_some_and(|inode| kept.is_or_becomes(number, inode));
    let left = all.into_iter().filter(|(one, inode)| !is_there(one.2, *inode));
    left.map(|(one, _)| one).collect()
}

/// Which inode each number is. Names of one number are names of one inode, the kept one or that of the first name; names
/// of two numbers are names of two.
#[derive(Debug, Default)]
struct Kept {
    inodes: BTreeMap<u64, Inode>,
    numbers: BTreeMap<Inode, u64>,
    /// Numbers for which the disk keeps an inode that it keeps for another number, too.
    doubled: BTreeSet<u64>,
}

impl Kept {
    /// Those that the disk keeps for numbers that the store has; of two numbers with one inode, the first has it.
    fn of(shared: &Disk, counts: &BTreeMap<u64, usize>) -> Self {
        let mut kept = Self::default();
        for (number, inode) in &shared.several {
            if counts.contains_key(number) && !kept.is_or_becomes(*number, *inode) {
                kept.doubled.insert(*number);
            }
        }
        kept
    }

    /// Whether a number is an inode, or becomes it: if it is no other one, and the inode is no other number.
    fn is_or_becomes(&mut self, number: u64, inode: Inode) -> bool {
        let is_another = self.inodes.get(&number).is_some_and(|is| *is != inode);
        if is_another || self.numbers.get(&inode).is_some_and(|of| *of != number) {
            return false;
        }
        self.inodes.insert(number, inode);
        self.numbers.insert(inode, number);
        true
    }
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

/// Has one inode for each number with several names, by which it is found, and none for numbers that are gone. Nodes are
/// not mounted.
fn keep_several(shared: &Disk, view: &View, refused: &mut Refused) -> Result<Kept> {
    let (counts, tree) = (counts(view), &shared.tree);
    let mut kept = Kept::of(shared, &counts);
    let gone = shared.several.keys().filter(|number| !counts.contains_key(number));
    let mut wrong = gone.chain(&kept.doubled);
    wrong.try_for_each(|number| several_names::forget(tree, *number))?;
    kept.doubled.clear();
    for ((directory, name), (number, of)) in &view.others {
        if counts[number] > 1
            && !kept.inodes.contains_key(number)
            && let Some(above) = tree.find(&view.steps(*directory))?
        {
            let is_free = |inode| !kept.numbers.contains_key(&inode);
            let made = keeping::keep_alone(tree, &above, (name, *number), of, is_free);
            let inode = made.and_then(|made| Ok(stat_descriptor(&made)?.key()));
            let path = view.path(*directory, name);
            if let Some(inode) = refused.unless((&path, *number), NOT_MADE, inode)? {
                kept.is_or_becomes(*number, inode);
            }
        }
    }
    Ok(kept)
}

/// Lists them, for people, and what lies beside its name though that is free, or without a note of it. Returns how many of
/// those the nodes are about to put at their names, if some live.
pub(super) fn tell_missing(
    shared: &Disk,
    view: &View,
    (found, nodes_live): (&FoundNames, bool),
    list: &mut Vec<Finding>,
) -> u64 {
    let kept = Kept::of(shared, &counts(view));
    for (directory, name, number, of) in missing(shared, view, found, kept) {
        let about = About::Numbered(number, of.ctime_ns);
        note(list, Finding::new(about, view.path(directory, name)));
    }
    let noted: BTreeSet<(u64, &NameIn)> =
        shared.beside.iter().map(|beside| (beside.number, &beside.name)).collect();
    let mut under_way = 0;
    for one in &found.others {
        let (item, place) = (&shared.scanned.items[one.at.1], (one.directory, one.name.clone()));
        let Some((number, of)) = view.others.get(&place).filter(|_| item.name != one.name) else {
            continue;
        };
        let at_name = shared.scanned.beside(item, &one.name);
        let has_it = at_name.is_some_and(|other| !other.attributes.kind.is_other());
        match (noted.contains(&(*number, &place)), has_it) {
            (true, true) => {}
            (true, false) if nodes_live => under_way += 1,
            _ => {
                let about = About::Numbered(*number, of.ctime_ns);
                note(list, Finding::new(about, view.path(one.directory, &one.name)));
            }
        }
    }
    under_way
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

/// Puts those that lie beside their names, because files or directories were there, at their names where these are free by
/// now; else beside them, by the numbers that they have in the store by now, which is noted. All other notes are out of date.
fn put_at_names(
    shared: &Disk,
    view: &View,
    found: &FoundNames,
    refused: &mut Refused,
) -> Result<()> {
    let mut noted = BTreeSet::new();
    for one in &found.others {
        let lies_at = name_of(&shared.scanned.items[one.at.1]);
        let Some((number, _)) = view.others.get(&(one.directory, one.name.clone())) else {
            continue;
        };
        if lies_at == one.name {
            continue;
        }
        let put = put_at_name(shared, view, (one, *number), &mut noted);
        let path = shared.shown(one.at.1);
        refused.is_made((&path, *number), "it stays beside its name", put)?;
    }
    let left = shared.beside.iter().filter(|beside| !noted.contains(&beside.note));
    left.map(|beside| &beside.note).try_for_each(|note| beside::forget(&shared.tree, note))
}

fn put_at_name(
    shared: &Disk,
    view: &View,
    (one, number): (&FoundOther, u64),
    noted: &mut BTreeSet<OsString>,
) -> Result<()> {
    let (tree, lies_at) = (&shared.tree, name_of(&shared.scanned.items[one.at.1]));
    let Some(above) = tree.find(&view.steps(one.directory))? else { return Ok(()) };
    for name in candidates(&one.name, number) {
        if name != one.name {
            noted.insert(beside::note(tree, (number, &(one.directory, one.name.clone())))?);
        }
        if name == lies_at {
            break;
        }
        match tree.rename_between((&above.0, &lies_at), (&above.0, &name)) {
            Err(error) if error.errno() == libc::EEXIST => {}
            Err(error) if error.errno() != libc::ENOENT => return Err(error),
            _ => break,
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
    let kept = keep_several(shared, view, refused)?;
    let has =
        |directory: u64, name: &Name| Ok(view.others.contains_key(&(directory, name.clone())));
    for (directory, name, number, of) in missing(shared, view, found, kept) {
        if let Some(above) = shared.tree.find(&view.steps(directory))? {
            let of_store: OfStore<'_> = (&shared.tree, &has);
            let made = links_and_devices::make(of_store, &above, (name, number), of);
            refused.is_made((&view.path(directory, name), number), NOT_MADE, made.map(drop))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
