//! The extents of one file, by their first byte. Extents never overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{Extent, FileId, Segment};

/// No slot yet.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// An extent with everything the table knows about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the file.
    pub(super) range: ByteRange,
    /// Where they lie.
    pub(super) placement: Placement,
    /// D_flag.
    pub(super) dirty: bool,
    /// Changes with every write.
    pub(super) generation: u64,
    /// Dirty: the epoch of its mapping. Clean: the epoch that must be durable before its blocks
    /// may be freed; 0 when they may be freed at once.
    pub(super) epoch: u64,
    /// When it became dirty; 0 when clean.
    pub(super) dirty_since_ms: u64,
    /// Last read, write or fill.
    pub(super) last_use_ms: u64,
    /// Its slot in the eviction order.
    pub(super) slot: u32,
}

impl Piece {
    /// The same extent, cut to `range`, which lies inside it.
    pub(super) fn cut(self, range: ByteRange) -> Self {
        debug_assert!(self.range.contains(range) && !range.is_empty());
        Self { range, ..self }
    }

    /// What callers of the table see of it.
    pub(super) fn extent(self) -> Extent {
        Extent {
            range: self.range,
            placement: self.placement,
            dirty: self.dirty,
            generation: self.generation,
            dirty_since_ms: self.dirty_since_ms,
            last_use_ms: self.last_use_ms,
        }
    }
}

/// A piece as kept: its start is the map's key.
#[derive(Debug)]
struct Entry {
    end: u64,
    generation: u64,
    epoch: u64,
    dirty_since_ms: u64,
    last_use_ms: AtomicU64,
    placement: Placement,
    slot: u32,
    dirty: bool,
}

impl Entry {
    fn of(piece: &Piece) -> Self {
        Self {
            end: piece.range.end,
            generation: piece.generation,
            epoch: piece.epoch,
            dirty_since_ms: piece.dirty_since_ms,
            last_use_ms: AtomicU64::new(piece.last_use_ms),
            placement: piece.placement,
            slot: piece.slot,
            dirty: piece.dirty,
        }
    }

    fn piece(&self, start: u64) -> Piece {
        Piece {
            range: ByteRange::new(start, self.end),
            placement: self.placement,
            dirty: self.dirty,
            generation: self.generation,
            epoch: self.epoch,
            dirty_since_ms: self.dirty_since_ms,
            last_use_ms: self.last_use_ms.load(Ordering::Relaxed),
            slot: self.slot,
        }
    }
}

/// The extents of one file.
#[derive(Debug, Default)]
pub(super) struct RangeMap {
    entries: BTreeMap<u64, Entry>,
    /// First bytes of the dirty extents.
    dirty: BTreeSet<u64>,
    /// How many extents became dirty at each time.
    ages: BTreeMap<u64, u32>,
}

impl RangeMap {
    /// A map of pieces that are sorted and do not overlap.
    pub(super) fn from_sorted(pieces: &[Piece]) -> Self {
        let mut map = Self {
            entries: pieces.iter().map(|p| (p.range.start, Entry::of(p))).collect(),
            ..Self::default()
        };
        for piece in pieces.iter().filter(|piece| piece.dirty) {
            map.dirty.insert(piece.range.start);
            *map.ages.entry(piece.dirty_since_ms).or_insert(0) += 1;
        }
        map
    }

    /// Whether there is no extent.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the oldest dirty extent became dirty.
    pub(super) fn oldest_dirty_ms(&self) -> Option<u64> {
        self.ages.first_key_value().map(|(&since, _)| since)
    }

    fn over(&self, range: ByteRange) -> impl Iterator<Item = (u64, &Entry)> {
        let first = match self.entries.range(..=range.start).next_back() {
            Some((&start, entry)) if entry.end > range.start => start,
            _ => range.start,
        };
        // An empty range overlaps nothing, and a tree's range must not run backwards.
        let last = if range.is_empty() { first } else { range.end };
        self.entries.range(first..last).map(|(&start, entry)| (start, entry))
    }

    /// The extents that overlap `range`, in order.
    pub(super) fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = Piece> {
        self.over(range).map(|(start, entry)| entry.piece(start))
    }

    /// The dirty extents that overlap `range`, in order.
    pub(super) fn dirty_overlapping(&self, range: ByteRange) -> impl Iterator<Item = Piece> {
        let before = self.over(ByteRange::at(range.start, u64::from(!range.is_empty())));
        let first = before.map(|(start, _)| start).next().unwrap_or(range.start);
        let last = if range.is_empty() { first } else { range.end };
        self.dirty.range(first..last).map(|&start| self.entries[&start].piece(start))
    }

