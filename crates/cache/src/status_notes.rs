//! What a person should know of an engine, as `status` shows it.

use std::sync::OnceLock;

use parking_lot::Mutex;

/// Notes kept at most; the oldest go first.
const NOTES_MAX: usize = 100;

/// Sentences for people, newest last.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Of the two sides together.
    sides: OnceLock<&'static str>,
    noted: Mutex<Vec<String>>,
}

impl Notes {
    /// Says what is to be known of the two sides together. Only the first time counts.
    pub(crate) fn set_of_sides(&self, note: &'static str) {
        let _ = self.sides.set(note);
    }

    /// What is to be known of the two sides together.
    pub(crate) fn of_sides(&self) -> Option<String> {
        self.sides.get().map(|note| (*note).to_owned())
    }

    /// Notes something that a person should know; `status` shows it.
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

    /// What a person should know: of both sides first, then what happened.
    pub(crate) fn all(&self) -> Vec<String> {
        self.of_sides().into_iter().chain(self.noted.lock().iter().cloned()).collect()
    }
}
