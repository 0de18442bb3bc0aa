//! Notes for people about an engine, as `status` shows them.

use std::sync::OnceLock;

use parking_lot::Mutex;

/// Notes kept at most; the oldest are dropped first.
const NOTES_MAX: usize = 100;

/// Notes for people, newest last.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// About the two sides together.
    sides: OnceLock<&'static str>,
    noted: Mutex<Vec<String>>,
}

impl Notes {
    /// Sets the note about the two sides together. Only the first call counts.
    pub(crate) fn set_of_sides(&self, note: &'static str) {
        let _ = self.sides.set(note);
    }

    /// The note about the two sides together.
    pub(crate) fn of_sides(&self) -> Option<String> {
        self.sides.get().map(|note| (*note).to_owned())
    }

    /// Adds a note, which `status` shows.
    pub(crate) fn note(&self, what: String) {
        let mut notes = self.noted.lock();
        if notes.last() == Some(&what) {
            return;
        }
        tracing::warn!("{what}");
        if notes.len() >= NOTES_MAX {
            notes.remove(0);
        }
        notes.push(what);
    }

    /// All notes: first the one about both sides, then those about events.
    pub(crate) fn all(&self) -> Vec<String> {
        self.of_sides().into_iter().chain(self.noted.lock().iter().cloned()).collect()
    }
}
