//! The clock of the engine and its records: one place that reads the time.
//!
//! Every request asks for it, mostly to tell seconds apart. The kernel keeps the time of its last
//! tick (1 to 10 ms ago) where reading it costs a fifth.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Where the engine gets its time from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock;

impl Clock {
    /// Nanoseconds since the epoch.
    #[expect(clippy::unused_self, reason = "the place where a simulated time will come in")]
    pub(crate) fn now_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since the epoch, some milliseconds late.
    #[expect(clippy::unused_self, reason = "the place where a simulated time will come in")]
    pub(crate) fn now_ms(&self) -> u64 {
        coarse_ms()
    }
}

/// Milliseconds since the epoch at the kernel's last tick.
pub(crate) fn coarse_ms() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}
