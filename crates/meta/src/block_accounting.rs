//! Whole blocks on the cache, counted before they are written (I5).
//!
//! An object is a file under one placement. A block of an object counts once if a mapped extent or a reservation of
//! that object touches it, or if it waits to be discarded. What must hold: neither extents nor reservations of an
//! object touch its waiting blocks, so the sum is exact.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::rangemap::RangeMap;
use super::records::RecordStore;
use super::{BLOCK, Discard, FileId};

/// Bytes of the whole cache.
#[derive(Debug)]
pub struct Space {
    limit: u64,
    used: AtomicU64,
    records: Arc<dyn RecordStore>,
    /// Bytes of checksums on disk.
    sums: Arc<AtomicU64>,
    /// Bytes reserved for records and checksums, in addition to the limit.
    set_aside: u64,
    /// What is saved of conflicts, on disk.
    saved: AtomicU64,
}

/// What is saved of conflicts may take this part of the limit: the rest goes on caching.
const SAVED_SHARE: u64 = 2;

impl Space {
    /// An empty cache of `limit` bytes, with `set_aside` more bytes for records and checksums.
    pub(crate) fn new(limit: u64, records: Arc<dyn RecordStore>, set_aside: u64) -> Self {
        let (used, saved) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { limit, used, records, sums: Arc::default(), set_aside, saved }
    }

    /// Counter of the bytes that checksums take on disk.
    pub(crate) fn sums(&self) -> &Arc<AtomicU64> {
        &self.sums
    }

    /// The most bytes that the records themselves take on the cache's device.
    pub fn records_bytes(&self) -> u64 {
        self.records.bytes() + self.sums.load(Relaxed)
    }

    fn overdrawn(&self) -> u64 {
        self.records_bytes().saturating_sub(self.set_aside)
    }

    /// The limit of data in bytes on disk: the one given at opening, minus what the records take beyond the space
    /// reserved for them, minus what is saved of conflicts.
    pub fn limit(&self) -> u64 {
        self.limit
            .saturating_sub(self.overdrawn())
            .saturating_sub(self.saved.load(Relaxed).min(self.saved_max()))
    }

    /// The most bytes that may be saved of conflicts.
    pub fn saved_max(&self) -> u64 {
        self.limit / SAVED_SHARE
    }

    /// Counts bytes on disk that are about to be saved of a conflict, outside the objects: the limit shrinks by them.
    /// `false` if there would be more of them than [`Self::saved_max`]. Only one caller at a time may count.
    pub fn save(&self, bytes: u64) -> bool {
        let within = |saved: u64| saved.checked_add(bytes).filter(|&sum| sum <= self.saved_max());
        self.saved.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    /// The same as [`Self::save`], for bytes that are saved even though they do not fit.
    pub fn save_anyway(&self, bytes: u64) {
        self.saved.fetch_add(bytes, Relaxed);
    }

    /// Sets the number of such bytes.
    pub fn set_saved(&self, bytes: u64) {
        self.saved.store(bytes, Relaxed);
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Counts the blocks of one file's loaded extents.
    pub(crate) fn count_loaded(&self, extents: &RangeMap) {
        let mut ends: BTreeMap<Placement, u64> = BTreeMap::new();
        for (start, entry) in extents.entries() {
            let blocks = ByteRange::new(start, entry.end).widen_to(BLOCK);
            // The extents are in offset order, so only the object's last block so far can be shared.
            let counted = ends.entry(entry.placement).or_default();
            self.take_anyway(blocks.end - blocks.start.max((*counted).min(blocks.end)));
            *counted = (*counted).max(blocks.end);
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        // In blocks that are in use already, a new extent takes no more than a record.
        bytes == 0 && self.overdrawn() == 0
            || self.used.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    fn take_anyway(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Relaxed);
        assert!(before >= bytes, "I5: more bytes given back than were in use");
    }
}

/// Blocks that will be written for a range that is not mapped yet.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    range: ByteRange,
    placement: Placement,
    /// Records of earlier contents of these blocks cannot come back once this epoch is complete.
    epoch: u64,
}

/// Blocks that wait to be discarded.
#[derive(Debug, Clone, Copy)]
struct PendingDiscard {
    end: u64,
    /// They may be discarded once this epoch is complete.
    epoch: u64,
    /// Whether they were handed out to be discarded.
    taken: bool,
}

/// The blocks of one file other than those of its extents.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    reserved: Vec<Reservation>,
    waiting: BTreeMap<(Placement, u64), PendingDiscard>,
}

impl Blocks {
    /// Whether neither a reservation nor a waiting block is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.reserved.is_empty() && self.waiting.is_empty()
    }

