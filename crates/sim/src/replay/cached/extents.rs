//! The extents of a simulated cache: which bytes of which files it holds, which of them are dirty, and what leaves.
//!
//! Files are divided into regions, which are found by a hash: an ordered map of a million extents would take most of a
//! replay's time. Every extent is in a single region.
//!
//! What must hold: `used` is the sum of all extents and never exceeds `capacity`; exactly the clean extents are in the
//! eviction queue; a region exists as long as it has extents, and is among the dirty ones as long as it has dirty
//! extents.

use std::collections::BTreeMap;
use std::hint::black_box;

use halocline_model::evict::{Eviction, Walk};
use halocline_model::flush_order::DirtyRegion;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::region::{Extent, REGION_BYTES, RegionKey, Regions};

/// How many requests are looked ahead for at once.
pub(super) const LOOK_AHEAD: usize = 16;

/// A file and an offset.
pub(super) type Key = (u32, u64);

/// Contiguous dirty bytes of a file, in one placement.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) file: u32,
    pub(super) range: ByteRange,
    pub(super) placement: Placement,
}

/// The clean extent of a slot: the index of its region, where in the region it begins, and its length.
#[derive(Debug, Clone, Copy)]
struct SlotExtent {
    place: u32,
    start: u32,
    len: u32,
}

/// The slots of the eviction queue.
#[derive(Debug, Default)]
struct Slots {
    all: Vec<SlotExtent>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes a free slot for the extent `range` of the region with index `place`.
    fn take(&mut self, place: u32, range: ByteRange) -> u32 {
        let short = |bytes| u32::try_from(bytes).expect("a region is shorter than 2^32 bytes");
        let (start, len) = (short(range.start % REGION_BYTES), short(range.len()));
        let extent = SlotExtent { place, start, len };
        if let Some(slot) = self.free.pop() {
            self.all[slot as usize] = extent;
            return slot;
        }
        self.all.push(extent);
        u32::try_from(self.all.len() - 1).expect("fewer than 2^32 extents")
    }
}

#[derive(Debug)]
pub(super) struct Extents {
    capacity: u64,
    pub(super) used: u64,
    pub(super) most_used: u64,
    pub(super) dirty_bytes: u64,
    pub(super) evicted_bytes: u64,
    regions: Regions,
    /// With their indices.
    dirty_regions: BTreeMap<RegionKey, u32>,
    eviction: Box<dyn Eviction>,
    slots: Slots,
    /// What leaves to make room: the index of its region, and where it begins. Empty but for that.
    leaving: Vec<(u32, u64)>,
    /// How many writes there were.
    writes: u64,
    changes: u64,
}

impl Extents {
    pub(super) fn new(capacity: u64, eviction: Box<dyn Eviction>) -> Self {
        Self {
            capacity,
            used: 0,
            most_used: 0,
            dirty_bytes: 0,
            evicted_bytes: 0,
            regions: Regions::default(),
            dirty_regions: BTreeMap::new(),
            eviction,
            slots: Slots::default(),
            leaving: Vec::new(),
            writes: 0,
            changes: 0,
        }
    }

    /// A number that grows with each change of what the cache holds, of what may be evicted, and of the order in which it
    /// leaves: as long as it is the same, room is not made for what found none.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Dirty bytes as a share of the capacity, from 0 to 1; 1 without capacity.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a share")]
    pub(super) fn pressure(&self) -> f32 {
        if self.capacity == 0 {
            1.0
        } else {
            (self.dirty_bytes as f64 / self.capacity as f64) as f32
        }
    }

    /// `range` of `file` in pieces, ascending: with a placement if on the cache, otherwise without. Adjacent pieces are
    /// merged, as a mount serves them. `pieces` is cleared first.
    pub(super) fn pieces(
        &self,
        file: u32,
        range: ByteRange,
        pieces: &mut Vec<(ByteRange, Option<Placement>)>,
    ) {
        pieces.clear();
        let mut add = |piece: ByteRange, placement| match pieces.last_mut() {
            _ if piece.is_empty() => {}
            Some((last, of)) if *of == placement && last.end == piece.start => last.end = piece.end,
            _ => pieces.push((piece, placement)),
        };
        let mut at = range.start;
        for (key, part) in regions_of(file, range) {
            let Some(region) = self.regions.find(key) else { continue };
            for extent in self.regions[region].overlapping(part) {
                let range = extent.range(key.1);
                add(ByteRange::new(at, range.start.max(at)), None);
                let end = range.end.min(part.end);
                add(ByteRange::new(range.start.max(at), end), Some(extent.placement));
                at = end;
            }
        }
        add(ByteRange::new(at, range.end), None);
    }

