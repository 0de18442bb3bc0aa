//! Which directories those on SSDs are: they only say in which directory files are.
//!
//! A directory on an SSD is the one whose number it has, wherever it lies, and never one with another number: not even the one
//! that has its path on the shared disk. That one may have been made, by somebody else, after it was removed. One without a
//! number (an earlier version adopted it, or somebody put it there by hand) is the one in which a sound store has the files
//! that lie in it: it may have been renamed since. Where the store does not say it, the path decides.

use std::collections::BTreeMap;

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;

use super::{At, Builder, copied_directories, missed_changes, name_of};
use crate::places::tree::candidates;
use crate::repair::conflicts::conflict;

/// Adds the directories of all SSDs.
pub(super) fn add(builder: &mut Builder<'_>) -> Result<()> {
    // What directories claim to be, by the numbers that they get.
    let claimed =
        builder.directory_of.iter().map(|(at, number)| (*number, builder.item(*at).number));
    let mut claimed: BTreeMap<u64, Option<u64>> = claimed.collect();
    for disk in 1..builder.disks.len() {
        let of_files = of_files(builder, disk);
        let copies = copied_directories::of(builder, disk);
        let number = |builder: &Builder<'_>, at: At| {
            let is_known = |number: &u64| builder.owners.contains_key(number);
            let own = builder.item(at).number.filter(|number| builder.is_given(*number));
            let own = own.filter(is_known).filter(|_| !copies.contains(&at));
            own.or_else(|| of_files.get(&at.1).copied().filter(is_known))
        };
        let needed = builder.disks[disk]
            .scanned
            .with_files(&|at| missed_changes::needs_its_directory(builder, (disk, at)), &|at| {
                number(builder, (disk, at)).is_some()
            });
        for at in builder.of_kind(disk, |kind| kind == Kind::Directory) {
            if let Some(number) = number(builder, at) {
                builder.directory_of.insert(at, number);
                continue;
            }
            // Nothing in it needs it, if nothing in the one above needs that.
            let above = builder.item(at).above.map(|above| (disk, above));
            if above.is_some_and(|above| !builder.directory_of.contains_key(&above)) {
                continue;
            }
            let (item, place) = (builder.item(at), (builder.above(at), name_of(builder.item(at))));
            let is_same = |number: &u64| item.number.is_none() || item.number == claimed[number];
            let at_path = builder.taken.get(&place).copied().flatten().filter(is_same);
            if at_path.is_none() && !needed.contains(&at.1) {
                continue;
            }
            let number = match at_path {
                Some(number) => number,
                None => add_one(builder, at, copies.contains(&at))?,
            };
            claimed.entry(number).or_insert(item.number);
            builder.directory_of.insert(at, number);
        }
        builder.copied_directories.extend(copies);
    }
    Ok(())
}

/// Adds a directory that the shared disk does not have.
fn add_one(builder: &mut Builder<'_>, at: At, is_copy: bool) -> Result<u64> {
    let (item, above) = (builder.item(at), builder.above(at));
    // Its own number, if the shared disk has lost the directory.
    let is_lost = |number: &u64| builder.is_given(*number) && !builder.owners.contains_key(number);
    let number = match item.number.filter(is_lost).filter(|_| !is_copy) {
        Some(number) => number,
        None => builder.numbers.fresh()?,
    };
    let place = (above, name_of(item));
    let is_taken = builder.taken.contains_key(&place) || {
        let is_its = builder.view.directories.get(&number) == Some(&place);
        builder.view.names.contains(&place) && !is_its
    };
    let shown = builder.disks[at.0].shown(at.1);
    let what = if is_copy {
        "it says that it is another directory, and gets a number of its own"
    } else {
        "its directory is missing on the shared disk"
    };
    let [plain, numbered] = candidates(&place.1, number);
    if is_taken {
        builder.conflicts(at, number, conflict(&shown, &plain, number));
    } else {
        builder.told_if_named(at, number, format!("{shown}: {what}"));
    }
    builder.directory_of.insert(at, number);
    builder.directory(at, number, if is_taken { numbered } else { plain }, false);
    Ok(number)
}

/// For each directory on an SSD: the one in which a sound store has the files that lie in it under no other name than their
/// own, if it is the same for all of them. All others have their names listed with them.
fn of_files(builder: &Builder<'_>, disk: usize) -> BTreeMap<usize, u64> {
    let mut all: BTreeMap<usize, Option<u64>> = BTreeMap::new();
    for at in builder.of_kind(disk, |kind| kind == Kind::File) {
        let item = builder.item(at);
        let (Some(above), Some(number)) = (item.above, item.number) else { continue };
        let Some(stored) = builder.view.files.get(&number) else { continue };
        let [(directory, name)] = stored.names.as_slice() else { continue };
        let is_its = item.names.is_empty() && *name == item.name;
        if is_its && builder.is_stored_file(number, &[at]) {
            let found = all.entry(above).or_insert(Some(*directory));
            *found = found.filter(|other| other == directory);
        }
    }
    all.into_iter().filter_map(|(at, number)| Some((at, number?))).collect()
}

#[cfg(test)]
mod tests;