    /// Whether blocks wait to be discarded.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts the blocks of `range` as used; `false` if the limit does not allow it.
    pub(crate) fn reserve(
        &mut self,
        extents: &RangeMap,
        space: &Space,
        range: ByteRange,
        placement: Placement,
    ) -> bool {
        let blocks = range.widen_to(BLOCK);
        if !space.take(self.growth(extents, blocks, placement)) {
            return false;
        }
        let epoch = self.cancel(blocks, placement);
        self.reserved.push(Reservation { range, placement, epoch });
        true
    }

    /// Turns the reservation of `range` into use, or counts its blocks now if there is none. Returns the epoch that
    /// must be complete before they may be discarded. The caller adds the extent to `extents` after this call and
    /// before it releases the lock on both.
    pub(crate) fn occupy(
        &mut self,
        extents: &RangeMap,
        space: &Space,
        range: ByteRange,
        placement: Placement,
    ) -> u64 {
        if let Some(epoch) = self.take_reservation(range, placement) {
            return epoch;
        }
        let blocks = range.widen_to(BLOCK);
        space.take_anyway(self.growth(extents, blocks, placement));
        self.cancel(blocks, placement)
    }

    /// Gives the reservation of `range` back: its blocks may have been written, so they wait.
    pub(crate) fn release(&mut self, extents: &RangeMap, range: ByteRange, placement: Placement) {
        if let Some(epoch) = self.take_reservation(range, placement) {
            self.retire(extents, range, placement, epoch);
        }
    }

    /// Queues the blocks of `range`, which is no longer mapped, until `epoch` is complete; returns those that nothing
    /// else needs.
    pub(crate) fn retire(
        &mut self,
        extents: &RangeMap,
        range: ByteRange,
        placement: Placement,
        epoch: u64,
    ) -> Vec<ByteRange> {
        let blocks = range.widen_to(BLOCK);
        let free = self.uncovered(extents, blocks, placement);
        for &part in &free {
            let epoch = epoch.max(self.cancel(part, placement));
            let waiting = PendingDiscard { end: part.end, epoch, taken: false };
            self.waiting.insert((placement, part.start), waiting);
        }
        for reservation in &mut self.reserved {
            let touched = reservation.range.widen_to(BLOCK).overlaps(blocks);
            if touched && reservation.placement == placement {
                reservation.epoch = reservation.epoch.max(epoch);
            }
        }
        free
    }

    /// Takes the waiting blocks whose epoch is complete.
    pub(crate) fn take_due(&mut self, file: FileId, completed: u64, out: &mut Vec<Discard>) {
        for (&(placement, start), waiting) in &mut self.waiting {
            if !waiting.taken && waiting.epoch <= completed {
                waiting.taken = true;
                let range = ByteRange::new(start, waiting.end);
                push_joined(out, Discard { file, range, placement });
            }
        }
    }

    /// The blocks of a taken range that were not claimed since.
    pub(crate) fn still_due(
        &self,
        range: ByteRange,
        placement: Placement,
    ) -> impl Iterator<Item = ByteRange> {
        let waiting = self.waiting_in(range, placement);
        waiting.filter(|(_, waiting)| waiting.taken).map(|(part, _)| part)
    }

    /// Takes the waiting blocks of `range` for a discard that follows at once.
    pub(crate) fn take_now(&mut self, range: ByteRange, placement: Placement) {
        for part in self.carve(range, placement) {
            let waiting = PendingDiscard { taken: true, ..part.1 };
            self.waiting.insert((placement, part.0), waiting);
        }
    }

    /// Frees the blocks of a discarded range that were not claimed meanwhile.
    pub(crate) fn discarded(&mut self, space: &Space, range: ByteRange, placement: Placement) {
        for (start, waiting) in self.carve(range, placement) {
            if waiting.taken {
                space.give_back(waiting.end - start);
            } else {
                self.waiting.insert((placement, start), waiting);
            }
        }
    }

    /// Parts of `blocks` that neither an extent nor a reservation of the object touches.
    fn uncovered(
        &self,
        extents: &RangeMap,
        blocks: ByteRange,
        placement: Placement,
    ) -> Vec<ByteRange> {
        self.uncovered_without(extents, blocks, placement, |_| false)
    }

