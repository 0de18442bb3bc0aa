//! The extents of one file, by offset.
//!
//! What must hold here: extents do not overlap and are not empty; the set of dirty offsets and the ages show exactly
//! which extents are dirty and how old the oldest is.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::record::ExtentRecord;
use super::{Extent, Segment};

/// Ages of dirty extents are kept in classes of this many milliseconds.
const AGE_CLASS_MS: u64 = 256;

/// A mapped extent; its first byte is its key in the map.
#[derive(Debug)]
pub(crate) struct Entry {
    /// One past the last byte.
    pub(crate) end: u64,
    /// The epoch of [`ExtentRecord::epoch`].
    pub(crate) epoch: u64,
    /// When it became dirty, in milliseconds since the epoch; 0 if and only if clean.
    pub(crate) dirty_since_ms: u64,
    /// Changes with every write.
    pub(crate) generation: AtomicU64,
    /// Last use in milliseconds since the epoch.
    pub(crate) last_use_ms: AtomicU64,
    /// Its slot in the eviction queue.
    pub(crate) slot: u32,
    /// The object that contains its bytes.
    pub(crate) placement: Placement,
}

impl Entry {
    /// `D_flag`.
    pub(crate) fn dirty(&self) -> bool {
        self.dirty_since_ms != 0
    }

    /// The extent in memory for a record.
    pub(crate) fn new(record: &ExtentRecord, generation: u64, slot: u32) -> Self {
        debug_assert_eq!(record.dirty, record.dirty_since_ms != 0, "dirty extents have an age");
        Self {
            end: record.range.end,
            epoch: record.epoch,
            dirty_since_ms: record.dirty_since_ms,
            generation: AtomicU64::new(generation),
            last_use_ms: AtomicU64::new(record.last_use_ms),
            slot,
            placement: record.placement,
        }
    }

    /// The record of this extent's part `range`.
    pub(crate) fn record(&self, range: ByteRange) -> ExtentRecord {
        ExtentRecord {
            range,
            placement: self.placement,
            dirty: self.dirty(),
            epoch: self.epoch,
            dirty_since_ms: self.dirty_since_ms,
            last_use_ms: self.last_use_ms.load(Relaxed),
        }
    }

    fn extent(&self, start: u64) -> Extent {
        Extent {
            range: ByteRange::new(start, self.end),
            placement: self.placement,
            dirty: self.dirty(),
            generation: self.generation.load(Relaxed),
            dirty_since_ms: self.dirty_since_ms,
            last_use_ms: self.last_use_ms.load(Relaxed),
        }
    }
}

/// The extents of one file.
#[derive(Debug, Default)]
pub(crate) struct RangeMap {
    extents: BTreeMap<u64, Entry>,
    dirty: BTreeSet<u64>,
    dirty_bytes: u64,
    ages: BTreeMap<u64, u64>,
}

impl RangeMap {
    /// The extents of a file from sorted ones; `None` if they overlap.
    pub(crate) fn from_sorted(extents: Vec<(u64, Entry)>) -> Option<Self> {
        if extents.windows(2).any(|pair| pair[0].1.end > pair[1].0) {
            return None;
        }
        let mut map = Self::default();
        for (start, entry) in extents.iter().filter(|(_, entry)| entry.dirty()) {
            map.dirty.insert(*start);
            map.dirty_bytes += entry.end - start;
            *map.ages.entry(entry.dirty_since_ms / AGE_CLASS_MS).or_default() += 1;
        }
        map.extents = extents.into_iter().collect();
        Some(map)
    }

    /// Extents that share a byte with `range`, in order.
    pub(crate) fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (u64, &Entry)> {
        let last = self.extents.range(..range.end).next_back();
        let last = last.filter(|(_, entry)| entry.end > range.start && !range.is_empty());
        // One descent suffices if nothing is mapped there, or if one extent begins at or before the range.
        let (one, several) = match last {
            Some((start, _)) if *start > range.start => (None, Some(self.several_in(range))),
            one => (one, None),
        };
        one.into_iter().chain(several.into_iter().flatten()).map(|(&start, entry)| (start, entry))
    }