    /// Reads what the search for these places will read. At random each search waits for memory three times, for the
    /// number of its region, the region, and its extents; those of several requests at once wait no longer than one.
    pub(super) fn look_ahead(&self, upcoming: impl Iterator<Item = Key>) {
        let mut found = [(None, 0); LOOK_AHEAD];
        for (found, (file, at)) in found.iter_mut().zip(upcoming) {
            *found = (self.regions.find((file, at / REGION_BYTES)), at);
        }
        let there = found.iter().filter_map(|(place, at)| Some((&self.regions[(*place)?], *at)));
        black_box(there.fold(0, |sum, (region, at)| sum ^ region.peek(at)));
    }

    /// Notes that the cached parts of `range` were read.
    pub(super) fn touch(&mut self, file: u32, range: ByteRange) {
        self.changes += 1;
        for (key, part) in regions_of(file, range) {
            let Some(region) = self.regions.find(key) else { continue };
            for slot in self.regions[region].overlapping(part).iter().filter_map(Extent::slot) {
                self.eviction.touched(slot);
            }
        }
    }

    /// Makes the cached parts of `range` dirty; adjacent clean bytes stay clean.
    pub(super) fn write(&mut self, file: u32, range: ByteRange) {
        self.writes += 1;
        for (key, part) in regions_of(file, range) {
            let Some(place) = self.regions.find(key) else { continue };
            let mut clean = Vec::new();
            self.regions[place].written = self.writes;
            self.regions[place].write(part, |range, placement| clean.push((range, placement)));
            for (range, placement) in clean {
                self.remove(place, range.start);
                let (start, end) = (range.start, range.end);
                let written = ByteRange::new(start.max(part.start), end.min(part.end));
                for (beside, dirty) in [
                    (ByteRange::new(start, written.start), false),
                    (written, true),
                    (ByteRange::new(written.end, end), false),
                ] {
                    self.put(file, beside, placement, dirty);
                }
            }
        }
    }

    /// Puts `range`, which is not on the cache, there. Room was made for it.
    pub(super) fn put(&mut self, file: u32, range: ByteRange, placement: Placement, dirty: bool) {
        self.used += range.len();
        self.most_used = self.most_used.max(self.used);
        assert!(self.used <= self.capacity, "room is made before the write");
        self.writes += u64::from(dirty);
        self.changes += 1;
        for (key, range) in regions_of(file, range) {
            let place = self.regions.find_or_add(key);
            let slot = (!dirty).then(|| self.slots.take(place, range));
            if let Some(slot) = slot {
                self.eviction.inserted(slot, range.len());
            }
            let region = &mut self.regions[place];
            if dirty {
                self.dirty_bytes += range.len();
                region.dirty += 1;
                region.written = self.writes;
                if region.dirty == 1 {
                    self.dirty_regions.insert(key, place);
                }
            }
            region.insert(Extent::new(range, placement, slot));
        }
    }

    /// Removes the clean extent that begins at byte `start` of the file from the region with index `place`.
    fn remove(&mut self, place: u32, start: u64) {
        self.changes += 1;
        let region = &mut self.regions[place];
        let extent = region.remove(start);
        let range = extent.range(region.key.1);
        assert!(range.start == start, "what leaves is there");
        let slot = extent.slot().expect("what leaves is clean");
        if region.is_empty() {
            self.regions.release(place);
        }
        self.used -= range.len();
        self.eviction.removed(slot);
        self.slots.free.push(slot);
    }

