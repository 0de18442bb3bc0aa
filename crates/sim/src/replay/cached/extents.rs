//! The extents of a simulated cache: which bytes of which files it holds, which of them are dirty, and what leaves.
//!
//! What must hold: `used` is the sum of all extents and never above `capacity`; exactly the clean extents have a
//! place in the eviction order.

use std::collections::{BTreeMap, BTreeSet};

use halocline_model::evict::{Eviction, Walk};
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

/// A file and a first byte.
pub(super) type Key = (u32, u64);

/// A range of a file that is on the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) end: u64,
    pub(super) placement: Placement,
    dirty: bool,
    /// It is being flushed, and was not written to since that began.
    flushing: bool,
    slot: u32,
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
    by_place: BTreeMap<Key, Extent>,
    dirty: BTreeSet<Key>,
    order: Box<dyn Eviction>,
    /// The extent of each slot.
    slots: Vec<Key>,
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
            by_place: BTreeMap::new(),
            dirty: BTreeSet::new(),
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

    /// `range` of `file` in pieces, ascending: with its placement where it is on the cache, else without. `pieces`
    /// is emptied first.
    pub(super) fn pieces(
        &self,
        file: u32,
        range: ByteRange,
        pieces: &mut Vec<(ByteRange, Option<Placement>)>,
    ) {
        pieces.clear();
        let mut at = range.start;
        for ((_, start), extent) in self.overlapping(file, range) {
            if at < start {
                pieces.push((ByteRange::new(at, start), None));
            }
            let end = extent.end.min(range.end);
            pieces.push((ByteRange::new(at.max(start), end), Some(extent.placement)));
            at = end;
        }
        if at < range.end {
            pieces.push((ByteRange::new(at, range.end), None));
        }
    }

    fn overlapping(&self, file: u32, range: ByteRange) -> impl Iterator<Item = (Key, Extent)> {
        let before = self.by_place.range(..(file, range.start)).next_back();
        let before = before.filter(|(key, extent)| key.0 == file && extent.end > range.start);
        let within = self.by_place.range((file, range.start)..(file, range.end));
        before.into_iter().chain(within).map(|(key, extent)| (*key, *extent))
    }

    /// Notes that what is on the cache of `range` was read.
    pub(super) fn touch(&mut self, file: u32, range: ByteRange) {
        let clean: Vec<u32> = self
            .overlapping(file, range)
            .filter(|(_, extent)| !extent.dirty)
            .map(|(_, extent)| extent.slot)
            .collect();
        for slot in clean {
            self.order.touched(slot);
        }
    }

    /// Makes what is on the cache of `range` dirty; the clean bytes beside it stay clean.
    pub(super) fn write(&mut self, file: u32, range: ByteRange) {
        let changed: Vec<_> = self
            .overlapping(file, range)
            .filter(|(_, extent)| !extent.dirty || extent.flushing)
            .collect();
        for (key, extent) in changed {
            if extent.dirty {
                self.by_place.get_mut(&key).expect("an extent").flushing = false;
                continue;
            }
            self.remove(key);
            let written = ByteRange::new(key.1.max(range.start), extent.end.min(range.end));
            if key.1 < written.start {
                self.put(file, ByteRange::new(key.1, written.start), extent.placement, false);
            }
            self.put(file, written, extent.placement, true);
            if written.end < extent.end {
                self.put(file, ByteRange::new(written.end, extent.end), extent.placement, false);
            }
        }
    }

    /// Puts `range`, of which nothing is on the cache, there. Room was made for it.
    pub(super) fn put(&mut self, file: u32, range: ByteRange, placement: Placement, dirty: bool) {
        let key = (file, range.start);
        self.used += range.len();
        self.most_used = self.most_used.max(self.used);
        assert!(self.used <= self.capacity, "room is made before the write");
        let mut slot = u32::MAX;
        if dirty {
            self.dirty_bytes += range.len();
            self.dirty.insert(key);
        } else {
            slot = self.slot(key);
            self.order.inserted(slot, range.len());
        }
        self.by_place
            .insert(key, Extent { end: range.end, placement, dirty, flushing: false, slot });
    }

    fn slot(&mut self, key: Key) -> u32 {
        if let Some(slot) = self.free_slots.pop() {
            self.slots[slot as usize] = key;
            return slot;
        }
        self.slots.push(key);
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 extents")
    }

    fn remove(&mut self, key: Key) -> Extent {
        let extent = self.by_place.remove(&key).expect("an extent");
        self.used -= extent.end - key.1;
        if extent.dirty {
            self.dirty_bytes -= extent.end - key.1;
            self.dirty.remove(&key);
        } else {
            self.order.removed(extent.slot);
            self.free_slots.push(extent.slot);
        }
        extent
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
        let (slots, by_place) = (&self.slots, &self.by_place);
        self.order.victims(&mut |slot| {
            let key = slots[slot as usize];
            if found >= wanted {
                return Walk::Stop;
            }
            let range = ByteRange::new(key.1, by_place[&key].end);
            if key.0 == spared.0 && range.overlaps(spared.1) {
                return Walk::Skip;
            }
            found += range.len();
            leaving.push(key);
            Walk::Take
        });
        if found < wanted {
            return false;
        }
        for key in leaving {
            self.evicted_bytes += self.remove(key).end - key.1;
        }
        true
    }

    /// Begins to flush the dirty extents of the first region, `most` bytes of a file, that has any at or after
    /// `from`; tells their `runs`, ascending.
    pub(super) fn flush_next(&mut self, from: Key, most: u64, runs: &mut Vec<Run>) {
        let Some(&(file, first)) = self.dirty.range(from..).next() else { return };
        let region = (file, first)..(file, (first / most + 1).saturating_mul(most));
        for key in self.dirty.range(region) {
            let extent = self.by_place.get_mut(key).expect("an extent");
            extent.flushing = true;
            match runs.last_mut() {
                Some(run) if run.range.end == key.1 && run.placement == extent.placement => {
                    run.range.end = extent.end;
                }
                _ => {
                    let range = ByteRange::new(key.1, extent.end);
                    runs.push(Run { file, range, placement: extent.placement });
                }
            }
        }
    }

    /// Marks clean what of `range` was not written to since its flush began.
    pub(super) fn flushed(&mut self, file: u32, range: ByteRange) {
        let home: Vec<_> =
            self.overlapping(file, range).filter(|(_, extent)| extent.flushing).collect();
        for (key, extent) in home {
            let bytes = extent.end - key.1;
            self.dirty.remove(&key);
            self.dirty_bytes -= bytes;
            let slot = self.slot(key);
            self.order.inserted(slot, bytes);
            let clean = Extent { dirty: false, flushing: false, slot, ..extent };
            *self.by_place.get_mut(&key).expect("an extent") = clean;
        }
    }
}
