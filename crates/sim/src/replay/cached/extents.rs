//! The extents of a simulated cache: which bytes of which files it holds, which of them are dirty, and what leaves.
//!
//! Files are cut into regions, found by a hash: an ordered map of a million extents would cost a replay most of its time.
//! No extent lies in two regions.
//!
//! What must hold: `used` is the sum of all extents and never above `capacity`; exactly the clean extents have a
//! place in the eviction order; a region is there as long as it has extents, and among the dirty ones as long as it
//! has dirty extents.

use std::collections::BTreeSet;

use halocline_model::evict::{Eviction, Walk};
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use rustc_hash::FxHashMap;

/// A file and a first byte.
pub(super) type Key = (u32, u64);
/// A file and which region of it.
type RegionKey = (u32, u64);

/// Bytes of a file in a region.
const REGION_BYTES: u64 = 2 << 20;

/// A range of a file that is on the cache.
#[derive(Debug, Clone, Copy)]
struct Extent {
    range: ByteRange,
    placement: Placement,
    dirty: bool,
    /// It is being flushed, and was not written to since that began.
    flushing: bool,
    slot: u32,
}

/// The extents of a region, ascending.
#[derive(Debug, Default)]
struct Region {
    extents: Vec<Extent>,
    dirty: usize,
}

impl Region {
    /// The places of the extents that have bytes of `range`.
    fn overlapping(&self, range: ByteRange) -> std::ops::Range<usize> {
        let first = self.extents.partition_point(|extent| extent.range.end <= range.start);
        let behind = &self.extents[first..];
        first..first + behind.partition_point(|extent| extent.range.start < range.end)
    }

    /// The place of the extent that begins at `start`.
    fn place(&self, start: u64) -> usize {
        self.extents.partition_point(|extent| extent.range.start < start)
    }
}

/// Dirty bytes that follow each other in a file, in one placement.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) file: u32,
    pub(super) range: ByteRange,
    pub(super) placement: Placement,
}

#[derive(Debug)]
pub(super) struct Extents {
    capacity: u64,
    pub(super) used: u64,
    pub(super) most_used: u64,
    pub(super) dirty_bytes: u64,
    pub(super) evicted_bytes: u64,
    regions: FxHashMap<RegionKey, Region>,
    dirty_regions: BTreeSet<RegionKey>,
    order: Box<dyn Eviction>,
    /// The extent of each slot, as its file and range.
    slots: Vec<(u32, ByteRange)>,
    free_slots: Vec<u32>,
}

impl Extents {
    pub(super) fn new(capacity: u64, order: Box<dyn Eviction>) -> Self {
        Self {
            capacity,
            used: 0,
            most_used: 0,
            dirty_bytes: 0,
            evicted_bytes: 0,
            regions: FxHashMap::default(),
            dirty_regions: BTreeSet::new(),
            order,
            slots: Vec::new(),
            free_slots: Vec::new(),
        }
    }

    /// Dirty bytes as a share of the capacity, 0 to 1; 1 without capacity.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a share")]
    pub(super) fn pressure(&self) -> f32 {
        if self.capacity == 0 {
            1.0
        } else {
            (self.dirty_bytes as f64 / self.capacity as f64) as f32
        }
    }

