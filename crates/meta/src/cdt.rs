//! The critical data table: a bounded set of ranges worth caching. The least recently used entries are evicted first,
//! those without `C_flag` before those with it (docs/ALGORITHMS.md, section 4.2).

use std::collections::BTreeMap;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{CriticalRange, FileId};

type Key = (FileId, u64, u64);

#[derive(Debug, Clone, Copy)]
struct CriticalEntry {
    placement: Placement,
    used: u64,
    /// Position of its `C_flag` in the order in which flags were set.
    flagged: Option<u64>,
}

/// The effect of a change on the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// `C_flag` was set: keep the entry with its position in the order.
    Keep(CriticalRange, u64),
    /// `C_flag` or the entry is gone.
    Drop(FileId, ByteRange),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Cdt {
    capacity: usize,
    next: u64,
    entries: BTreeMap<Key, CriticalEntry>,
    /// Uses of entries, those without `C_flag` first.
    uses: BTreeMap<(bool, u64), Key>,
    flags: BTreeMap<u64, Key>,
    /// Bytes of the longest range that was ever in the table.
    longest: u64,
}

fn key(file: FileId, range: ByteRange) -> Key {
    (file, range.start, range.end)
}

fn wanted(key: Key, placement: Placement) -> CriticalRange {
    CriticalRange { file: key.0, range: ByteRange::new(key.1, key.2), placement }
}

