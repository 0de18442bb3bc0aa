//! What an agent counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// Counts of one agent, since it began.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) waits: AtomicU64,
    pub(crate) waited_us: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) handovers: AtomicU64,
    pub(crate) direct: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) lapses: AtomicU64,
    pub(crate) epochs: AtomicU64,
}

/// What they were at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Tokens held.
    pub tokens: u64,
    /// Files of which some are held.
    pub files: u64,
    /// Permits that had to wait for another node.
    pub waits: u64,
    /// How long, together, in microseconds.
    pub waited_us: u64,
    /// Tokens that were asked for.
    pub asked: u64,
    /// Ranges that were given up because others wanted them.
    pub handovers: u64,
    /// Tokens that were granted for contended ranges: nothing is cached there.
    pub direct: u64,
    /// Permits that were refused.
    pub refused: u64,
    /// How often the lease ran out.
    pub lapses: u64,
    /// How often this node had to say what it holds because the store may have forgotten it.
    pub epochs: u64,
    /// Requests to the store.
    pub round_trips: u64,
    /// How much of the lease is left, in milliseconds.
    pub lease_left_ms: u64,
}

impl Counters {
    /// Those that are counted here.
    pub(crate) fn counts(&self) -> Counts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            waits: now(&self.waits),
            waited_us: now(&self.waited_us),
            asked: now(&self.asked),
            handovers: now(&self.handovers),
            direct: now(&self.direct),
            refused: now(&self.refused),
            lapses: now(&self.lapses),
            epochs: now(&self.epochs),
            ..Counts::default()
        }
    }

    pub(crate) fn note_wait(&self, time: Duration) {
        add(&self.waits);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(us, Ordering::Relaxed);
    }
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
