//! The tokens that a node believes it holds of one file, and the permits in progress for it. Nothing here waits.

use std::time::{Duration, Instant};

use halocline_cache::coherence::{Grant, Want};
use halocline_model::request::ByteRange;
use halocline_model::token::{Held, Mode, REGION, border};

/// How long a contended range is used directly before the store is asked whether it is still contended.
const DIRECT_FOR: Duration = Duration::from_secs(5);

/// A token that the node holds, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    range: ByteRange,
    mode: Mode,
    /// The first permit that began since the node got the token, until one of the permits since then has ended: others
    /// may have changed these bytes, or the file's size, since this node last looked.
    new_since: Option<u64>,
    /// The bytes that permits touched, from the first to the last.
    used: Option<ByteRange>,
    since: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Permit {
    ticket: u64,
    range: ByteRange,
}

/// The tokens of a file on this node.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Ordered by offset, without overlaps.
    held: Vec<Piece>,
    permits: Vec<Permit>,
    /// Ranges that are being given up; no permit begins there.
    closed: Vec<ByteRange>,
    next_ticket: u64,
    /// When the last permit began, or when giving it back last failed.
    used_at: Option<Instant>,
}

impl Pieces {
    /// A permit, if the tokens held allow it.
    pub(super) fn permit(&mut self, want: Want, now: Instant) -> Option<Grant> {
        if self.is_closed(want.range) {
            return None;
        }
        let (mut at, mut caches, mut renewed) = (want.range.start, true, false);
        let mut fresh = None;
        let first = self.held.partition_point(|piece| piece.range.end <= at);
        let mut end = first;
        while at < want.range.end {
            let piece = self.held.get(end).filter(|piece| piece.range.start <= at)?;
            if !piece.mode.allows(want.direction) || (want.alone && piece.mode != Mode::Exclusive) {
                return None;
            }
            if piece.is_expired(now) {
                return None;
            }
            caches &= piece.mode.caches();
            renewed |= piece.new_since.is_some() || !piece.mode.caches();
            if piece.new_since.is_some() && piece.mode.caches() {
                fresh = hull(fresh, Some(piece.range));
            }
            at = piece.range.end;
            end += 1;
        }
        for piece in &mut self.held[first..end] {
            piece.used = hull(piece.used, want.touches.intersect(piece.range));
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.used_at = Some(now);
        self.permits.push(Permit { ticket, range: want.range });
        let fresh = fresh.unwrap_or(ByteRange::new(0, 0));
        Some(Grant { caches, renewed, fresh, ticket })
    }

    /// Ends a permit. Returns whether somebody may be waiting for its end.
    pub(super) fn end(&mut self, grant: Grant) -> bool {
        let at = self.permits.iter().position(|permit| permit.ticket == grant.ticket);
        let Some(at) = at else { return false };
        let permit = self.permits.swap_remove(at);
        if grant.renewed {
            for piece in self.held.iter_mut().filter(|piece| piece.range.overlaps(permit.range)) {
                // A permit that began before the node got all of the piece has not checked all of it.
                if piece.new_since.is_some_and(|first| permit.ticket >= first) {
                    piece.new_since = None;
                }
            }
        }
        !self.closed.is_empty()
    }

    /// Prevents permits from beginning in a range.
    pub(super) fn close(&mut self, range: ByteRange) {
        self.closed.push(range);
    }

    /// Allows permits to begin in a range again.
    pub(super) fn open(&mut self, range: ByteRange) {
        if let Some(at) = self.closed.iter().position(|closed| *closed == range) {
            self.closed.swap_remove(at);
        }
    }

    pub(super) fn is_closed(&self, range: ByteRange) -> bool {
        self.closed.iter().any(|closed| closed.overlaps(range))
    }

    /// Whether permits are in progress in a range.
    pub(super) fn is_used(&self, range: ByteRange) -> bool {
        self.permits.iter().any(|permit| permit.range.overlaps(range))
    }

    /// Whether all of a range is held exclusively, and was checked since the node got the token.
    pub(super) fn is_alone(&self, range: ByteRange) -> bool {
        let known = self.held.iter();
        let known =
            known.filter(|piece| piece.mode == Mode::Exclusive && piece.new_since.is_none());
        let known: Vec<ByteRange> = known.map(|piece| piece.range).collect();
        uncovered(range, &known).is_none()
    }

    /// What to give up if others want `wanted`: also the bytes around it that this node does not use, so that the node
    /// is not asked again for every block.
    pub(super) fn to_give(&self, wanted: ByteRange, reads: bool, contended: bool) -> ByteRange {
        let piece = self.held.iter().find(|piece| piece.range.contains(wanted));
        let Some(piece) = piece else { return wanted };
        let within = |range: ByteRange| range.intersect(piece.range).unwrap_or(wanted);
        match piece.used {
            _ if contended => within(wanted.widen_to(REGION)),
            None => piece.range,
            Some(used) if wanted.start >= used.end => {
                within(ByteRange::new(border(used.end, wanted.start), u64::MAX))
            }
            Some(used) if wanted.end <= used.start => {
                within(ByteRange::new(0, border(wanted.end, used.start)))
            }
            // A node that reads there will probably read on.
            Some(_) if reads => within(wanted.widen_to(REGION)),
            Some(_) => wanted,
        }
    }

    /// A part of `range` that has been used directly for so long that the store should be asked again.
    pub(super) fn expired(&self, range: ByteRange, now: Instant) -> Option<ByteRange> {
        let overlaps = |piece: &&Piece| piece.range.overlaps(range) && piece.is_expired(now);
        self.held.iter().find(overlaps).map(|piece| piece.range)
    }

    /// Adopts what the store says this node holds.
    pub(super) fn install(&mut self, held: &[Held], now: Instant) {
        let mut pieces = Vec::with_capacity(held.len());
        for held in held {
            let new_since = Some(self.next_ticket);
            let new =
                Piece { range: held.range, mode: held.mode, new_since, used: None, since: now };
            let mut rest = held.range;
            for old in &self.held {
                let Some(common) = old.range.intersect(rest) else { continue };
                if common.start > rest.start {
                    let range = ByteRange::new(rest.start, common.start);
                    pieces.push(Piece { range, ..new });
                }
                let used = old.used.and_then(|used| used.intersect(common));
                let new_since = if old.mode.caches() { old.new_since } else { new.new_since };
                let since = if old.mode == held.mode { old.since } else { now };
                pieces.push(Piece { range: common, new_since, used, since, ..new });
                rest.start = common.end;
            }
            if !rest.is_empty() {
                pieces.push(Piece { range: rest, ..new });
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.range.start);
        pieces.dedup_by(|next, last| last.join(next));
        self.held = pieces;
        self.check();
    }

    /// A range that must be given up before this node takes `held`: either it has cached bytes that `held` does not
    /// cover, or permits there may write past the caches and so make bytes stale at once that `held` allows to be
    /// cached.
    pub(super) fn to_give_first(&self, held: &[Held]) -> Option<ByteRange> {
        let caching = held.iter().filter(|held| held.mode.caches());
        let caching: Vec<ByteRange> = caching.map(|held| held.range).collect();
        self.held.iter().find_map(|piece| {
            if piece.mode.caches() {
                uncovered(piece.range, &caching)
            } else {
                caching.iter().find_map(|range| range.intersect(piece.range))
            }
        })
    }

    /// Gives up a range, but keeps `keep` where the token was exclusive.
    pub(super) fn remove(&mut self, range: ByteRange, keep: Option<Mode>) {
        let mut pieces = Vec::with_capacity(self.held.len() + 1);
        for piece in self.held.drain(..) {
            let Some(common) = piece.range.intersect(range) else {
                pieces.push(piece);
                continue;
            };
            let before = ByteRange::new(piece.range.start, common.start);
            let after = ByteRange::new(common.end, piece.range.end);
            let inside = keep.map(|mode| {
                let mode = if piece.mode == Mode::Exclusive { mode } else { piece.mode };
                (common, mode)
            });
            let outside = |range| (range, piece.mode);
            let parts = [Some(outside(before)), inside, Some(outside(after))];
            for (range, mode) in parts.into_iter().flatten().filter(|(range, _)| !range.is_empty())
            {
                let used = piece.used.and_then(|used| used.intersect(range));
                pieces.push(Piece { range, mode, used, ..piece });
            }
        }
        self.held = pieces;
        self.check();
    }

    /// Ranges whose tokens are void after a lapse of the lease.
    pub(super) fn unsure(&self) -> Vec<ByteRange> {
        let unsure = self.held.iter().filter(|piece| piece.mode != Mode::Exclusive);
        unsure.map(|piece| piece.range).collect()
    }

    /// The ranges that are held, with their modes.
    pub(super) fn all(&self) -> impl Iterator<Item = (ByteRange, Mode)> {
        self.held.iter().map(|piece| (piece.range, piece.mode))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.permits.is_empty() && self.closed.is_empty()
    }

    /// The start of idle time; `None` if a permit or a handover is in progress, or nothing is held.
    pub(super) fn at_rest_since(&self) -> Option<Instant> {
        let since = self.used_at.or_else(|| self.held.iter().map(|piece| piece.since).max());
        let is_at_rest = self.permits.is_empty() && self.closed.is_empty();
        since.filter(|_| is_at_rest && !self.held.is_empty())
    }

    /// Restarts the idle time.
    pub(super) fn note_use(&mut self, now: Instant) {
        self.used_at = Some(now);
    }

    fn check(&self) {
        debug_assert!(
            self.held.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start),
            "a node holds each byte once: {:?}",
            self.held
        );
    }
}

impl Piece {
    fn is_expired(&self, now: Instant) -> bool {
        self.mode == Mode::Direct && now.saturating_duration_since(self.since) > DIRECT_FOR
    }

