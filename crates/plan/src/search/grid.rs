//! Widths of one region in equal steps, as far as there is time to replay them all.
//!
//! A search from good beginnings stops where every change of one or two widths makes it slower. With requests that few
//! steps divide, much better widths may be beyond that, and no cost model tells where.

use super::candidates::every_combination;
use crate::layout::WIDTH_BYTES_MAX;
use crate::servers::Servers;

/// The step unless there are too many: what a page has, in bytes.
const STEP: u64 = 4096;
/// The widest for small requests, in bytes; for longer ones it is a whole request.
const WIDEST_MIN: u64 = 64 << 10;
/// Fewer widths for each class than this are not worth it: the search from good beginnings has tried them.
const CHOICES_MIN: u64 = 8;

/// Widths for the first part of a region and for its rest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// For each server, all combinations of the classes.
    pub(super) first: Vec<Vec<u64>>,
    /// The same, of the slowest class alone.
    pub(super) rest: Vec<Vec<u64>>,
    /// Whether there is time for every combination of the two, not only for one after the other.
    pub(super) all_pairs: bool,
}

impl Grid {
    /// For requests of `size` bytes, with at most `replays`; `None` if these are too few.
    pub(super) fn new(servers: &Servers, size: u64, replays: u64) -> Option<Self> {
        let classes = u32::try_from(servers.classes().len()).ok()?;
        // With many classes, or long requests, saturated.
        let first = |choices: u64| (choices + 1).saturating_pow(classes);
        let pairs = |choices: u64| first(choices).saturating_mul(choices);
        // Others' traces may have requests of exbibytes.
        let widest = size.clamp(WIDEST_MIN, WIDTH_BYTES_MAX);
        let wanted = widest.div_ceil(STEP);
        let all_pairs = pairs(wanted) <= replays;
        // Twice one after the other, because the best of one depends on the other.
        let twice = |choices: u64| first(choices).saturating_add(choices).saturating_mul(2);
        let fits = |choices: &u64| all_pairs || twice(*choices) <= replays;
        let most = (CHOICES_MIN..=wanted.min(replays)).rev().find(fits)?;
        // Even parts of a request, if it has any.
        let even = |choices: &u64| widest.is_multiple_of(choices * STEP);
        let choices = (CHOICES_MIN..=most).rev().find(even).unwrap_or(most);
        let step = widest.div_ceil(choices).next_multiple_of(STEP);
        let widths: Vec<u64> =
            (0..=choices).map(|number| (number * step).min(WIDTH_BYTES_MAX)).collect();
        let by_class = every_combination(&widths, servers.classes().len());
        let used = by_class.iter().filter(|widths| widths.iter().any(|width| *width > 0));
        let slowest = widths.iter().filter(|width| **width > 0);
        Some(Self {
            first: used.map(|widths| servers.widths(widths)).collect(),
            rest: slowest.map(|width| servers.widths(&[*width])).collect(),
            all_pairs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::candidates::tests::unequal;
    use crate::servers::disk_and_ssd;

    const K: u64 = 1024;

    #[test]
    fn the_grid_is_as_fine_as_there_are_replays() {
        // 16 widths of each class and none, but not none of both; 16 of the rest.
        let fine = Grid::new(&disk_and_ssd(), 8 * K, 5000).expect("replays");
        assert_eq!((fine.first.len(), fine.rest.len(), fine.all_pairs), (17 * 17 - 1, 16, true));
        assert!(fine.first.contains(&vec![4 * K, 60 * K]) && fine.rest.contains(&vec![64 * K, 0]));
        let one_after_the_other = Grid::new(&disk_and_ssd(), 8 * K, 1000).expect("replays");
        assert_eq!((one_after_the_other.first.len(), one_after_the_other.all_pairs), (288, false));
        let coarse = Grid::new(&disk_and_ssd(), 1024 * K, 1000).expect("replays");
        assert!(coarse.first.contains(&vec![0, 1024 * K]), "{:?}", coarse.rest);
        assert!(2 * (coarse.first.len() + coarse.rest.len()) <= 1000);
        assert_eq!(Grid::new(&disk_and_ssd(), 8 * K, 100), None);
    }

    /// Regression: the number of combinations overflowed, and planning ended with a panic.
    #[test]
    fn of_many_classes_or_long_requests_there_are_too_many_widths_to_try_them_all() {
        let sizes = [4 * K, 512 * K, 1 << 30, 1 << 35, WIDTH_BYTES_MAX, u64::MAX];
        for classes in [1, 2, 3, 4, 8, 10, 64, 600] {
            let servers = unequal(classes);
            for size in sizes {
                let grid = Grid::new(&servers, size, 5000);
                let tried = grid.map_or(0, |grid| 2 * (grid.first.len() + grid.rest.len()));
                assert!(tried <= 5000, "{tried} for {classes} classes and requests of {size}");
            }
        }
        assert_eq!(Grid::new(&unequal(10), 512 * K, 5000), None);
    }
}