    /// As `uncovered`, as if the extents that start where `ignore` says were gone.
    pub(crate) fn uncovered_without(
        &self,
        extents: &RangeMap,
        blocks: ByteRange,
        placement: Placement,
        ignore: impl Fn(u64) -> bool,
    ) -> Vec<ByteRange> {
        let mapped = extents
            .overlapping(blocks)
            .filter(|(start, entry)| entry.placement == placement && !ignore(*start))
            .map(|(start, entry)| ByteRange::new(start, entry.end));
        let reserved = self.reserved.iter().filter(|r| r.placement == placement).map(|r| r.range);
        let mut cover: Vec<_> = mapped
            .chain(reserved)
            .filter_map(|range| range.widen_to(BLOCK).intersect(blocks))
            .collect();
        cover.sort_unstable();
        gaps(blocks, &cover)
    }

    fn growth(&self, extents: &RangeMap, blocks: ByteRange, placement: Placement) -> u64 {
        let new: u64 = self.uncovered(extents, blocks, placement).iter().map(|r| r.len()).sum();
        let waiting: u64 = self.waiting_in(blocks, placement).map(|(part, _)| part.len()).sum();
        debug_assert!(waiting <= new, "I5: waiting blocks touch no extent and no reservation");
        new - waiting
    }

    fn waiting_in(
        &self,
        blocks: ByteRange,
        placement: Placement,
    ) -> impl Iterator<Item = (ByteRange, PendingDiscard)> {
        let before = self.waiting.range((placement, 0)..(placement, blocks.start)).next_back();
        let within = self.waiting.range((placement, blocks.start)..(placement, blocks.end));
        before.into_iter().chain(within).filter_map(move |(&(_, start), waiting)| {
            Some((ByteRange::new(start, waiting.end).intersect(blocks)?, *waiting))
        })
    }

    /// Takes the waiting blocks out of `blocks`, leaving what extends beyond it on both sides.
    fn carve(&mut self, blocks: ByteRange, placement: Placement) -> Vec<(u64, PendingDiscard)> {
        let parts: Vec<_> = self.waiting_in(blocks, placement).map(|(part, _)| part).collect();
        let mut carved = Vec::with_capacity(parts.len());
        for part in parts {
            let (&(_, start), &whole) = self
                .waiting
                .range(..=(placement, part.start))
                .next_back()
                .expect("each part lies in a waiting range");
            self.waiting.remove(&(placement, start));
            if start < part.start {
                self.waiting
                    .insert((placement, start), PendingDiscard { end: part.start, ..whole });
            }
            if part.end < whole.end {
                self.waiting.insert((placement, part.end), whole);
            }
            carved.push((part.start, PendingDiscard { end: part.end, ..whole }));
        }
        // An empty tree still has a node, and many files have no waiting blocks.
        if self.waiting.is_empty() {
            self.waiting = BTreeMap::new();
        }
        carved
    }

    /// Stops waiting for `blocks`; returns the epoch that they waited for, 0 if none did.
    fn cancel(&mut self, blocks: ByteRange, placement: Placement) -> u64 {
        self.carve(blocks, placement).iter().map(|(_, waiting)| waiting.epoch).max().unwrap_or(0)
    }

    fn take_reservation(&mut self, range: ByteRange, placement: Placement) -> Option<u64> {
        let at = self
            .reserved
            .iter()
            .position(|r| r.placement == placement && r.range.contains(range))?;
        let whole = self.reserved.swap_remove(at);
        let before = ByteRange::new(whole.range.start, range.start);
        let after = ByteRange::new(range.end, whole.range.end);
        for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
            self.reserved.push(Reservation { range: rest, ..whole });
        }
        Some(whole.epoch)
    }
}

/// Adds a discard to a list, merging it into the last one if it continues that.
pub(crate) fn push_joined(discards: &mut Vec<Discard>, next: Discard) {
    match discards.last_mut() {
        Some(last)
            if (last.file, last.placement, last.range.end)
                == (next.file, next.placement, next.range.start) =>
        {
            last.range.end = next.range.end;
        }
        _ => discards.push(next),
    }
}

fn gaps(whole: ByteRange, sorted: &[ByteRange]) -> Vec<ByteRange> {
    let mut gaps = Vec::new();
    let mut at = whole.start;
    for cover in sorted {
        if cover.start > at {
            gaps.push(ByteRange::new(at, cover.start));
        }
        at = at.max(cover.end);
    }
    if at < whole.end {
        gaps.push(ByteRange::new(at, whole.end));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::memory::Disk;

    #[test]
    #[should_panic(expected = "I5: more bytes given back than were in use")]
    fn i5_no_more_is_given_back_than_was_in_use() {
        let space = Space::new(1 << 20, Arc::new(Disk::default().open()), 1 << 20);
        assert!(space.take(BLOCK));
        space.give_back(BLOCK + 1);
    }
}
