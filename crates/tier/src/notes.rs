//! What a person should know about the tiers, and background work that panicked.

use std::sync::OnceLock;

use parking_lot::Mutex;

use halocline_os::catch_panic::Panicked;

/// Notes of panics are added only while there are fewer notes than this.
const NOTES_MAX: usize = 100;

/// Notes, and the first panic.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// What a person should know.
    notes: Mutex<Vec<String>>,
    /// The first panic of background work.
    first_panic: OnceLock<String>,
}

impl Notes {
    /// Adds a note to the status.
    pub(super) fn add(&self, note: String) {
        self.notes.lock().push(note);
    }

    /// All that was said so far.
    pub(super) fn all(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Adds a note about background work that panicked.
    pub(super) fn add_panic(&self, whose: &str, panicked: &Panicked) {
        let what = format!("{whose}: {panicked}");
        let mut notes = self.notes.lock();
        if !notes.contains(&what) && notes.len() < NOTES_MAX {
            notes.push(what.clone());
        }
        self.first_panic.get_or_init(|| what);
    }

    /// The first work that panicked, with its panic.
    pub(super) fn first_panic(&self) -> Option<&str> {
        self.first_panic.get().map(String::as_str)
    }
}