    /// Makes room for `bytes`: uses free bytes first, then evicts whole clean extents outside `spared`, if `may_evict`
    /// allows that many bytes. If that is not enough, evicts nothing and returns false.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        spared: (u32, ByteRange),
        may_evict: u64,
    ) -> bool {
        let free = self.capacity - self.used;
        let wanted = bytes.saturating_sub(free);
        if wanted == 0 {
            return true;
        }
        if wanted > may_evict || bytes > self.capacity {
            return false;
        }
        let (mut found, mut leaving) = (0, std::mem::take(&mut self.leaving));
        let (slots, regions) = (&self.slots, &self.regions);
        self.eviction.victims(&mut |slot| {
            if found >= wanted {
                return Walk::Stop;
            }
            let SlotExtent { place, start, len } = slots.all[slot as usize];
            let (file, number) = regions[place].key;
            let range = ByteRange::at(number * REGION_BYTES + u64::from(start), u64::from(len));
            if file == spared.0 && range.overlaps(spared.1) {
                return Walk::Skip;
            }
            found += range.len();
            leaving.push((place, range.start));
            Walk::Take
        });
        let is_enough = found >= wanted;
        for (place, start) in leaving.drain(..).filter(|_| is_enough) {
            self.remove(place, start);
        }
        self.leaving = leaving;
        self.evicted_bytes += if is_enough { found } else { 0 };
        is_enough
    }

    /// The dirty parts of all files, each a stretch of `most` bytes, in the order of files and offsets; `most` is a
    /// multiple of a region.
    pub(super) fn dirty_stretches(&self, most: u64) -> Vec<(u32, DirtyRegion)> {
        let mut all: Vec<(u32, DirtyRegion)> = Vec::new();
        for ((file, number), place) in &self.dirty_regions {
            let region = &self.regions[*place];
            let start = number * REGION_BYTES / most * most;
            let (dirty, written) = (region.dirty_bytes(), region.written);
            if dirty == 0 {
                continue;
            }
            match all.last_mut() {
                Some((of, last)) if of == file && last.range.start == start => {
                    last.dirty += dirty;
                    last.written = last.written.max(written);
                }
                _ => all.push((
                    *file,
                    DirtyRegion { range: ByteRange::at(start, most), dirty, written },
                )),
            }
        }
        all
    }

    /// Begins to flush the dirty extents of `file` in `range`, whole regions; returns their `runs`, ascending.
    pub(super) fn flush_stretch(&mut self, file: u32, range: ByteRange, runs: &mut Vec<Run>) {
        let numbers = range.start / REGION_BYTES..range.end / REGION_BYTES;
        for (key, place) in self.dirty_regions.range((file, numbers.start)..(file, numbers.end)) {
            debug_assert_eq!(self.regions[*place].key, *key, "dirty regions know their places");
            self.regions[*place].flush(|range, placement| match runs.last_mut() {
                Some(run) if run.range.end == range.start && run.placement == placement => {
                    run.range.end = range.end;
                }
                _ => runs.push(Run { file, range, placement }),
            });
        }
    }

    /// Marks clean the parts of `range` that were not written since their flush began.
    pub(super) fn flushed(&mut self, file: u32, range: ByteRange) {
        for (key, part) in regions_of(file, range) {
            let Some(place) = self.regions.find(key) else { continue };
            let region = &mut self.regions[place];
            let mut cleaned = 0;
            let flushing = |extent: &&mut Extent| extent.is_flushing();
            for extent in region.overlapping_mut(part).iter_mut().filter(flushing) {
                let range = extent.range(key.1);
                let slot = self.slots.take(place, range);
                self.eviction.inserted(slot, range.len());
                self.dirty_bytes -= range.len();
                *extent = Extent::new(range, extent.placement, Some(slot));
                cleaned += 1;
            }
            self.changes += u64::from(cleaned);
            region.dirty -= cleaned;
            if cleaned > 0 && region.dirty == 0 {
                self.dirty_regions.remove(&key);
            }
        }
    }
}

/// The regions of `range`, each with its part.
fn regions_of(file: u32, range: ByteRange) -> impl Iterator<Item = (RegionKey, ByteRange)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let number = at / REGION_BYTES;
            let end = range.end.min((number + 1).saturating_mul(REGION_BYTES));
            let part = ByteRange::new(at, end);
            at = end;
            ((file, number), part)
        })
    })
}
