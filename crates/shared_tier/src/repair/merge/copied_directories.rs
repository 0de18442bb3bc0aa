//! Directories on an SSD that somebody has copied there with all attributes (`cp -a`), and that claim the numbers of others.
//!
//! Several directories of one SSD may have one number: after a rename, new files get another directory than those that were
//! there before. So a copy is known by its files only: none of them is where the store has it, or the only one with its number,
//! and some have the numbers of others there. In a sound store, files without numbers say as much.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::Kind;

use super::{At, Builder};

/// What lies in a directory, or below it.
#[derive(Debug, Default, Clone, Copy)]
struct Below {
    /// A file that is certainly no copy.
    is_home: bool,
    has_copies: bool,
    has_new: bool,
}

/// The directories of an SSD that are copies.
pub(super) fn of(builder: &Builder<'_>, disk: usize) -> BTreeSet<At> {
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let directories = builder.of_kind(disk, |kind| kind == Kind::Directory);
    for at in &directories {
        if let Some(number) = builder.item(*at).number.filter(|number| builder.is_given(*number)) {
            groups.entry(number).or_default().push(at.1);
        }
    }
    let mut copies = BTreeSet::new();
    if groups.values().all(|group| group.len() == 1) {
        return copies;
    }
    let below = below(builder, disk);
    let on_shared_disk = builder.directory_of.iter().filter(|(at, _)| at.0 == 0);
    let on_shared_disk: BTreeMap<u64, usize> =
        on_shared_disk.map(|(at, number)| (*number, at.1)).collect();
    let is_sound = !builder.view.directory_attributes.is_empty();
    // A directory comes before what is in it.
    let mut groups: Vec<(u64, Vec<usize>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| group[0]);
    for (number, group) in groups {
        let is_in_copy = |at: usize| {
            let above = builder.item((disk, at)).above;
            above.is_some_and(|above| copies.contains(&(disk, above)))
        };
        if group.len() == 1 && !is_in_copy(group[0]) {
            continue;
        }
        let path = on_shared_disk.get(&number).map(|at| builder.disks[0].scanned.path(*at));
        let is_at_path = |at: usize| {
            path.as_ref().is_some_and(|path| builder.disks[disk].scanned.is_path(at, path))
        };
        let may_be_copy = |at: usize| {
            let Below { is_home, has_copies, has_new } = below[at];
            !is_home && !is_at_path(at) && (has_copies || is_sound && has_new)
        };
        let original = group.iter().enumerate().max_by_key(|(order, at)| {
            let place = (is_at_path(**at), !is_in_copy(**at));
            (below[**at].is_home, place, std::cmp::Reverse(*order))
        });
        let original = original.map(|(_, at)| *at).filter(|at| !is_in_copy(*at));
        let others = group.iter().filter(|at| Some(**at) != original && may_be_copy(**at));
        let others: Vec<At> = others.map(|at| (disk, *at)).collect();
        copies.extend(others);
    }
    copies
}

/// For each item of an SSD, what lies below it.
fn below(builder: &Builder<'_>, disk: usize) -> Vec<Below> {
    let scanned = &builder.disks[disk].scanned;
    let mut all = vec![Below::default(); scanned.items.len()];
    for at in builder.of_kind(disk, |kind| kind == Kind::File) {
        let item = builder.item(at);
        let is_moved = item.arriving.is_some() || item.leaving.is_some() && !item.is_only_copied;
        let what = match item.number.filter(|number| builder.is_given(*number)) {
            None => Below { has_new: true, ..Below::default() },
            Some(number) => {
                let others = scanned.with_number(number).iter().map(|other| &scanned.items[*other]);
                let is_only = others.clone().all(|other| other.key == item.key);
                let is_home = is_only || builder.is_stored_file(number, &[at]);
                Below { is_home, has_copies: !is_home && !is_moved, has_new: false }
            }
        };
        let mut above = item.above;
        while let Some(directory) = above {
            let known = &mut all[directory];
            let adds = what.is_home && !known.is_home
                || what.has_copies && !known.has_copies
                || what.has_new && !known.has_new;
            if !adds {
                break;
            }
            known.is_home |= what.is_home;
            known.has_copies |= what.has_copies;
            known.has_new |= what.has_new;
            above = scanned.items[directory].above;
        }
    }
    all
}
