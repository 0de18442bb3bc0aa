//! The cached parts of a stretch of a file.
//!
//! Most of a replay's time is spent waiting for memory, so an extent is small, and the search for one begins where it
//! would be if all were equally long.

use std::ops::{Index, IndexMut, Range};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use rustc_hash::FxHashMap;

/// Bytes of a file in a region; positions in it fit in 32 bits.
pub(super) const REGION_BYTES: u64 = 2 << 20;

/// Instead of a slot: the extent is dirty, and not being flushed, or was written to since its flush began.
const DIRTY: u32 = u32::MAX;
/// Instead of a slot: it is being flushed, and was not written to since its flush began.
const FLUSHING: u32 = u32::MAX - 1;

/// A cached range of a region. What must hold: it is not empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    start: u32,
    end: u32,
    pub(super) placement: Placement,
    /// Its slot in the eviction queue if it is clean; no eviction policy uses the two values above.
    slot: u32,
}

impl Extent {
    /// `range` of a file, within one region; dirty if it has no slot.
    pub(super) fn new(range: ByteRange, placement: Placement, slot: Option<u32>) -> Self {
        let start = within(range.start);
        let len = u32::try_from(range.len()).expect("no extent is longer than a region");
        Self { start, end: start + len, placement, slot: slot.unwrap_or(DIRTY) }
    }

    /// Its range of the file, if it is in region `number`.
    pub(super) const fn range(&self, number: u64) -> ByteRange {
        let begin = number * REGION_BYTES;
        ByteRange::new(begin + self.start as u64, begin + self.end as u64)
    }

    pub(super) const fn is_dirty(&self) -> bool {
        matches!(self.slot, DIRTY | FLUSHING)
    }

    /// Whether it is dirty, and was written to since its last flush began.
    pub(super) const fn waits_for_flush(&self) -> bool {
        self.slot == DIRTY
    }

    pub(super) const fn is_flushing(&self) -> bool {
        self.slot == FLUSHING
    }

    /// Its slot in the eviction queue, if it is clean.
    pub(super) const fn slot(&self) -> Option<u32> {
        if self.is_dirty() { None } else { Some(self.slot) }
    }
}

/// The position of a byte of a file in its region.
const fn within(at: u64) -> u32 {
    (at % REGION_BYTES) as u32
}

/// A file, and the number of a region in it.
pub(super) type RegionKey = (u32, u64);

/// The extents of a region, ascending. In one line of a processor's cache: at random, each lookup waits for memory.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Region {
    pub(super) key: RegionKey,
    extents: Vec<Extent>,
    pub(super) dirty: u32,
    /// Bytes of its dirty extents that are not being flushed.
    waiting: u32,
    /// When one of its bytes was last written, as a number that grows.
    pub(super) written: u64,
}

/// Regions of one file that are found by their number in an array: those of the first 128 GiB.
const ARRAY_MAX: usize = 1 << 16;
/// Limit of the files with such an array, which takes 256 KiB at most.
const ARRAYS_MAX: usize = 256;
/// Instead of an index: there is no such region.
const NONE: u32 = u32::MAX;

/// All regions with extents, each with a permanent index: code that knows the index need not look the region up.
///
/// A hash of all of them is larger than a processor's caches, and looking up most of a replay's time. What must hold: the
/// regions of a file with an array that are below [`ARRAY_MAX`] are in the array, and no others.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// By file and number.
    arrays: FxHashMap<u32, Vec<u32>>,
    others: FxHashMap<RegionKey, u32>,
    all: Vec<Region>,
    free: Vec<u32>,
}

/// Where in a file's array the region `number` is, if it is in one.
fn in_array(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|number| *number < ARRAY_MAX)
}

impl Regions {
    pub(super) fn find(&self, key: RegionKey) -> Option<u32> {
        match (self.arrays.get(&key.0), in_array(key.1)) {
            (Some(array), Some(number)) => array.get(number).copied().filter(|it| *it != NONE),
            _ => self.others.get(&key).copied(),
        }
    }

