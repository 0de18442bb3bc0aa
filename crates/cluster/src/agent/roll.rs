//! The roll of members, as it was read last.

use std::sync::Arc;
use std::time::Instant;

use halocline_os::clock::Clock;
use parking_lot::Mutex;

use crate::store::{Result, Roll, Store};

/// The roll that was read last, and when; the store may have a newer one.
pub(super) struct LatestRoll {
    store: Arc<dyn Store>,
    clock: Clock,
    known: Mutex<(Arc<Roll>, Instant)>,
}

impl LatestRoll {
    /// `roll` was just read.
    pub(super) fn new(store: &Arc<dyn Store>, clock: &Clock, roll: Roll) -> Self {
        let known = Mutex::new((Arc::new(roll), clock.boot_instant()));
        Self { store: Arc::clone(store), clock: clock.clone(), known }
    }

    /// Reads a roll that is at least as new as this call.
    pub(super) fn refresh(&self) -> Result<Arc<Roll>> {
        // The lock is held during the read, so that an older roll never replaces a newer one.
        let mut known = self.known.lock();
        let at = self.clock.boot_instant();
        let roll = Arc::new(self.store.roll()?);
        *known = (Arc::clone(&roll), at);
        Ok(roll)
    }

    /// The roll that was read last.
    pub(super) fn known(&self) -> Arc<Roll> {
        Arc::clone(&self.known.lock().0)
    }

    /// The store's clock, approximately.
    pub(super) fn now_ms(&self) -> u64 {
        let (now_ms, at) = {
            let known = self.known.lock();
            (known.0.now_ms, known.1)
        };
        let since = self.clock.boot_instant().saturating_duration_since(at).as_millis();
        now_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
