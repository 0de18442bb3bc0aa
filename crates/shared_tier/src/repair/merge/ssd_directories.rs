//! Which directories those on SSDs are: they only say in which directory files are.
//!
//! A directory on an SSD is the one whose number it has, wherever it lies. One without a number (an earlier version adopted
//! it, or somebody put it there by hand) is the one in which a sound store has the files that lie in it: it may have been
//! renamed since. Where the store does not say it, the path decides.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;

use super::{Builder, missed_changes, name_of};
use crate::places::tree::candidates;

/// Adds the directories of all SSDs.
pub(super) fn add(builder: &mut Builder<'_>) -> Result<()> {
    let known: BTreeSet<u64> = builder.directory_of.values().copied().collect();
    for disk in 1..builder.disks.len() {
        let of_files = of_files(builder, disk);
        let scanned = &builder.disks[disk].scanned;
        let number = |at: usize| {
            let own = scanned.items[at].number.filter(|number| known.contains(number));
            own.or_else(|| of_files.get(&at).copied().filter(|number| known.contains(number)))
        };
        let needed = scanned
            .with_files(&|at| missed_changes::needs_its_directory(builder, (disk, at)), &|at| {
                number(at).is_some()
            });
        for at in builder.of_kind(disk, |kind| kind == Kind::Directory) {
            if let Some(number) = number(at.1) {
                builder.directory_of.insert(at, number);
                continue;
            }
            let item = builder.item(at);
            let (above, name) = (builder.above(at), name_of(item));
            let number = match builder.taken.get(&(above, name.clone())) {
                Some(Some(number)) => *number,
                _ if !needed.contains(&at.1) => continue,
                taken => {
                    let is_taken = taken.is_some();
                    // Its own number, if the shared disk has lost the directory.
                    let own = item.number.filter(|number| {
                        builder.is_given(*number) && !builder.owners.contains_key(number)
                    });
                    let number = match own {
                        Some(number) => number,
                        None => builder.numbers.fresh()?,
                    };
                    let [plain, numbered] = candidates(&name, number);
                    builder.told(at, "its directory is missing on the shared disk");
                    let name = if is_taken { numbered } else { plain };
                    builder.directory_of.insert(at, number);
                    builder.directory(at, number, name, false);
                    number
                }
            };
            builder.directory_of.insert(at, number);
        }
    }
    Ok(())
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
