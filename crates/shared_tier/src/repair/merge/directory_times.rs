//! When the names in directories were changed last, from all their copies (`crate::places::directory_times`).

use std::collections::BTreeMap;

use super::Builder;
use crate::places::directory_times::newest;

/// Gives each directory the newest of its times, but none from before a note, which says what was right then.
pub(super) fn set(builder: &mut Builder<'_>) {
    let mut mirrors: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for (at, number) in builder.directory_of.iter().filter(|(at, _)| at.0 > 0) {
        mirrors.entry(*number).or_default().push(builder.item(*at).attributes.mtime_ns);
    }
    let disks = builder.disks;
    for directory in &mut builder.found.directories {
        let shared = directory.at.map(|at| &disks[at.0].scanned.items[at.1]);
        let dated = shared.and_then(|item| item.dated);
        let mirrors = mirrors.remove(&directory.number).unwrap_or_default();
        let times = mirrors.into_iter().chain(shared.map(|item| item.attributes.mtime_ns));
        if let Some(newest) = newest(dated, times) {
            directory.attributes.mtime_ns = newest;
        }
    }
}
