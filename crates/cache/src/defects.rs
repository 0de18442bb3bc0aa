//! Panics in the engine's own work: reported in `status`, and survived.
//!
//! What must hold: a panic loses nothing that was acknowledged. Dirty bytes become clean only after the work that wrote
//! them to the origin has completed; until then they stay on the cache, in its records, and are flushed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::health::Health;
use super::status_notes::Notes;
use halocline_os::catch_panic::caught;
use halocline_os::clock::Clock;
use halocline_os::error::Result;

/// Where panics of background work are reported.
#[derive(Debug)]
pub(crate) struct Defects {
    health: Arc<Health>,
    notes: Arc<Notes>,
    clock: Clock,
    met: AtomicU64,
}

impl Defects {
    /// No panics yet.
    pub(crate) fn new(health: &Arc<Health>, notes: &Arc<Notes>, clock: Clock) -> Self {
        let (health, notes) = (Arc::clone(health), Arc::clone(notes));
        Self { health, notes, clock, met: AtomicU64::new(0) }
    }

    /// How many there were so far.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Does `work`; a panic in it is reported under the name `whose`, and returned as an error.
    pub(crate) fn guard<T>(&self, whose: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        caught(work).unwrap_or_else(|panicked| {
            self.met.fetch_add(1, Ordering::Relaxed);
            let what = format!("{whose}: {panicked}");
            self.health.defect(&what, self.clock.now_ms());
            self.notes.note(what);
            Err(panicked.into())
        })
    }
}