    pub(super) fn find_or_add(&mut self, key: RegionKey) -> u32 {
        let (file, number) = key;
        if self.arrays.len() < ARRAYS_MAX {
            self.arrays.entry(file).or_default();
        }
        let place = match (self.arrays.get_mut(&file), in_array(number)) {
            (Some(array), Some(number)) => {
                if number >= array.len() {
                    array.resize(number + 1, NONE);
                }
                &mut array[number]
            }
            _ => self.others.entry(key).or_insert(NONE),
        };
        if *place == NONE {
            *place = self.free.pop().unwrap_or_else(|| {
                self.all.push(Region::default());
                u32::try_from(self.all.len() - 1).expect("fewer than 2^32 regions")
            });
            self.all[*place as usize].key = key;
        }
        *place
    }

    /// Frees a region without extents.
    pub(super) fn release(&mut self, place: u32) {
        let key = self.all[place as usize].key;
        match (self.arrays.get_mut(&key.0), in_array(key.1)) {
            (Some(array), Some(number)) => array[number] = NONE,
            _ => drop(self.others.remove(&key)),
        }
        self.free.push(place);
    }
}

impl Index<u32> for Regions {
    type Output = Region;

    fn index(&self, place: u32) -> &Region {
        &self.all[place as usize]
    }
}

impl IndexMut<u32> for Regions {
    fn index_mut(&mut self, place: u32) -> &mut Region {
        &mut self.all[place as usize]
    }
}

impl Region {
    pub(super) const fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes of its dirty extents that are not being flushed.
    pub(super) fn dirty_bytes(&self) -> u64 {
        u64::from(self.waiting)
    }

    /// Begins to flush its dirty extents; `each` is called with them, ascending.
    pub(super) fn flush(&mut self, mut each: impl FnMut(ByteRange, Placement)) {
        let number = self.key.1;
        for extent in self.extents.iter_mut().filter(|extent| extent.waits_for_flush()) {
            extent.slot = FLUSHING;
            each(extent.range(number), extent.placement);
        }
        self.waiting = 0;
    }

    /// The dirty extents in `part` are written to: a flush in progress will not make them clean. The clean ones are
    /// passed to `clean`.
    pub(super) fn write(&mut self, part: ByteRange, mut clean: impl FnMut(ByteRange, Placement)) {
        let number = self.key.1;
        let mut again = 0;
        for extent in self.overlapping_mut(part) {
            if extent.is_flushing() {
                extent.slot = DIRTY;
                again += extent.end - extent.start;
            } else if !extent.is_dirty() {
                clean(extent.range(number), extent.placement);
            }
        }
        self.waiting += again;
    }

    /// A number from the extents near byte `at` of the file: reading it brings them to the processor.
    pub(super) fn peek(&self, at: u64) -> u32 {
        self.extents.get(self.guess(within(at))).map_or(0, |extent| extent.start)
    }

    /// The extents that have bytes of `part`, which is in this region and not empty.
    pub(super) fn overlapping(&self, part: ByteRange) -> &[Extent] {
        &self.extents[self.places(part)]
    }

    /// The same, mutable.
    pub(super) fn overlapping_mut(&mut self, part: ByteRange) -> &mut [Extent] {
        let places = self.places(part);
        &mut self.extents[places]
    }

    fn places(&self, part: ByteRange) -> Range<usize> {
        let start = within(part.start);
        let end = u64::from(start) + part.len();
        let first = self.first_not(start, |extent| extent.end <= start);
        let behind = self.extents[first..].iter();
        first..first + behind.take_while(|extent| u64::from(extent.start) < end).count()
    }

    /// Adds an extent where nothing is cached.
    pub(super) fn insert(&mut self, extent: Extent) {
        if extent.waits_for_flush() {
            self.waiting += extent.end - extent.start;
        }
        let at = self.first_not(extent.start, |other| other.start < extent.start);
        self.extents.insert(at, extent);
    }

    /// Removes the extent that begins at byte `start` of the file.
    pub(super) fn remove(&mut self, start: u64) -> Extent {
        let start = within(start);
        let at = self.first_not(start, |other| other.start < start);
        self.extents.remove(at)
    }

    /// Where the extent at byte `at` of the region would be if all were equally long.
    fn guess(&self, at: u32) -> usize {
        (u64::from(at) * self.extents.len() as u64 / REGION_BYTES) as usize
    }

