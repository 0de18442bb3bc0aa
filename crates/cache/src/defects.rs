//! Panics in the engine's own work: told in `status`, and gone around.
//!
//! What must hold: what panicked loses nothing that was acknowledged. Dirty bytes become clean only at the end of what
//! wrote them to the origin; until then they stay on the cache, in its records, and are tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::health::Health;
use super::status_notes::Notes;
use halocline_os::catch_panic::caught;
use halocline_os::clock::Clock;
use halocline_os::error::Result;

/// Where panics of background work are told.
#[derive(Debug)]
pub(crate) struct Defects {
    health: Arc<Health>,
    notes: Arc<Notes>,
    clock: Clock,
    met: AtomicU64,
}

impl Defects {
    /// None was met yet.
    pub(crate) fn new(health: &Arc<Health>, notes: &Arc<Notes>, clock: Clock) -> Self {
        let (health, notes) = (Arc::clone(health), Arc::clone(notes));
        Self { health, notes, clock, met: AtomicU64::new(0) }
    }

    /// How many were met so far.
    pub(crate) fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Does `work`, which `whose` names for people; a panic in it is told, and an error.
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
