//! Files that left their SSDs before an earlier state of these was put back.

use super::{At, Builder};

/// Whether what an SSD has of a file is from before the file left it: a sound store has the file on another disk, and it was found
/// there. Only directories that are closed to others are believed to have had it.
pub(super) fn has_left(builder: &Builder<'_>, number: u64, paths: &[At]) -> bool {
    let disk = &builder.disks[paths[0].0];
    let stored = builder.view.files.get(&number).and_then(|file| file.attributes.location.as_ref());
    disk.node.is_some()
        && builder.at_places.contains(&number)
        && stored.is_some_and(|place| place.node != disk.node)
}
