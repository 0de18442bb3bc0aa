//! The papers' heuristic: knows the references to come and weights them by size.

use std::cmp::Reverse;

use super::recency::Recency;
use super::{FileId, Keep, Outlook};

/// Algorithms 4 and 5 (docs/ALGORITHMS.md, section 8.1). The paper assumes that the references are known; if they are
/// not, this is LRU.
#[derive(Debug)]
pub(super) struct Heuristic {
    unknown: Recency,
}

impl Default for Heuristic {
    fn default() -> Self {
        Self { unknown: Recency::lru() }
    }
}

/// Later references times size: the gain of a file that comes in, or the cost of one that leaves.
fn weight(outlook: &dyn Outlook, file: FileId) -> u128 {
    u128::from(outlook.later(file, u64::MAX)) * u128::from(outlook.size(file))
}

/// Files by cost, ascending; ties: larger first, then by name.
fn by_cost(cached: Vec<FileId>, outlook: &dyn Outlook) -> Vec<(u128, FileId)> {
    let mut order: Vec<(u128, FileId)> =
        cached.into_iter().map(|file| (weight(outlook, file), file)).collect();
    order.sort_by(|one, other| {
        let key = |(cost, file): &(u128, FileId)| (*cost, Reverse(outlook.size(*file)));
        key(one).cmp(&key(other)).then_with(|| outlook.by_name(one.1, other.1))
    });
    order
}

impl Keep for Heuristic {
    fn referenced(&mut self, file: FileId, bytes: u64) {
        self.unknown.referenced(file, bytes);
    }

    fn removed(&mut self, file: FileId) {
        self.unknown.removed(file);
    }

    fn leaving(&mut self, cached: Vec<FileId>, outlook: &dyn Outlook) -> Vec<FileId> {
        if !outlook.is_known() {
            return self.unknown.leaving(cached, outlook);
        }
        by_cost(cached, outlook).into_iter().map(|(_, file)| file).collect()
    }

    fn make_room(
        &mut self,
        file: FileId,
        free: u64,
        cached: &dyn Fn() -> Vec<FileId>,
        outlook: &dyn Outlook,
    ) -> Option<Vec<FileId>> {
        if !outlook.is_known() {
            return self.unknown.make_room(file, free, cached, outlook);
        }
        outlook.next(file)?;
        let (size, gain) = (outlook.size(file), weight(outlook, file));
        if free >= size {
            return Some(Vec::new());
        }
        let (mut leaving, mut freed, mut cost) = (Vec::new(), free, 0);
        for (weight, file) in by_cost(cached(), outlook) {
            if freed >= size {
                break;
            }
            cost += weight;
            if cost >= gain {
                return None;
            }
            freed += outlook.size(file);
            leaving.push(file);
        }
        (freed >= size).then_some(leaving)
    }
}
