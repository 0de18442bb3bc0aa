//! The critical data table: ranges that critical requests used, and which of them are wanted.
//!
//! It is bounded: entries without C_flag go first, least recently used first; then flagged ones.

use std::collections::BTreeMap;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::{FileId, Wanted};

type Key = (FileId, u64, u64);

#[derive(Debug, Clone, Copy)]
struct Entry {
    placement: Placement,
    used: u64,
    /// When C_flag was set, in turns.
    flagged: Option<u64>,
}

/// What the store must be told after a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Entries whose C_flag was set, with their turn.
    pub(super) flagged: Vec<(Wanted, u64)>,
    /// Entries whose C_flag is gone.
    pub(super) unflagged: Vec<(FileId, ByteRange)>,
}

/// The critical data table.
#[derive(Debug)]
pub(super) struct Cdt {
    limit: usize,
    turn: u64,
    entries: BTreeMap<Key, Entry>,
    /// Entries without C_flag by last use.
    idle: BTreeMap<u64, Key>,
    /// Entries with C_flag by last use.
    busy: BTreeMap<u64, Key>,
    /// Entries with C_flag by when it was set.
    wanted: BTreeMap<u64, Key>,
}

fn key_of(file: FileId, range: ByteRange) -> Key {
    (file, range.start, range.end)
}

fn range_of(key: Key) -> ByteRange {
    ByteRange::new(key.1, key.2)
}

impl Cdt {
    /// An empty table of at most `limit` entries.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            turn: 0,
            entries: BTreeMap::new(),
            idle: BTreeMap::new(),
            busy: BTreeMap::new(),
            wanted: BTreeMap::new(),
        }
    }

    /// Brings back an entry that an earlier session flagged.
    pub(super) fn restore(&mut self, wanted: Wanted, turn: u64) -> Told {
        self.turn = self.turn.max(turn);
        let entry = Entry { placement: wanted.placement, used: turn, flagged: Some(turn) };
        self.put(key_of(wanted.file, wanted.range), entry);
        self.shrink()
    }

    /// Notes a use of `wanted`; `fetch` sets C_flag.
    pub(super) fn note(&mut self, wanted: Wanted, fetch: bool) -> Told {
        self.turn += 1;
        let key = key_of(wanted.file, wanted.range);
        let old = self.take(key);
        let kept = old.and_then(|entry| entry.flagged);
        let flagged = kept.or(fetch.then_some(self.turn));
        let moved = old.is_some_and(|entry| entry.placement != wanted.placement);
        self.put(key, Entry { placement: wanted.placement, used: self.turn, flagged });
        let mut told = self.shrink();
        if let Some(turn) = flagged
            && (kept.is_none() || moved)
            && self.entries.contains_key(&key)
        {
            told.flagged.push((wanted, turn));
        }
        told
    }

    fn put(&mut self, key: Key, entry: Entry) {
        match entry.flagged {
            None => self.idle.insert(entry.used, key),
            Some(turn) => {
                self.wanted.insert(turn, key);
                self.busy.insert(entry.used, key)
            }
        };
        self.entries.insert(key, entry);
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        match entry.flagged {
            None => self.idle.remove(&entry.used),
            Some(turn) => {
                self.wanted.remove(&turn);
                self.busy.remove(&entry.used)
            }
        };
        Some(entry)
    }

    fn shrink(&mut self) -> Told {
        let mut told = Told::default();
        while self.entries.len() > self.limit {
            let first = self.idle.first_key_value().or_else(|| self.busy.first_key_value());
            let Some((_, &key)) = first else { break };
            if self.take(key).is_some_and(|entry| entry.flagged.is_some()) {
                told.unflagged.push((key.0, range_of(key)));
            }
        }
        told
    }

    /// Entries with C_flag in the order in which it was set, at most `limit`.
    pub(super) fn wanted(&self, limit: usize) -> Vec<Wanted> {
        let keys = self.wanted.values().take(limit);
        keys.map(|&key| Wanted {
            file: key.0,
            range: range_of(key),
            placement: self.entries[&key].placement,
        })
        .collect()
    }

    /// Clears C_flag of an entry.
    pub(super) fn fetched(&mut self, file: FileId, range: ByteRange) -> Told {
        let key = key_of(file, range);
        let mut told = Told::default();
        if let Some(entry) = self.take(key) {
            if entry.flagged.is_some() {
                told.unflagged.push((file, range));
            }
            self.put(key, Entry { flagged: None, ..entry });
        }
        told
    }

    /// Drops the entries of `file` inside `range`.
    pub(super) fn drop_inside(&mut self, file: FileId, range: ByteRange) -> Told {
        let over = self.entries.range((file, range.start, 0)..(file, range.end, 0));
        let inside: Vec<Key> = over.map(|(&key, _)| key).filter(|key| key.2 <= range.end).collect();
        let mut told = Told::default();
        for key in inside {
            if self.take(key).is_some_and(|entry| entry.flagged.is_some()) {
                told.unflagged.push((file, range_of(key)));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::layout::Layout;

    use super::*;

    fn want(start: u64) -> Wanted {
        let placement = Placement { layout: Layout::OneDh, group: 0 };
        Wanted { file: FileId(1), range: ByteRange::at(start, 10), placement }
    }

    fn starts(cdt: &Cdt) -> Vec<u64> {
        cdt.wanted(usize::MAX).iter().map(|wanted| wanted.range.start).collect()
    }

    #[test]
    fn entries_without_flag_go_first_and_flags_keep_their_order() {
        let mut cdt = Cdt::new(3);
        cdt.note(want(30), true);
        cdt.note(want(0), false);
        cdt.note(want(10), true);
        cdt.note(want(30), true);
        assert_eq!(starts(&cdt), [30, 10]);
        // The idle entry goes although the flagged one at 10 was used before it.
        cdt.note(want(0), false);
        assert_eq!(cdt.note(want(20), true).unflagged, []);
        assert_eq!(starts(&cdt), [30, 10, 20]);
        // Only flagged ones are left: the least recently used goes.
        let told = cdt.note(want(40), true);
        assert_eq!(told.unflagged, [(FileId(1), want(10).range)]);
        assert_eq!(starts(&cdt), [30, 20, 40]);
    }

    #[test]
    fn a_new_idle_entry_does_not_push_flags_out() {
        let mut cdt = Cdt::new(1);
        cdt.note(want(0), true);
        assert_eq!(cdt.note(want(10), false), Told::default());
        assert_eq!(starts(&cdt), [0]);
    }

    #[test]
    fn only_entries_wholly_inside_are_dropped() {
        let mut cdt = Cdt::new(9);
        for start in [0, 5, 10, 20] {
            cdt.note(want(start), true);
        }
        let told = cdt.drop_inside(FileId(1), ByteRange::new(5, 25));
        assert_eq!(told.unflagged.len(), 2);
        assert_eq!(starts(&cdt), [0, 20]);
        assert_eq!(cdt.fetched(FileId(1), want(0).range).unflagged.len(), 1);
        assert_eq!(cdt.fetched(FileId(1), want(0).range), Told::default());
    }

    #[test]
    fn a_table_of_no_entries_stays_empty() {
        let mut cdt = Cdt::new(0);
        assert_eq!(cdt.note(want(0), true).flagged, []);
        assert!(starts(&cdt).is_empty());
    }
}
