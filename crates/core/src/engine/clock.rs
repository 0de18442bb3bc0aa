//! The engine's clock: one place that reads the time, so that tests and simulation can set it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the engine gets its time from.
#[derive(Debug, Default)]
pub(crate) enum Clock {
    /// The system's.
    #[default]
    System,
    /// A time that a test sets, in nanoseconds since the epoch.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests of ages and quarantines"))]
    Manual(AtomicU64),
}

impl Clock {
    /// Nanoseconds since the epoch.
    pub(crate) fn now_ns(&self) -> i64 {
        let since = match self {
            Self::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
            Self::Manual(now) => now.load(Ordering::Relaxed),
        };
        i64::try_from(since).unwrap_or(i64::MAX)
    }

    /// Milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now_ns() / 1_000_000).unwrap_or(0)
    }
}