impl Cdt {
    /// An empty table of at most `capacity` entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            next: 1,
            entries: BTreeMap::new(),
            uses: BTreeMap::new(),
            flags: BTreeMap::new(),
            longest: 0,
        }
    }

    /// Notes a use of a range, and sets `C_flag` if `fetch`; an existing flag keeps its position.
    pub(crate) fn note(&mut self, note: CriticalRange, fetch: bool, changes: &mut Vec<Durable>) {
        if self.capacity == 0 || note.range.is_empty() {
            return;
        }
        let key = key(note.file, note.range);
        let before = self.take(key).and_then(|entry| entry.flagged);
        if before.is_none() && self.entries.len() >= self.capacity {
            self.evict(changes);
        }
        let used = self.tick();
        let flagged = before.or_else(|| fetch.then(|| self.tick()));
        if let (None, Some(order)) = (before, flagged) {
            changes.push(Durable::Keep(note, order));
        }
        self.put(key, CriticalEntry { placement: note.placement, used, flagged });
    }

    /// Restores an entry with `C_flag`.
    pub(crate) fn restore(&mut self, note: CriticalRange, order: u64) {
        if self.entries.len() < self.capacity {
            self.next = self.next.max(order.saturating_add(1));
            let used = self.tick();
            let entry = CriticalEntry { placement: note.placement, used, flagged: Some(order) };
            self.put(key(note.file, note.range), entry);
        }
    }

    /// Entries with `C_flag` in the order in which it was set, at most `limit`.
    pub(crate) fn wanted(&self, limit: usize) -> Vec<CriticalRange> {
        let flagged = self.flags.values().take(limit);
        flagged.map(|key| wanted(*key, self.entries[key].placement)).collect()
    }

    /// Clears `C_flag` of an entry.
    pub(crate) fn fetched(&mut self, file: FileId, range: ByteRange, changes: &mut Vec<Durable>) {
        let key = key(file, range);
        if let Some(entry) = self.take(key) {
            if entry.flagged.is_some() {
                changes.push(Durable::Drop(file, range));
            }
            self.put(key, CriticalEntry { flagged: None, ..entry });
        }
    }

    /// Whether a range of `file` is in the table.
    pub(crate) fn knows(&self, file: FileId) -> bool {
        self.entries.range((file, 0, 0)..).next().is_some_and(|(key, _)| key.0 == file)
    }

    /// Drops the entries of `file` that share a byte with `range`.
    pub(crate) fn drop_range(
        &mut self,
        file: FileId,
        range: ByteRange,
        changes: &mut Vec<Durable>,
    ) {
        // An entry that extends into the range begins before it by at most the longest length.
        let first = range.start.saturating_sub(self.longest);
        let of_file = self.entries.range((file, first, 0)..(file, range.end.max(first), 0));
        let doomed: Vec<Key> =
            of_file.map(|(&key, _)| key).filter(|key| key.2 > range.start).collect();
        for key in doomed {
            self.drop_entry(key, changes);
        }
    }

    fn evict(&mut self, changes: &mut Vec<Durable>) {
        if let Some(&key) = self.uses.values().next() {
            self.drop_entry(key, changes);
        }
    }

    fn drop_entry(&mut self, key: Key, changes: &mut Vec<Durable>) {
        if self.take(key).is_some_and(|entry| entry.flagged.is_some()) {
            changes.push(Durable::Drop(key.0, ByteRange::new(key.1, key.2)));
        }
    }

    fn put(&mut self, key: Key, entry: CriticalEntry) {
        self.uses.insert((entry.flagged.is_some(), entry.used), key);
        if let Some(order) = entry.flagged {
            self.flags.insert(order, key);
        }
        self.longest = self.longest.max(key.2 - key.1);
        self.entries.insert(key, entry);
        debug_assert!(self.entries.len() <= self.capacity, "the table is bounded");
        debug_assert_eq!(self.entries.len(), self.uses.len(), "each entry is in the use order");
    }

    fn take(&mut self, key: Key) -> Option<CriticalEntry> {
        let entry = self.entries.remove(&key)?;
        self.uses.remove(&(entry.flagged.is_some(), entry.used));
        if let Some(order) = entry.flagged {
            self.flags.remove(&order);
        }
        Some(entry)
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halocline_model::layout::Layout;

    const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };

    fn at(file: u64, start: u64) -> CriticalRange {
        CriticalRange { file: FileId(file), range: ByteRange::at(start, 10), placement: HERE }
    }

    fn starts(cdt: &Cdt) -> Vec<u64> {
        cdt.entries.keys().map(|key| key.1).collect()
    }

    #[test]
    fn entries_without_flag_leave_first_least_recently_used_first() {
        let (mut cdt, mut out) = (Cdt::new(3), Vec::new());
        cdt.note(at(1, 0), true, &mut out);
        cdt.note(at(1, 10), false, &mut out);
        cdt.note(at(1, 20), false, &mut out);
        cdt.note(at(1, 10), false, &mut out);
        cdt.note(at(1, 30), true, &mut out);
        assert_eq!(starts(&cdt), [0, 10, 30]);
        cdt.note(at(1, 40), true, &mut out);
        assert_eq!(starts(&cdt), [0, 30, 40]);
        out.clear();
        cdt.note(at(1, 50), false, &mut out);
        assert_eq!(starts(&cdt), [30, 40, 50], "only flagged entries were left");
        assert_eq!(out, [Durable::Drop(FileId(1), ByteRange::at(0, 10))]);
    }

    #[test]
    fn flags_keep_the_order_in_which_they_were_set() {
        let (mut cdt, mut out) = (Cdt::new(8), Vec::new());
        for (start, fetch) in [(20, true), (10, false), (0, true), (10, true), (20, true)] {
            cdt.note(at(1, start), fetch, &mut out);
        }
        let order = |cdt: &Cdt| cdt.wanted(9).iter().map(|w| w.range.start).collect::<Vec<_>>();
        assert_eq!(order(&cdt), [20, 0, 10]);
        cdt.fetched(FileId(1), ByteRange::at(0, 10), &mut out);
        assert_eq!(order(&cdt), [20, 10]);
        cdt.note(at(1, 0), true, &mut out);
        assert_eq!(order(&cdt), [20, 10, 0]);
        assert_eq!(cdt.wanted(1).len(), 1);
    }

    #[test]
    fn dropping_a_range_takes_what_overlaps_it_in_one_file() {
        let (mut cdt, mut out) = (Cdt::new(8), Vec::new());
        for note in [at(1, 0), at(1, 10), at(1, 20), at(2, 10)] {
            cdt.note(note, false, &mut out);
        }
        cdt.drop_range(FileId(1), ByteRange::new(15, u64::MAX), &mut out);
        assert_eq!(cdt.entries.keys().map(|k| (k.0.0, k.1)).collect::<Vec<_>>(), [(1, 0), (2, 10)]);
        assert!(out.is_empty(), "nothing without C_flag is in the store");
    }
}