    /// The same by two descents, for a range that is not empty.
    fn several_in(&self, range: ByteRange) -> btree_map::Range<'_, u64, Entry> {
        let before = self.extents.range(..=range.start).next_back();
        let before = before.filter(|(_, entry)| entry.end > range.start);
        self.extents.range(before.map_or(range.start, |(&start, _)| start)..range.end)
    }

    /// The extent that starts at `start`.
    pub(crate) fn get(&self, start: u64) -> Option<&Entry> {
        self.extents.get(&start)
    }

    /// The extent that starts at `start`; its bounds and its `D_flag` MUST NOT be changed.
    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Entry> {
        self.extents.get_mut(&start)
    }

    /// Adds an extent where nothing is mapped.
    pub(crate) fn insert(&mut self, start: u64, entry: Entry) {
        assert!(start < entry.end, "an extent holds a byte");
        debug_assert!(
            self.overlapping(ByteRange::new(start, entry.end)).next().is_none(),
            "I2: no byte has two extents"
        );
        if entry.dirty() {
            self.dirty.insert(start);
            self.dirty_bytes += entry.end - start;
            *self.ages.entry(entry.dirty_since_ms / AGE_CLASS_MS).or_default() += 1;
        }
        let before = self.extents.insert(start, entry);
        assert!(before.is_none(), "I2: no byte has two extents");
    }

    /// Removes the extent that starts at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Entry> {
        let entry = self.extents.remove(&start)?;
        if entry.dirty() {
            self.dirty.remove(&start);
            self.dirty_bytes -= entry.end - start;
            let class = entry.dirty_since_ms / AGE_CLASS_MS;
            let count = self.ages.get_mut(&class).expect("each dirty extent has an age");
            *count -= 1;
            if *count == 0 {
                self.ages.remove(&class);
            }
        }
        // An empty tree still has a node, and many files have nothing dirty.
        if self.dirty.is_empty() {
            (self.dirty, self.ages) = Default::default();
        }
        if self.extents.is_empty() {
            self.extents = BTreeMap::new();
        }
        Some(entry)
    }

    /// Splits `range` into maximal segments by coverage, in order.
    pub(crate) fn split(&self, range: ByteRange, out: &mut Vec<Segment>) {
        self.split_noting(range, out, |_| ());
    }

    /// The same; `note` is told each extent.
    pub(crate) fn split_noting(
        &self,
        range: ByteRange,
        out: &mut Vec<Segment>,
        mut note: impl FnMut(&Entry),
    ) {
        let mut at = range.start;
        for (start, entry) in self.overlapping(range) {
            note(entry);
            if start > at {
                out.push(Segment { range: ByteRange::new(at, start), extent: None });
            }
            let part = ByteRange::new(start.max(at), entry.end.min(range.end));
            out.push(Segment { range: part, extent: Some(entry.extent(start)) });
            at = part.end;
        }
        if at < range.end {
            out.push(Segment { range: ByteRange::new(at, range.end), extent: None });
        }
    }

    /// Dirty extents that share a byte with `range`, in order.
    pub(crate) fn dirty(&self, range: ByteRange) -> impl Iterator<Item = Extent> {
        let first = self.overlapping(range).next().map_or(range.start, |(start, _)| start);
        self.dirty
            .range(first..range.end.max(first))
            .filter(move |_| !range.is_empty())
            .map(|start| self.extents[start].extent(*start))
    }

    /// Bytes of all dirty extents.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// All extents in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Extent> {
        self.extents.iter().map(|(&start, entry)| entry.extent(start))
    }

    /// All extents in order, with their slots in the eviction queue.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.extents.iter().map(|(&start, entry)| (start, entry))
    }

    /// Whether nothing is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// When the oldest dirty extent became dirty, in milliseconds since the epoch: at most 256 ms too early.
    pub(crate) fn oldest_dirty_ms(&self) -> Option<u64> {
        self.ages.keys().next().map(|class| class * AGE_CLASS_MS)
    }
}
