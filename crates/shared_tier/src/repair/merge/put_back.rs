//! Files that left their disks before an earlier state of these was put back, and files beside others with their numbers: older
//! states, or copies made by `cp -a` past the mounts, which nothing tells apart
//! (`docs/decisions/0106-shared-disks-that-were-put-back.md`).
//!
//! What must hold: none of them gives anybody but its owner what the other one, or its place, refuses.

use super::{At, Builder};
use crate::narrower_attributes::narrower;
use crate::places::tree::candidates;

/// What is said of a file beside another one of its owner with its number.
pub(super) const BESIDE: &str = "there is another file with its number, of which it may be an older state: it gets a number of its own, and a mode that \
     admits nobody but its owner (chmod, if it is a copy that others may open)";
/// And beside one of another owner.
pub(super) const OF_ANOTHER: &str = "it says that it is another's file, and gets a number of its own, and a mode that admits nobody but its owner (chmod, if it is \
     a copy that others may open)";

/// Whether what a disk has of a file is from before the file left it: a sound store has the file elsewhere, and it was found there.
/// Of an SSD, only directories that are closed to others are believed to have had it. On the shared disk users make copies, but none
/// at a name of the file itself.
pub(super) fn has_left(builder: &Builder<'_>, number: u64, paths: &[At]) -> bool {
    let Some(stored) = builder.view.files.get(&number) else { return false };
    let disk = &builder.disks[paths[0].0];
    if !builder.at_places.contains(&number) || builder.is_stored_file(number, paths) {
        return false;
    }
    if disk.node.is_some() {
        let place = stored.attributes.location.as_ref();
        return place.is_some_and(|place| place.node != disk.node);
    }
    let is_at_its_name = |at: &At| {
        let (above, shown) = (builder.above(*at), &builder.item(*at).name);
        let mut names = stored.names.iter();
        names.any(|(of, name)| *of == above && candidates(name, number).contains(shown))
    };
    paths.iter().any(is_at_its_name)
}

/// In a rebuild nobody knows which of several files with one number, and one owner, is the older one: that which keeps the number
/// gets what all of them grant.
pub(super) fn narrow(builder: &mut Builder<'_>, number: u64, beside: &[At]) {
    if !builder.view.directory_attributes.is_empty() {
        return;
    }
    let (all, claims) = (builder.disks, &mut builder.claims);
    let Some(claim) = claims.iter_mut().rev().find(|claim| claim.file.number == number) else {
        return;
    };
    let file = &mut claim.file;
    let (at, before) = (file.at, file.attributes.mode);
    for other in beside {
        let keep_acls = [at.0, other.0].iter().all(|disk| all[*disk].keeps_acls());
        let of = &all[other.0].scanned.items[other.1].attributes;
        file.attributes = narrower(&file.attributes, of, keep_acls);
    }
    let mode = file.attributes.mode;
    if mode != before {
        let path = all[at.0].shown(at.1);
        let line = format!(
            "{path}: there is another file with its number, and which is newer is not known, so it gets what both grant: mode {mode:o}"
        );
        builder.told_if_named(at, number, line);
    }
}