    /// The extent that starts at `start`.
    pub(super) fn at(&self, start: u64) -> Option<Piece> {
        self.entries.get(&start).map(|entry| entry.piece(start))
    }

    /// Splits `range` into maximal segments by coverage, appended to `out`.
    pub(super) fn segments(&self, range: ByteRange, out: &mut Vec<Segment>) {
        let mut done = range.start;
        for piece in self.overlapping(range) {
            let part = piece.range.intersect(range).expect("overlapping pieces share bytes");
            if done < part.start {
                out.push(Segment { range: ByteRange::new(done, part.start), extent: None });
            }
            out.push(Segment { range: part, extent: Some(piece.extent()) });
            done = part.end;
        }
        if done < range.end {
            out.push(Segment { range: ByteRange::new(done, range.end), extent: None });
        }
    }

    /// Marks the extents under `range` as used `now_ms`; calls `moved` with the slots of those
    /// not used for at least `after_ms`.
    pub(super) fn touch(
        &self,
        range: ByteRange,
        now_ms: u64,
        after_ms: u64,
        mut moved: impl FnMut(u32),
    ) {
        for (_, entry) in self.over(range) {
            let last = entry.last_use_ms.load(Ordering::Relaxed);
            if now_ms.saturating_sub(last) >= after_ms {
                entry.last_use_ms.store(now_ms, Ordering::Relaxed);
                moved(entry.slot);
            }
        }
    }

    /// Gives every dirty extent over `range` a new generation; returns whether all extents over
    /// it are dirty, so that nothing else is to be done.
    pub(super) fn renew(&mut self, range: ByteRange, mut next: impl FnMut() -> u64) -> bool {
        let first = self.over(range).map(|(start, _)| start).next().unwrap_or(range.end);
        let last = range.end.max(first);
        let mut all = true;
        for (_, entry) in self.entries.range_mut(first..last) {
            if entry.dirty {
                entry.generation = next();
            } else {
                all = false;
            }
        }
        all
    }

    /// Adds an extent where none is.
    pub(super) fn insert(&mut self, piece: &Piece) {
        debug_assert!(self.over(piece.range).next().is_none(), "extents never overlap");
        self.entries.insert(piece.range.start, Entry::of(piece));
        if piece.dirty {
            self.dirty.insert(piece.range.start);
            *self.ages.entry(piece.dirty_since_ms).or_insert(0) += 1;
        }
    }

    /// Removes the extent that starts where `piece` does.
    pub(super) fn remove(&mut self, piece: &Piece) {
        let removed = self.entries.remove(&piece.range.start);
        debug_assert!(removed.is_some(), "only what is there is removed");
        if piece.dirty {
            self.dirty.remove(&piece.range.start);
            if let Some(count) = self.ages.get_mut(&piece.dirty_since_ms) {
                *count -= 1;
                if *count == 0 {
                    self.ages.remove(&piece.dirty_since_ms);
                }
            }
        }
    }
}

/// A planned change of one file's extents: what goes and what comes instead.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Extents that go.
    pub(super) before: Vec<Piece>,
    /// Extents that come, in order; one that keeps its predecessor's place in the eviction order
    /// has its slot.
    pub(super) after: Vec<Piece>,
}

impl Change {
    /// Replaces `old` by what is left of it around `hole`, with `middle` in between. What is left
    /// of it keeps its place in the eviction order: the left part if there is one.
    pub(super) fn replace(&mut self, old: Piece, hole: ByteRange, middle: Option<Piece>) {
        let left = (old.range.start < hole.start)
            .then(|| old.cut(ByteRange::new(old.range.start, hole.start)));
        let right =
            (hole.end < old.range.end).then(|| old.cut(ByteRange::new(hole.end, old.range.end)));
        let mut slot = old.slot;
        let mut given = |piece: Option<Piece>| {
            piece.map(|p| Piece { slot: std::mem::replace(&mut slot, NO_SLOT), ..p })
        };
        let (left, right) = (given(left), given(right));
        let middle = given(middle);
        self.before.push(old);
        self.after.extend([left, middle, right].into_iter().flatten());
    }
}

/// An extent with the file it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Located {
    /// The file.
    pub(super) file: FileId,
    /// Its bytes.
    pub(super) range: ByteRange,
}