    /// Joins the next piece to this one if they differ only in their ranges.
    fn join(&mut self, next: &Self) -> bool {
        let joins = (self.range.end, self.mode, self.new_since, self.mode == Mode::Direct)
            == (next.range.start, next.mode, next.new_since, false);
        if joins {
            self.range.end = next.range.end;
            self.used = hull(self.used, next.used);
        }
        joins
    }
}

/// The rest of `range` from the first byte that no part covers; parts are ordered.
fn uncovered(range: ByteRange, parts: &[ByteRange]) -> Option<ByteRange> {
    let mut at = range.start;
    for part in parts.iter().filter(|part| part.overlaps(range)) {
        if part.start > at {
            break;
        }
        at = part.end;
    }
    (at < range.end).then(|| ByteRange::new(at, range.end))
}

/// The smallest range that contains both.
fn hull(one: Option<ByteRange>, other: Option<ByteRange>) -> Option<ByteRange> {
    match (one, other) {
        (Some(one), Some(other)) => {
            Some(ByteRange::new(one.start.min(other.start), one.end.max(other.end)))
        }
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::request::Direction;
    use halocline_model::token::Session;

    use super::*;

    fn held(mode: Mode, start: u64, end: u64) -> Held {
        Held { session: Session(1), mode, range: ByteRange::new(start, end) }
    }

    fn write(start: u64, end: u64) -> Want {
        let range = ByteRange::new(start, end);
        Want { direction: Direction::Write, range, touches: range, alone: false }
    }

    fn read(start: u64, end: u64) -> Want {
        Want { direction: Direction::Read, ..write(start, end) }
    }

    #[test]
    fn a_permit_needs_all_of_its_range() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        assert!(pieces.permit(read(0, 10), now).is_none());
        pieces.install(&[held(Mode::Exclusive, 0, 10), held(Mode::Shared, 10, 20)], now);
        assert!(pieces.permit(write(0, 11), now).is_none());
        assert!(pieces.permit(read(5, 21), now).is_none());
        let first = pieces.permit(read(5, 20), now).unwrap();
        assert!(first.caches && first.renewed);
        assert_eq!(first.fresh, ByteRange::new(0, 20), "whole tokens");
        let beside = pieces.permit(read(5, 20), now).unwrap();
        assert!(beside.renewed, "nobody has looked yet");
        pieces.close(ByteRange::new(19, 30));
        assert!(pieces.permit(read(15, 20), now).is_none());
        assert!(pieces.is_used(ByteRange::new(19, 30)));
        assert!(pieces.end(first) && pieces.end(beside));
        pieces.open(ByteRange::new(19, 30));
        assert!(!pieces.permit(read(5, 20), now).unwrap().renewed);
    }

    #[test]
    fn what_others_may_have_changed_is_not_written_again() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Exclusive, 0, 10), held(Mode::Shared, 10, 20)], now);
        assert!(!pieces.is_alone(ByteRange::new(0, 10)), "nobody has looked yet");
        let grant = pieces.permit(write(0, 5), now).unwrap();
        pieces.end(grant);
        pieces.close(ByteRange::new(0, 10));
        assert!(pieces.is_alone(ByteRange::new(0, 10)), "also while it is given up");
        assert!(!pieces.is_alone(ByteRange::new(0, 11)), "others read there");
        pieces.remove(ByteRange::new(4, 6), None);
        assert!(pieces.is_alone(ByteRange::new(0, 4)));
        assert!(!pieces.is_alone(ByteRange::new(0, 10)));
    }

    #[test]
    fn what_is_contended_is_for_no_one_alone_and_for_some_time() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Direct, 0, 10)], now);
        let grant = pieces.permit(write(0, 5), now).unwrap();
        assert!(!grant.caches && grant.renewed);
        assert!(pieces.permit(Want { alone: true, ..write(0, 5) }, now).is_none());
        let later = now + DIRECT_FOR + Duration::from_nanos(1);
        assert!(pieces.permit(write(0, 5), later).is_none());
        assert_eq!(pieces.expired(ByteRange::new(3, 4), later), Some(ByteRange::new(0, 10)));
        pieces.install(&[held(Mode::Exclusive, 0, 10)], later);
        assert!(pieces.permit(write(0, 5), later).unwrap().renewed, "others wrote there, too");
    }

    #[test]
    fn what_is_cached_goes_before_it_is_direct_and_what_is_direct_before_it_is_cached() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Shared, 0, 10), held(Mode::Direct, 10, 20)], now);
        let first = |end, mode| {
            let first = pieces.to_give_first(&[held(Mode::Shared, 0, end), held(mode, end, 20)]);
            first.map(|range| (range.start, range.end))
        };
        assert_eq!(first(10, Mode::Direct), None);
        assert_eq!(first(5, Mode::Direct), Some((5, 10)));
        assert_eq!(first(10, Mode::Exclusive), Some((10, 20)));
        assert_eq!(first(15, Mode::Direct), Some((10, 15)));
    }

    #[test]
    fn what_is_not_used_is_given_with_what_is_wanted() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Exclusive, 0, u64::MAX)], now);
        let give = |pieces: &Pieces, start, reads| {
            let range = pieces.to_give(ByteRange::new(start, start + 10), reads, false);
            (range.start, range.end)
        };
        assert_eq!(give(&pieces, 50, false), (0, u64::MAX), "nothing was used");
        let _ = pieces.permit(write(100, 200), now).unwrap();
        assert_eq!(give(&pieces, 500, false), (256, u64::MAX));
        assert_eq!(give(&pieces, 50, false), (0, 64));
        assert_eq!(give(&pieces, 150, false), (150, 160));
        assert_eq!(give(&pieces, 150, true), (0, REGION));
        pieces.remove(ByteRange::new(150, 160), Some(Mode::Shared));
        pieces.remove(ByteRange::new(300, u64::MAX), None);
        assert_eq!(
            pieces.all().collect::<Vec<_>>(),
            [
                (ByteRange::new(0, 150), Mode::Exclusive),
                (ByteRange::new(150, 160), Mode::Shared),
                (ByteRange::new(160, 300), Mode::Exclusive)
            ]
        );
        assert_eq!(pieces.unsure(), [ByteRange::new(150, 160)]);
    }

    /// Regression: a node that had just extended the file was asked for all of it, and flushed its first block to the
    /// origin.
    #[test]
    fn what_is_wanted_alone_is_used_where_it_is_touched() {
        let now = Instant::now();
        let alone = Want { alone: true, touches: ByteRange::new(500, 600), ..write(100, u64::MAX) };
        for (wanted, given) in [(1000, (768, u64::MAX)), (150, (0, 256)), (550, (550, 560))] {
            let mut pieces = Pieces::default();
            pieces.install(&[held(Mode::Exclusive, 0, u64::MAX)], now);
            let _ = pieces.permit(alone, now).unwrap();
            let range = pieces.to_give(ByteRange::at(wanted, 10), false, false);
            assert_eq!((range.start, range.end), given, "{wanted}");
        }
    }

    /// Regression: when a request that had begun on a part of the file ended, all of the file counted as checked,
    /// including ranges that the node had got meanwhile. The next write then used the file's old size, and cut off
    /// what another node had written beyond it.
    #[test]
    fn what_the_node_got_during_a_permit_is_new_after_it() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Exclusive, 0, 10)], now);
        let before = pieces.permit(write(0, 10), now).unwrap();
        pieces.install(&[held(Mode::Exclusive, 0, u64::MAX)], now);
        pieces.end(before);
        let alone = pieces.permit(Want { alone: true, ..write(5, u64::MAX) }, now).unwrap();
        assert!(alone.renewed, "nobody has looked since the node got the rest");
        pieces.end(alone);
        assert!(!pieces.permit(write(5, 20), now).unwrap().renewed);
    }

    #[test]
    fn what_grows_is_new_where_it_was_not_held() {
        let now = Instant::now();
        let mut pieces = Pieces::default();
        pieces.install(&[held(Mode::Shared, 0, 10)], now);
        let grant = pieces.permit(read(0, 10), now).unwrap();
        pieces.end(grant);
        pieces.install(&[held(Mode::Exclusive, 0, 20)], now);
        assert!(!pieces.permit(write(0, 10), now).unwrap().renewed);
        assert!(pieces.permit(write(0, 11), now).unwrap().renewed);
    }
}
