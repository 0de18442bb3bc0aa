//! What a person should know of the tiers, and background work that panicked.

use std::sync::OnceLock;

use parking_lot::Mutex;

use halocline_os::catch_panic::Panicked;

/// Notes of defects are added to fewer notes than these.
const NOTES_MAX: usize = 100;

/// Notes, and the first defect.
#[derive(Debug, Default)]
pub(super) struct Defects {
    /// What a person should know.
    notes: Mutex<Vec<String>>,
    /// The first panic of background work.
    first: OnceLock<String>,
}

impl Defects {
    /// Says something to whoever asks for the status.
    pub(super) fn note(&self, note: String) {
        self.notes.lock().push(note);
    }

    /// All that was said so far.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Tells of background work that panicked.
    pub(super) fn defect(&self, whose: &str, panicked: &Panicked) {
        let what = format!("{whose}: {panicked}");
        let mut notes = self.notes.lock();
        if !notes.contains(&what) && notes.len() < NOTES_MAX {
            notes.push(what.clone());
        }
        self.first.get_or_init(|| what);
    }

    /// The first such work, and its panic.
    pub(super) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }
}
