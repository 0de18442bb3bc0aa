//! Chooses the dirty regions of a file for a sweep.

use std::collections::VecDeque;

use halocline_model::flush_order;
use halocline_model::request::ByteRange;

/// A region with dirty extents that begin in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirtyRegion {
    pub(super) range: ByteRange,
    pub(super) dirty: u64,
    /// Where the last of them ends, which may lie in a later region.
    pub(super) end: u64,
    /// The latest generation of them: it grows with each write.
    pub(super) generation: u64,
}

/// Which of a file's dirty regions a sweep flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// What begins in this range.
    Of(ByteRange),
    /// The densest ones, and of equally dense ones the latest written, as many as it takes to hold this many dirty
    /// bytes.
    Densest(u64),
}

/// The regions that `which` selects, in offset order.
pub(super) fn chosen(mut regions: Vec<DirtyRegion>, which: Which) -> VecDeque<ByteRange> {
    if let Which::Of(range) = which {
        regions.retain(|region| region.range.start < range.end && range.start < region.end);
        for region in &mut regions {
            region.range.start = region.range.start.max(range.start);
            region.range.end = region.range.end.min(range.end);
        }
        regions.retain(|region| !region.range.is_empty());
    }
    if let Which::Densest(enough) = which {
        let of = |region: &DirtyRegion| flush_order::DirtyRegion {
            range: region.range,
            dirty: region.dirty,
            written: region.generation,
        };
        regions = flush_order::densest(regions, of, enough);
    }
    regions.into_iter().map(|region| region.range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(at: u64, dirty: u64) -> DirtyRegion {
        let range = ByteRange::at(at * 100, 100);
        DirtyRegion { range, dirty, end: range.start + dirty, generation: 0 }
    }

    #[test]
    fn the_densest_regions_are_taken_in_offset_order() {
        let regions =
            vec![region(0, 9), region(1, 80), region(2, 10), region(3, 90), region(4, 50)];
        let starts = |which| -> Vec<u64> {
            chosen(regions.clone(), which).iter().map(|range| range.start / 100).collect()
        };
        assert_eq!(starts(Which::Densest(150)), [1, 3]);
        assert_eq!(starts(Which::Densest(171)), [1, 3, 4]);
        assert_eq!(starts(Which::Densest(1000)), starts(Which::All));
        assert_eq!(starts(Which::Of(ByteRange::new(150, 301))), [1, 2, 3]);
        assert_eq!(starts(Which::Of(ByteRange::new(180, 200))), [0; 0]);
        let part = chosen(regions.clone(), Which::Of(ByteRange::new(150, 301)));
        let parts = [(150, 200), (200, 300), (300, 301)];
        assert_eq!(part, parts.map(|(start, end)| ByteRange::new(start, end)));
    }
}