    /// `range` of `file` in pieces, ascending: with its placement where it is on the cache, else without. What lies
    /// side by side is one piece, as a mount serves it. `pieces` is emptied first.
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
            let Some(region) = self.regions.get(&key) else { continue };
            for extent in &region.extents[region.overlapping(part)] {
                add(ByteRange::new(at, extent.range.start.max(at)), None);
                let end = extent.range.end.min(part.end);
                add(ByteRange::new(extent.range.start.max(at), end), Some(extent.placement));
                at = end;
            }
        }
        add(ByteRange::new(at, range.end), None);
    }

    /// Notes that what is on the cache of `range` was read.
    pub(super) fn touch(&mut self, file: u32, range: ByteRange) {
        for (key, part) in regions_of(file, range) {
            let Some(region) = self.regions.get(&key) else { continue };
            for extent in &region.extents[region.overlapping(part)] {
                if !extent.dirty {
                    self.order.touched(extent.slot);
                }
            }
        }
    }

    /// Makes what is on the cache of `range` dirty; the clean bytes beside it stay clean.
    pub(super) fn write(&mut self, file: u32, range: ByteRange) {
        for (key, part) in regions_of(file, range) {
            let Some(region) = self.regions.get_mut(&key) else { continue };
            let mut clean = Vec::new();
            let overlapping = region.overlapping(part);
            for extent in &mut region.extents[overlapping] {
                if extent.dirty {
                    extent.flushing = false;
                } else {
                    clean.push(*extent);
                }
            }
            for extent in clean {
                self.remove(file, extent.range);
                let (start, end) = (extent.range.start, extent.range.end);
                let written = ByteRange::new(start.max(part.start), end.min(part.end));
                for (beside, dirty) in [
                    (ByteRange::new(start, written.start), false),
                    (written, true),
                    (ByteRange::new(written.end, end), false),
                ] {
                    self.put(file, beside, extent.placement, dirty);
                }
            }
        }
    }

    /// Puts `range`, of which nothing is on the cache, there. Room was made for it.
    pub(super) fn put(&mut self, file: u32, range: ByteRange, placement: Placement, dirty: bool) {
        self.used += range.len();
        self.most_used = self.most_used.max(self.used);
        assert!(self.used <= self.capacity, "room is made before the write");
        for (key, range) in regions_of(file, range) {
            let mut slot = u32::MAX;
            if !dirty {
                slot = self.slot(file, range);
                self.order.inserted(slot, range.len());
            }
            let region = self.regions.entry(key).or_default();
            if dirty {
                self.dirty_bytes += range.len();
                region.dirty += 1;
                if region.dirty == 1 {
                    self.dirty_regions.insert(key);
                }
            }
            let at = region.place(range.start);
            region.extents.insert(at, Extent { range, placement, dirty, flushing: false, slot });
        }
    }

    fn slot(&mut self, file: u32, range: ByteRange) -> u32 {
        if let Some(slot) = self.free_slots.pop() {
            self.slots[slot as usize] = (file, range);
            return slot;
        }
        self.slots.push((file, range));
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 extents")
    }

    /// Removes a clean extent.
    fn remove(&mut self, file: u32, range: ByteRange) {
        let key = (file, range.start / REGION_BYTES);
        let region = self.regions.get_mut(&key).expect("a region with an extent");
        let extent = region.extents.remove(region.place(range.start));
        assert!(extent.range == range && !extent.dirty, "what leaves is there, and clean");
        if region.extents.is_empty() {
            self.regions.remove(&key);
        }
        self.used -= range.len();
        self.order.removed(extent.slot);
        self.free_slots.push(extent.slot);
    }

    /// Makes room for `bytes`: free bytes first, then whole clean extents of others than `spared`, if `may_evict` so
    /// many bytes. Evicts nothing, and answers false, where that is not enough.
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
        let (mut found, mut leaving) = (0, Vec::new());
        let slots = &self.slots;
        self.order.victims(&mut |slot| {
            let (file, range) = slots[slot as usize];
            if found >= wanted {
                return Walk::Stop;
            }
            if file == spared.0 && range.overlaps(spared.1) {
                return Walk::Skip;
            }
            found += range.len();
            leaving.push((file, range));
            Walk::Take
        });
        if found < wanted {
            return false;
        }
        for (file, range) in leaving {
            self.remove(file, range);
            self.evicted_bytes += range.len();
        }
        true
    }

    /// Begins to flush the dirty extents of the first stretch, `most` bytes of a file, that has any at or after
    /// `from`; tells their `runs`, ascending.
    pub(super) fn flush_next(&mut self, from: Key, most: u64, runs: &mut Vec<Run>) {
        let mut stretch: Option<(u32, u64)> = None;
        for key in self.dirty_regions.range((from.0, from.1 / REGION_BYTES)..) {
            let file = key.0;
            if stretch.is_some_and(|(of, end)| of != file || end <= key.1 * REGION_BYTES) {
                return;
            }
            let region = self.regions.get_mut(key).expect("a region with dirty extents");
            for extent in region.extents.iter_mut().filter(|extent| extent.dirty) {
                let start = extent.range.start;
                if (file, start) < from {
                    continue;
                }
                let (_, end) =
                    *stretch.get_or_insert((file, (start / most + 1).saturating_mul(most)));
                if start >= end {
                    return;
                }
                extent.flushing = true;
                match runs.last_mut() {
                    Some(run) if run.range.end == start && run.placement == extent.placement => {
                        run.range.end = extent.range.end;
                    }
                    _ => {
                        let (range, placement) = (extent.range, extent.placement);
                        runs.push(Run { file, range, placement });
                    }
                }
            }
        }
    }

    /// Marks clean what of `range` was not written to since its flush began.
    pub(super) fn flushed(&mut self, file: u32, range: ByteRange) {
        for (key, part) in regions_of(file, range) {
            let Some(region) = self.regions.get(&key) else { continue };
            for at in region.overlapping(part) {
                let extent = self.regions[&key].extents[at];
                if !extent.flushing {
                    continue;
                }
                let slot = self.slot(file, extent.range);
                self.order.inserted(slot, extent.range.len());
                self.dirty_bytes -= extent.range.len();
                let region = self.regions.get_mut(&key).expect("it was there");
                region.extents[at] = Extent { dirty: false, flushing: false, slot, ..extent };
                region.dirty -= 1;
                if region.dirty == 0 {
                    self.dirty_regions.remove(&key);
                }
            }
        }
    }
}

/// The regions of `range` with what of it lies in them.
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
