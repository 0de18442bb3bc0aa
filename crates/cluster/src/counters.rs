//! Counters of an agent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use halocline_api::control::TokenCounts as Counts;

/// Counters of one agent, since it began.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) waits: AtomicU64,
    pub(crate) waited_us: AtomicU64,
    longest_wait_us: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) handovers: AtomicU64,
    pub(crate) direct: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) lapses: AtomicU64,
    pub(crate) epochs: AtomicU64,
    pub(crate) given_back: AtomicU64,
    /// The shortest remaining time of the lease at a renewal, in milliseconds plus one; 0 before the first.
    lease_least_ms: AtomicU64,
}

impl Counters {
    /// The counters kept here.
    pub(crate) fn counts(&self) -> Counts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            waits: now(&self.waits),
            waited_us: now(&self.waited_us),
            longest_wait_us: now(&self.longest_wait_us),
            lease_least_ms: now(&self.lease_least_ms).saturating_sub(1),
            asked: now(&self.asked),
            handovers: now(&self.handovers),
            direct: now(&self.direct),
            refused: now(&self.refused),
            lapses: now(&self.lapses),
            epochs: now(&self.epochs),
            given_back: now(&self.given_back),
            ..Counts::default()
        }
    }

    /// Notes the remaining time of a lease when it was renewed.
    pub(crate) fn note_left(&self, left: Duration) {
        let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX - 1) + 1;
        let least = |known: u64| (known == 0 || ms < known).then_some(ms);
        let _ = self.lease_least_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, least);
    }

    pub(crate) fn note_wait(&self, time: Duration) {
        add(&self.waits);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
        self.longest_wait_us.fetch_max(us, Ordering::Relaxed);
    }
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
