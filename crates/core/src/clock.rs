//! Time, and waiting for it: one place that reads the machine's clocks, so that another time can be put in their place.
//!
//! Every request asks for it, mostly to tell seconds apart. The kernel keeps the time of its last
//! tick (1 to 10 ms ago) where reading it costs a fifth.

mod simulated;

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, MutexGuard};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use simulated::Simulated;

/// Where an engine and its emulated devices get their time from, and where they wait for it: the machine's clock, or
/// a simulated one that all copies of this share.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Simulated>>);

impl Clock {
    /// The machine's own.
    pub const MACHINE: Self = Self(None);

    /// A simulated one, which begins now and then stands still until somebody waits for it. Where all who might do
    /// something wait, it goes to the earliest time that is waited for: waiting costs next to nothing.
    #[must_use]
    pub fn simulated() -> Self {
        Self(Some(Arc::default()))
    }

    /// Nanoseconds since the epoch.
    pub(crate) fn now_ns(&self) -> i64 {
        if let Some(simulated) = &self.0 {
            return simulated.now_ns();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since the epoch, some milliseconds late.
    pub(crate) fn now_ms(&self) -> u64 {
        self.0.as_ref().map_or_else(coarse_ms, |simulated| {
            u64::try_from(simulated.now_ns() / 1_000_000).unwrap_or(0)
        })
    }

    /// A time that never goes back, for durations.
    pub fn instant(&self) -> Instant {
        self.0.as_ref().map_or_else(Instant::now, |simulated| simulated.instant())
    }

    /// How long `since` is ago.
    pub fn elapsed(&self, since: Instant) -> Duration {
        self.instant().saturating_duration_since(since)
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) {
        match &self.0 {
            None => thread::sleep(duration),
            Some(simulated) => simulated.sleep_until(simulated.instant() + duration),
        }
    }

    /// Waits until `time`.
    pub fn sleep_until(&self, time: Instant) {
        match &self.0 {
            None => thread::sleep(time.saturating_duration_since(Instant::now())),
            Some(simulated) => simulated.sleep_until(time),
        }
    }

    /// Waits until somebody notifies `changed`, and at most until `deadline`; `true` where that came first.
    pub(crate) fn wait_until<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> bool {
        match &self.0 {
            None => changed.wait_until(guard, deadline).timed_out(),
            Some(simulated) => simulated.wait_until(changed, guard, deadline),
        }
    }

    /// Says that whoever [begins](Work::begin) what this returns works until it is dropped, but where it waits for the
    /// time or sleeps: a simulated time stands still meanwhile. For threads that work beside others.
    pub fn work(&self) -> Work {
        if let Some(simulated) = &self.0 {
            simulated.add_work();
        }
        Work { clock: self.clone(), began: false }
    }

    /// The simulated one, if it is.
    pub(crate) fn as_simulated(&self) -> Option<&Simulated> {
        self.0.as_deref()
    }
}

thread_local! {
    /// The simulated clock of what the calling thread works for.
    static WORKS_BY: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Work beside that of the calling thread, where a simulated clock waits for that: for a part of it that another thread
/// does.
pub(crate) fn part_of_work() -> Option<Work> {
    WORKS_BY.with_borrow(|clock| clock.as_ref().map(Clock::work))
}

/// Work that a simulated clock waits for.
#[derive(Debug)]
#[must_use = "the work has ended when it is dropped"]
pub struct Work {
    clock: Clock,
    began: bool,
}

impl Work {
    /// The calling thread does it.
    #[must_use = "the work has ended when it is dropped"]
    pub fn begin(mut self) -> Self {
        if let Some(simulated) = &self.clock.0 {
            simulated.begin_work();
            WORKS_BY.set(Some(self.clock.clone()));
            self.began = true;
        }
        self
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(simulated) = &self.clock.0
            && simulated.end_work(self.began)
        {
            WORKS_BY.set(None);
        }
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
