//! Which dirty regions a flush for room takes, and in which order (ours; docs/ALGORITHMS.md, section 5.2).
//!
//! A region's cost on a disk depends little on how many of its bytes are dirty, so the densest free the most room for
//! the disk's time. Of equally dense ones, the latest written are taken: programs that go over a file again and again
//! write next what they wrote the longest time ago, and what is written over while it is dirty need not go to the
//! origin at all.

use std::cmp::Reverse;

use crate::request::ByteRange;

/// A region with dirty bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyRegion {
    /// The region.
    pub range: ByteRange,
    /// How many of its bytes are dirty.
    pub dirty: u64,
    /// When one of them was last written, as a number that grows with each write.
    pub written: u64,
}

/// Keeps of `regions` as many as it takes to hold `enough` dirty bytes, the densest ones and of equally dense ones the
/// latest written, in the order in which they are given.
pub fn densest<T>(regions: Vec<T>, of: impl Fn(&T) -> DirtyRegion, enough: u64) -> Vec<T> {
    let sum: u64 = regions.iter().map(|region| of(region).dirty).fold(0, u64::saturating_add);
    if sum <= enough {
        return regions;
    }
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_unstable_by_key(|&at| {
        let DirtyRegion { dirty, written, .. } = of(&regions[at]);
        (Reverse(dirty), Reverse(written), at)
    });
    let (mut sum, mut taken) = (0_u64, vec![false; regions.len()]);
    for at in order {
        if sum >= enough {
            break;
        }
        taken[at] = true;
        sum = sum.saturating_add(of(&regions[at]).dirty);
    }
    let mut taken = taken.into_iter();
    regions.into_iter().filter(|_| taken.next() == Some(true)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(at: u64, dirty: u64, written: u64) -> DirtyRegion {
        DirtyRegion { range: ByteRange::at(at * 100, 100), dirty, written }
    }

    fn starts(regions: &[DirtyRegion], enough: u64) -> Vec<u64> {
        let taken = densest(regions.to_vec(), |region| *region, enough);
        taken.iter().map(|region| region.range.start / 100).collect()
    }

    #[test]
    fn the_densest_regions_are_taken_in_the_order_given() {
        let regions = [
            region(0, 9, 1),
            region(1, 80, 2),
            region(2, 10, 3),
            region(3, 90, 4),
            region(4, 50, 5),
        ];
        assert_eq!(starts(&regions, 150), [1, 3]);
        assert_eq!(starts(&regions, 171), [1, 3, 4]);
        assert_eq!(starts(&regions, 1000), [0, 1, 2, 3, 4]);
        assert_eq!(starts(&regions, 0), [0; 0]);
    }

    #[test]
    fn of_equally_dense_ones_the_latest_written_are_taken() {
        let regions = [region(0, 80, 7), region(1, 80, 9), region(2, 80, 8), region(3, 79, 10)];
        assert_eq!(starts(&regions, 80), [1]);
        assert_eq!(starts(&regions, 81), [1, 2]);
        assert_eq!(starts(&regions, 240), [0, 1, 2]);
    }
}