    /// The index of the first extent that is not `before` byte `at` of the region, as none after it is: an exponential
    /// search from a guess, then a binary search.
    fn first_not(&self, at: u32, before: impl Fn(&Extent) -> bool) -> usize {
        let (all, len) = (self.extents.as_slice(), self.extents.len());
        let guess = self.guess(at);
        let (mut low, mut high, mut step) = (guess, guess, 1);
        if all.get(guess).is_some_and(&before) {
            while high < len && before(&all[high]) {
                low = high + 1;
                high = (high + step).min(len);
                step *= 2;
            }
        } else {
            while low > 0 && !before(&all[low - 1]) {
                high = low - 1;
                low = low.saturating_sub(step);
                step *= 2;
            }
        }
        low + all[low..high].partition_point(before)
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::layout::Layout;
    use proptest::prelude::*;

    use super::*;

    const PLACED: Placement = Placement { layout: Layout::OneDh, group: 0 };

    fn region(number: u64, marks: &[u32]) -> Region {
        let mut region = Region::default();
        for pair in marks.chunks_exact(2) {
            let begin = number * REGION_BYTES;
            let range = ByteRange::new(begin + u64::from(pair[0]), begin + u64::from(pair[1]));
            region.insert(Extent::new(range, PLACED, None));
        }
        region
    }

    /// Whatever files there are and however far they reach, in arrays and beside them.
    #[test]
    fn regions_are_found_by_file_and_number() {
        let keys = (0..300_u32).flat_map(|file| {
            [0, 1, 7, ARRAY_MAX as u64 - 1, ARRAY_MAX as u64, 1 << 42].map(|number| (file, number))
        });
        let keys: Vec<RegionKey> = keys.collect();
        let mut regions = Regions::default();
        for round in 0..3 {
            assert!(keys.iter().all(|key| regions.find(*key).is_none()), "{round}");
            let places: Vec<u32> = keys.iter().map(|key| regions.find_or_add(*key)).collect();
            for (key, place) in keys.iter().zip(&places) {
                assert_eq!((regions.find(*key), regions[*place].key), (Some(*place), *key));
                assert_eq!(regions.find_or_add(*key), *place);
                assert_eq!(regions.find((key.0, key.1 + 2)), None, "{key:?}");
            }
            for place in places {
                regions.release(place);
            }
        }
        assert_eq!(regions.all.len(), keys.len(), "places are used again");
    }

    proptest! {
        #[test]
        fn what_overlaps_is_found_wherever_the_extents_lie(
            marks in proptest::collection::btree_set(0u32..=2 << 20, 0..40),
            near in any::<bool>(),
            number in 0u64..3,
            (start, len) in (0u64..2 << 20, 1u64..2 << 20),
        ) {
            // In half of the cases all of them are in the first hundredth.
            let marks: Vec<u32> = marks.into_iter().map(|mark| if near { mark / 100 } else { mark }).collect();
            prop_assume!(marks.windows(2).all(|pair| pair[0] < pair[1]));
            let region = region(number, &marks);
            let part = ByteRange::new(start, (start + len).min(REGION_BYTES));
            let part = ByteRange::at(number * REGION_BYTES + part.start, part.len());
            let found: Vec<_> = region.overlapping(part).iter().map(|it| it.range(number)).collect();
            let all = region.extents.iter().map(|it| it.range(number));
            prop_assert_eq!(found, all.filter(|range| range.overlaps(part)).collect::<Vec<_>>());
        }

        #[test]
        fn extents_are_in_order_and_each_can_be_taken_out(
            marks in proptest::collection::vec(0u64..512, 0..80),
        ) {
            let mut region = Region::default();
            let mut there: Vec<u64> = Vec::new();
            for mark in marks {
                if let Some(at) = there.iter().position(|other| *other == mark) {
                    there.remove(at);
                    prop_assert_eq!(region.remove(mark * 4096).range(0), ByteRange::at(mark * 4096, 4096));
                } else {
                    there.push(mark);
                    region.insert(Extent::new(ByteRange::at(mark * 4096, 4096), PLACED, Some(7)));
                }
                let starts: Vec<_> = region.extents.iter().map(|it| u64::from(it.start) / 4096).collect();
                there.sort_unstable();
                prop_assert_eq!(&starts, &there);
            }
        }
    }
}
