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

/// A time that is later than now by more than this was noted before the clock was set back.
const SET_BACK_MS: u64 = 1000;

/// Milliseconds from `since_ms` to `now_ms`. What was noted before the clock was set back is taken for very old: nobody
/// knows its age, and whoever waited for it would wait as long as the clock was set back.
pub(crate) const fn age_ms(now_ms: u64, since_ms: u64) -> u64 {
    if since_ms > now_ms.saturating_add(SET_BACK_MS) {
        return u64::MAX;
    }
    now_ms.saturating_sub(since_ms)
}

/// Milliseconds since the epoch at the kernel's last tick.
pub(crate) fn coarse_ms() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_before_the_clock_was_set_back_is_old() {
        assert_eq!(age_ms(5000, 3000), 2000);
        // Another thread noted it a moment later, or with the finer clock.
        assert_eq!(age_ms(5000, 5900), 0);
        assert_eq!(age_ms(5000, 6001), u64::MAX);
    }
}
