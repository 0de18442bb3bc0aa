//! The engine's clock: one place that reads the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where the engine gets its time from.
#[derive(Debug, Default)]
pub(crate) struct Clock;

impl Clock {
    /// Nanoseconds since the epoch.
    #[expect(clippy::unused_self, reason = "the place where a simulated time will come in")]
    pub(crate) fn now_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now_ns() / 1_000_000).unwrap_or(0)
    }
}
