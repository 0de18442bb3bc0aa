//! Write intents: stretches of a file that the store records as one dirty extent, while memory knows which pieces of
//! them are dirty (ours; like the write-intent bitmap of a RAID).
//!
//! The first write into a clean extent has to be recorded before its data changes. Recording more than is written makes
//! the next writes near it free, but a crash finds more dirty bytes than there are: bytes equal to the origin's are
//! written to it once more. What must hold:
//! - the extents inside an intent cover it without a gap and are in one object;
//! - the clean ones have the epoch [`HELD`]: they are not evicted, because the record that calls them dirty would bring
//!   their freed blocks back (I2);
//! - a change that removes bytes from an intent, or makes all of it clean, records the rest.

use std::collections::BTreeMap;

use halocline_model::request::ByteRange;

use super::rangemap::RangeMap;

/// Length in bytes of the aligned stretch that the first write into a clean extent covers. If it is longer, there are
/// fewer records; if shorter, less goes to the origin after a crash, or cannot be evicted meanwhile.
pub(crate) const INTENT_BYTES: u64 = 256 << 10;

/// The epoch of a clean extent inside an intent: no barrier makes it evictable.
pub(crate) const HELD: u64 = u64::MAX;

/// A stretch that is recorded as one dirty extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteIntent {
    /// The stretch.
    pub(crate) range: ByteRange,
    /// The epoch of its record.
    pub(crate) epoch: u64,
}

impl WriteIntent {
    /// Whether extents of one object cover it, the clean ones held.
    pub(crate) fn is_covered_by(&self, extents: &RangeMap) -> bool {
        let mut at = self.range.start;
        let mut places = extents.overlapping(self.range).map(|(_, entry)| entry.placement);
        let first = places.next();
        let in_order = extents.overlapping(self.range).all(|(start, entry)| {
            let follows = start == at;
            at = entry.end;
            follows && (entry.dirty() || entry.epoch == HELD)
        });
        in_order && at == self.range.end && places.all(|place| Some(place) == first)
    }
}

/// The intents of one file.
#[derive(Debug, Default)]
pub(crate) struct WriteIntents(BTreeMap<u64, WriteIntent>);

impl WriteIntents {
    /// The intent that contains the byte at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<WriteIntent> {
        let (_, intent) = self.0.range(..=offset).next_back()?;
        (intent.range.end > offset).then_some(*intent)
    }

    /// Those that share a byte with `range`, in order.
    pub(crate) fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = WriteIntent> {
        let from = self.at(range.start).map_or(range.start, |intent| intent.range.start);
        self.0.range(from..range.end.max(from)).map(|(_, intent)| *intent)
    }

    /// All intents in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = WriteIntent> {
        self.0.values().copied()
    }

    /// Adds an intent.
    pub(crate) fn insert(&mut self, intent: WriteIntent) {
        debug_assert!(self.overlapping(intent.range).next().is_none(), "intents do not overlap");
        self.0.insert(intent.range.start, intent);
    }

    /// Removes an intent.
    pub(crate) fn remove(&mut self, intent: WriteIntent) {
        let was = self.0.remove(&intent.range.start);
        assert_eq!(was, Some(intent), "only intents that are there are taken out");
    }

    /// Removes `range` from the intents. The rests on both sides stay intents.
    pub(crate) fn cut(&mut self, range: ByteRange) {
        let cut: Vec<_> = self.overlapping(range).collect();
        for intent in cut {
            self.remove(intent);
            for rest in outside(intent.range, range) {
                self.insert(WriteIntent { range: rest, ..intent });
            }
        }
    }

    /// Whether every intent is covered and nothing outside is held.
    pub(crate) fn agree_with(&self, extents: &RangeMap) -> bool {
        self.all().all(|intent| intent.is_covered_by(extents))
            && extents
                .entries()
                .filter(|(_, entry)| entry.epoch == HELD)
                .all(|(start, entry)| !entry.dirty() && self.at(start).is_some())
    }
}

/// The parts of `whole` before and after `cut`, if they are not empty.
pub(crate) fn outside(whole: ByteRange, cut: ByteRange) -> impl Iterator<Item = ByteRange> {
    let before = ByteRange::new(whole.start, cut.start.clamp(whole.start, whole.end));
    let after = ByteRange::new(cut.end.clamp(whole.start, whole.end), whole.end);
    [before, after].into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(start: u64, end: u64) -> WriteIntent {
        WriteIntent { range: ByteRange::new(start, end), epoch: 7 }
    }

    #[test]
    fn marks_are_found_by_any_byte_of_theirs() {
        let mut intents = WriteIntents::default();
        intents.insert(intent(10, 20));
        intents.insert(intent(20, 30));
        assert_eq!(
            [9, 10, 19, 20, 29, 30].map(|at| intents.at(at).map(|m| m.range.start)),
            [None, Some(10), Some(10), Some(20), Some(20), None]
        );
        let found: Vec<_> = intents.overlapping(ByteRange::new(19, 20)).collect();
        assert_eq!(found, [intent(10, 20)]);
        assert_eq!(intents.overlapping(ByteRange::new(0, 10)).next(), None);
    }

    #[test]
    fn what_is_cut_out_leaves_both_ends_marked() {
        let mut intents = WriteIntents::default();
        intents.insert(intent(0, 100));
        intents.insert(intent(100, 200));
        intents.cut(ByteRange::new(40, 120));
        assert_eq!(intents.all().collect::<Vec<_>>(), [intent(0, 40), intent(120, 200)]);
    }
}
