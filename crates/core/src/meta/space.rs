//! Blocks on disk (I5): the cache never uses more than its limit, counted before the write.
//!
//! What is used is a set of blocks: those that some mapped extent, some reservation or some
//! discard not yet done needs, per cache object, each once. So blocks move from a reservation to
//! an extent to a discard without being counted twice or not at all; the number grows only in
//! [`Space::take`], which asks the limit, and shrinks only when blocks are free on disk.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::BLOCK;
use super::rangemap::{Piece, RangeMap};

/// Blocks used by the whole cache, in bytes.
#[derive(Debug)]
pub(super) struct Space {
    used: AtomicU64,
    limit: u64,
}

impl Space {
    /// Nothing used of `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    /// Bytes used.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes `bytes` if the limit allows it (I5).
    pub(super) fn take(&self, bytes: u64) -> bool {
        let fits =
            |used: u64| used.checked_add(bytes).filter(|&sum| bytes == 0 || sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Counts what an earlier session left, whatever the limit is now.
    pub(super) fn found(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub(super) fn give(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "I5: only what was taken is given back");
    }
}

/// Who works on a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nobody: it waits until this epoch is durable.
    Queued(u64),
    /// Taken from the queue; its taker asks again, under a lock, before it frees anything.
    Taken,
    /// Handed out to be freed right away: nobody may use its blocks until it is done.
    InHand,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    end: u64,
    hold: Hold,
}

/// Blocks of one file's objects that no mapped extent needs, but that are used.
#[derive(Debug, Default)]
pub(super) struct FileSpace {
    reserved: Vec<(Placement, ByteRange)>,
    /// Block ranges to discard, by object and first byte; they never overlap.
    pending: BTreeMap<(Placement, u64), Pending>,
}

impl FileSpace {
    /// Whether nothing is reserved and nothing waits to be discarded.
    pub(super) fn is_empty(&self) -> bool {
        self.reserved.is_empty() && self.pending.is_empty()
    }

    /// Whether something waits to be discarded.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The parts of `blocks` that nothing in this object needs.
    fn unused(
        &self,
        mapped: impl Iterator<Item = Piece>,
        placement: Placement,
        blocks: ByteRange,
        and_pending: bool,
    ) -> Vec<ByteRange> {
        let mapped = mapped.filter(|piece| piece.placement == placement);
        let mut needed: Vec<ByteRange> = mapped.map(|piece| piece.range).collect();
        needed.extend(self.reserved.iter().filter(|(at, _)| *at == placement).map(|(_, r)| *r));
        if and_pending {
            needed.extend(self.pending_over(placement, blocks).map(|(range, _)| range));
        }
        needed.sort_unstable();
        let mut unused = Vec::new();
        let mut done = blocks.start;
        for range in needed.iter().map(|range| range.widen_to(BLOCK)) {
            let Some(range) = range.intersect(blocks) else { continue };
            if done < range.start {
                unused.push(ByteRange::new(done, range.start));
            }
            done = done.max(range.end);
        }
        if done < blocks.end {
            unused.push(ByteRange::new(done, blocks.end));
        }
        unused
    }

    fn pending_over(
        &self,
        placement: Placement,
        range: ByteRange,
    ) -> impl Iterator<Item = (ByteRange, Hold)> {
        let before = self.pending.range(..=(placement, range.start)).next_back();
        let first = match before {
            Some((&(at, start), pending)) if at == placement && pending.end > range.start => start,
            _ => range.start,
        };
        self.pending
            .range((placement, first)..(placement, range.end.max(first)))
            .map(|(&(_, start), pending)| (ByteRange::new(start, pending.end), pending.hold))
    }

    /// Bytes of blocks that `range` would use and nothing uses yet.
    pub(super) fn missing(&self, map: &RangeMap, placement: Placement, range: ByteRange) -> u64 {
        let blocks = range.widen_to(BLOCK);
        self.unused(map.overlapping(blocks), placement, blocks, true)
            .iter()
            .map(|part| part.len())
            .sum()
    }

    /// Whether blocks of `range` are about to be freed by somebody who does not hold its lock.
    pub(super) fn is_in_hand(&self, placement: Placement, range: ByteRange) -> bool {
        self.pending_over(placement, range.widen_to(BLOCK)).any(|(_, hold)| hold == Hold::InHand)
    }

    /// Bytes of blocks of `range` that nothing would need if `leaving` were gone.
    pub(super) fn would_free(
        &self,
        map: &RangeMap,
        placement: Placement,
        range: ByteRange,
        leaving: impl Fn(&Piece) -> bool,
    ) -> u64 {
        let blocks = range.widen_to(BLOCK);
        let staying = map.overlapping(blocks).filter(|piece| !leaving(piece));
        self.unused(staying, placement, blocks, true).iter().map(|part| part.len()).sum()
    }

