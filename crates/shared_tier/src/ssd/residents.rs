//! The files on this node's SSD, and the bytes that each takes there.
//!
//! Changes by this node are known at once; changes by others (who move files away, write, rename and remove them) are
//! found by scanning the whole SSD now and then ([`scan`](super::scan)). So entries may be stale, and nothing is
//! moved without checking the store.

use halocline_model::namespace::EntryName;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// A file on the SSD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    /// A name that led to it.
    pub(crate) name: EntryName,
    /// Bytes on disk.
    pub(crate) bytes: u64,
}

/// All files on the SSD, by number.
#[derive(Debug, Default)]
pub(crate) struct Residents(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    files: FxHashMap<u64, Resident>,
    used: u64,
    /// Files that changed since a scan began: its results for them are stale.
    changed: Option<FxHashSet<u64>>,
}

impl State {
    fn set(&mut self, number: u64, resident: Option<Resident>) -> Option<Resident> {
        self.used += resident.as_ref().map_or(0, |resident| resident.bytes);
        let before = match resident {
            Some(resident) => self.files.insert(number, resident),
            None => self.files.remove(&number),
        };
        self.used -= before.as_ref().map_or(0, |before| before.bytes);
        if let Some(changed) = &mut self.changed {
            changed.insert(number);
        }
        before
    }
}

impl Residents {
    /// Adds a file, or updates its size or name.
    pub(crate) fn put(&self, number: u64, resident: Resident) {
        self.0.lock().set(number, Some(resident));
    }

    /// Updates the size of a known file.
    pub(crate) fn set_bytes(&self, number: u64, bytes: u64) {
        let mut state = self.0.lock();
        if let Some(known) = state.files.get(&number).filter(|known| known.bytes != bytes) {
            let resident = Resident { bytes, ..known.clone() };
            state.set(number, Some(resident));
        }
    }

    /// Updates the name of a known file.
    pub(crate) fn renamed(&self, number: u64, name: &EntryName) {
        let mut state = self.0.lock();
        if let Some(known) = state.files.get(&number) {
            let resident = Resident { name: name.clone(), ..known.clone() };
            state.set(number, Some(resident));
        }
    }

    /// Removes a file.
    pub(crate) fn remove(&self, number: u64) {
        self.0.lock().set(number, None);
    }

    pub(crate) fn get(&self, number: u64) -> Option<Resident> {
        self.0.lock().files.get(&number).cloned()
    }

    /// The bytes of all of them.
    pub(crate) fn used(&self) -> u64 {
        self.0.lock().used
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().files.len()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(u64, Resident)> {
        let state = self.0.lock();
        state.files.iter().map(|(number, resident)| (*number, resident.clone())).collect()
    }

    /// A scan begins.
    pub(crate) fn begin_scan(&self) {
        self.0.lock().changed = Some(FxHashSet::default());
    }

    /// The result of a scan; `None` if it failed.
    pub(crate) fn end_scan(&self, found: Option<FxHashMap<u64, Resident>>) {
        let mut state = self.0.lock();
        let changed = state.changed.take().unwrap_or_default();
        let Some(mut found) = found else { return };
        found.retain(|number, _| !changed.contains(number));
        let gone: Vec<u64> = state
            .files
            .keys()
            .filter(|number| !found.contains_key(number) && !changed.contains(number))
            .copied()
            .collect();
        for number in gone {
            state.set(number, None);
        }
        for (number, resident) in found {
            state.set(number, Some(resident));
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::{InodeNumber, Name};

    use super::*;

    fn resident(name: &str, bytes: u64) -> Resident {
        Resident { name: EntryName { directory: InodeNumber(1), name: Name::from(name) }, bytes }
    }

    #[test]
    fn what_changes_during_a_look_at_the_ssd_is_newer_than_what_it_finds() {
        let residents = Residents::default();
        residents.put(1, resident("a", 10));
        residents.put(2, resident("b", 20));
        residents.put(3, resident("gone", 40));
        residents.begin_scan();
        residents.remove(1);
        residents.set_bytes(2, 25);
        residents.put(4, resident("new", 100));
        residents.set_bytes(5, 7);
        let found = [(1, resident("a", 10)), (2, resident("b", 20)), (6, resident("f", 3))];
        residents.end_scan(Some(found.into_iter().collect()));
        let mut all = residents.all();
        all.sort_by_key(|(number, _)| *number);
        let expected = [(2, resident("b", 25)), (4, resident("new", 100)), (6, resident("f", 3))];
        assert_eq!(all, expected);
        assert_eq!((residents.used(), residents.len()), (128, 3));
        residents.renamed(2, &resident("c", 0).name);
        assert_eq!(residents.get(2), Some(resident("c", 25)));
        residents.begin_scan();
        residents.end_scan(None);
        assert_eq!(residents.used(), 128);
    }
}
