//! Regions that are alike get the same widths first, all at once.
//!
//! Where each of many processes has a file of its own, the slowest of them decides: widths that are better for all files
//! gain nothing while only one file has them, and a search that changes one file after the other stops there.

use super::placement::Place;
use crate::workload::{Region, Weighted};

/// A region, with its file.
#[derive(Debug)]
pub(super) struct Item<'a> {
    pub(super) file: u32,
    pub(super) processes: u64,
    pub(super) region: &'a Region,
    pub(super) requests: Vec<Weighted>,
}

/// Regions with the same usual length of requests, and the same direction.
#[derive(Debug)]
pub(super) struct Group {
    /// Their indices, those with the most traffic first.
    pub(super) members: Vec<usize>,
    /// Candidates for their first parts, sorted by the cost model.
    pub(super) first: Vec<Vec<u64>>,
    /// Candidates for their rest, where the SSDs have no more space.
    pub(super) rest: Vec<Vec<u64>>,
}

/// The groups of `items`, of which `busiest_first` has those with the most traffic first; the groups of these come first.
pub(super) fn groups(items: &[Item<'_>], busiest_first: &[usize]) -> Vec<Group> {
    let kind = |item: &Item<'_>| (item.region.size, item.region.writes() > 0.5);
    let mut groups: Vec<(_, Group)> = Vec::new();
    for &index in busiest_first {
        let kind = kind(&items[index]);
        if let Some((_, group)) = groups.iter_mut().find(|(known, _)| *known == kind) {
            group.members.push(index);
            continue;
        }
        let (first, rest) = (Vec::new(), Vec::new());
        groups.push((kind, Group { members: vec![index], first, rest }));
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Where the items are in their files, and in which group.
pub(super) fn places(items: &[Item<'_>], groups: &[Group]) -> Vec<Place> {
    let mut of = vec![0; items.len()];
    for (number, group) in groups.iter().enumerate() {
        for &index in &group.members {
            of[index] = number;
        }
    }
    let places = items.iter().zip(of).map(|(item, group)| {
        let Region { begin, end, .. } = *item.region;
        Place { file: item.file, begin, end, group }
    });
    places.collect()
}