    /// Notes a reservation whose blocks were taken.
    pub(super) fn reserve(&mut self, placement: Placement, range: ByteRange) {
        self.reserved.push((placement, range));
    }

    /// Takes `range` out of the reservations; returns whether anything of it was reserved.
    pub(super) fn unreserve(&mut self, placement: Placement, range: ByteRange) -> bool {
        let mut kept = Vec::with_capacity(self.reserved.len());
        let mut found = false;
        for (at, reserved) in self.reserved.drain(..) {
            if at != placement || !reserved.overlaps(range) {
                kept.push((at, reserved));
                continue;
            }
            found = true;
            if reserved.start < range.start {
                kept.push((at, ByteRange::new(reserved.start, range.start)));
            }
            if range.end < reserved.end {
                kept.push((at, ByteRange::new(range.end, reserved.end)));
            }
        }
        self.reserved = kept;
        found
    }

    /// Cancels what waits to be discarded under a range that is mapped now.
    pub(super) fn cancel(&mut self, placement: Placement, range: ByteRange) {
        self.carve(placement, range.widen_to(BLOCK));
    }

    /// Queues the blocks of `range` that nothing needs any more, in whole blocks; returns them.
    pub(super) fn queue(
        &mut self,
        map: &RangeMap,
        placement: Placement,
        range: ByteRange,
        hold: Hold,
    ) -> Vec<ByteRange> {
        let blocks = range.widen_to(BLOCK);
        let free = self.unused(map.overlapping(blocks), placement, blocks, true);
        for part in &free {
            debug_assert!(part.start % BLOCK == 0 && part.end % BLOCK == 0);
            self.pending.insert((placement, part.start), Pending { end: part.end, hold });
        }
        free
    }

    /// The queued ranges that may be freed once `durable` is the durable epoch; they are taken.
    pub(super) fn take(&mut self, durable: u64, mut taken: impl FnMut(Placement, ByteRange)) {
        for (&(placement, start), pending) in &mut self.pending {
            if matches!(pending.hold, Hold::Queued(epoch) if epoch <= durable) {
                pending.hold = Hold::Taken;
                taken(placement, ByteRange::new(start, pending.end));
            }
        }
    }

    /// The parts of a taken range that are still to be freed; from now on nobody else may use
    /// them until they are. Blocks that a reservation needs meanwhile are left out.
    pub(super) fn confirm(
        &mut self,
        map: &RangeMap,
        placement: Placement,
        range: ByteRange,
    ) -> Vec<ByteRange> {
        let taken: Vec<ByteRange> = self
            .pending_over(placement, range)
            .filter(|(_, hold)| *hold == Hold::Taken)
            .filter_map(|(part, _)| part.intersect(range))
            .collect();
        let mut free = Vec::new();
        for part in taken {
            free.extend(self.unused(map.overlapping(part), placement, part, false));
        }
        for part in &free {
            self.carve(placement, *part);
            let pending = Pending { end: part.end, hold: Hold::InHand };
            self.pending.insert((placement, part.start), pending);
        }
        free
    }

    /// The blocks of `range` are free on disk; returns how many bytes of them were counted.
    pub(super) fn freed(&mut self, placement: Placement, range: ByteRange) -> u64 {
        self.carve(placement, range)
    }

    /// Removes `range` from what is pending; returns the bytes removed.
    fn carve(&mut self, placement: Placement, range: ByteRange) -> u64 {
        let over: Vec<_> = self.pending_over(placement, range).collect();
        let mut removed = 0;
        for (part, hold) in over {
            let Some(gone) = part.intersect(range) else { continue };
            removed += gone.len();
            self.pending.remove(&(placement, part.start));
            for (start, end) in [(part.start, gone.start), (gone.end, part.end)] {
                if start < end {
                    self.pending.insert((placement, start), Pending { end, hold });
                }
            }
        }
        removed
    }
}

/// The smallest set of whole-block ranges, by object, that cover `pieces`.
pub(super) fn blocks_of(pieces: &[Piece]) -> Vec<(Placement, ByteRange)> {
    let mut blocks: Vec<_> =
        pieces.iter().map(|piece| (piece.placement, piece.range.widen_to(BLOCK))).collect();
    blocks.sort_unstable();
    blocks.dedup_by(|next, last| {
        let joined = next.0 == last.0 && next.1.start <= last.1.end;
        if joined {
            last.1.end = last.1.end.max(next.1.end);
        }
        joined
    });
    blocks
}
