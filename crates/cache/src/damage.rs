//! Damaged bytes of the cache: they differ from what was written there, as their checksums show.
//!
//! What must hold here:
//! - damaged clean bytes are read from the origin instead, and their mapping is removed (I1);
//! - damaged dirty bytes stay where they are: no program gets them, and no flush writes them over the origin (I3),
//!   until a program overwrites them or `halocline fsck --repair` saves them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use halocline_meta::FileId;
use halocline_os::counted::counted;

/// How many ranges of a file one message lists.
const NAMED: usize = 8;

/// The known damage.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Damaged dirty bytes: ends by starts.
    dirty: Mutex<BTreeMap<FileId, BTreeMap<u64, u64>>>,
    /// How many bytes that is. Usually none, and then the lock is not taken.
    dirty_bytes: AtomicU64,
    /// Bytes that a reader found damaged, to be examined once no request uses them.
    found: Mutex<Vec<(FileId, ByteRange)>>,
    found_some: AtomicBool,
}

impl Damage {
    /// Damaged bytes that only the cache had.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Acquire)
    }

    /// The damaged dirty bytes of `range`, in order.
    pub(crate) fn of(&self, id: FileId, range: ByteRange) -> Vec<ByteRange> {
        if self.dirty_bytes() == 0 {
            return Vec::new();
        }
        let dirty = self.dirty.lock();
        let known = dirty.get(&id).into_iter().flatten();
        known.filter_map(|(&start, &end)| ByteRange::new(start, end).intersect(range)).collect()
    }

    /// Notes damaged dirty bytes; returns whether any of them were new.
    pub(crate) fn add(&self, id: FileId, range: ByteRange) -> bool {
        let mut dirty = self.dirty.lock();
        let known = dirty.entry(id).or_default();
        let before: u64 = bytes_in(known, range);
        cut(known, range);
        let last = known.range(..range.start).next_back().filter(|&(_, &end)| end == range.start);
        let start = last.map_or(range.start, |(&start, _)| start);
        let end = known.remove(&range.end).unwrap_or(range.end);
        known.insert(start, end);
        self.dirty_bytes.fetch_add(range.len() - before, Ordering::AcqRel);
        before < range.len()
    }

    /// The bytes of `range` were replaced or dropped, and are no longer damaged.
    pub(crate) fn heal(&self, id: FileId, range: ByteRange) {
        if self.dirty_bytes() == 0 {
            return;
        }
        let mut dirty = self.dirty.lock();
        let Some(known) = dirty.get_mut(&id) else { return };
        self.dirty_bytes.fetch_sub(bytes_in(known, range), Ordering::AcqRel);
        cut(known, range);
        if known.is_empty() {
            dirty.remove(&id);
        }
    }

    /// Notes ranges that a reader found damaged.
    pub(crate) fn report(&self, id: FileId, ranges: &[ByteRange]) {
        self.found.lock().extend(ranges.iter().map(|range| (id, *range)));
        self.found_some.store(true, Ordering::Release);
    }

    /// Takes the ranges that readers found since the last call.
    pub(crate) fn take_reported(&self) -> Vec<(FileId, ByteRange)> {
        if !self.found_some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut found = self.found.lock();
        self.found_some.store(false, Ordering::Release);
        std::mem::take(&mut *found)
    }
}

fn bytes_in(known: &BTreeMap<u64, u64>, range: ByteRange) -> u64 {
    let parts = known.range(..range.end).map(|(&start, &end)| ByteRange::new(start, end));
    parts.filter_map(|part| part.intersect(range)).map(ByteRange::len).sum()
}

/// Removes `range`.
fn cut(known: &mut BTreeMap<u64, u64>, range: ByteRange) {
    let parts = known.range(..range.end).filter(|&(_, &end)| end > range.start);
    let parts: Vec<_> = parts.map(|(&start, &end)| ByteRange::new(start, end)).collect();
    for part in parts {
        known.remove(&part.start);
        if part.start < range.start {
            known.insert(part.start, range.start);
        }
        if range.end < part.end {
            known.insert(range.end, part.end);
        }
    }
}

/// Lists ranges in a message.
pub(crate) fn named(ranges: &[ByteRange]) -> String {
    let mut text = String::new();
    for (at, range) in ranges.iter().take(NAMED).enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{} at {}", counted(range.len(), "byte"), range.start);
    }
    if ranges.len() > NAMED {
        let _ = write!(text, " and {} more", ranges.len() - NAMED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_over_is_damaged_no_more() {
        let damage = Damage::default();
        let (id, range) = (FileId(1), ByteRange::new);
        assert!(damage.add(id, range(0, 100)) && !damage.add(id, range(10, 20)));
        assert!(damage.add(id, range(90, 120)));
        assert_eq!(damage.dirty_bytes(), 120);
        damage.heal(id, range(40, 60));
        damage.heal(FileId(2), range(0, 10));
        assert_eq!(damage.dirty_bytes(), 100);
        assert_eq!(damage.of(id, range(0, 50)).iter().map(|part| part.len()).sum::<u64>(), 40);
        damage.heal(id, range(0, u64::MAX));
        assert_eq!((damage.dirty_bytes(), damage.of(id, range(0, 200))), (0, vec![]));
    }

    #[test]
    fn many_ranges_are_not_all_named() {
        let ranges: Vec<_> = (0..20).map(|at| ByteRange::at(at * 10, 1)).collect();
        assert!(named(&ranges).ends_with("1 byte at 70 and 12 more"));
    }
}
