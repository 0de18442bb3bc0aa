//! Time, and waiting for it: the only place that reads the machine's clocks, so that another clock can replace them.
//!
//! Every request reads the time, mostly to distinguish seconds. The kernel keeps the time of its last tick (1 to 10 ms
//! ago), which takes a fifth of the time to read.

mod simulated;
mod work;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, MutexGuard};
use rustix::time::{ClockId, Timespec, clock_gettime};

pub use simulated::Simulated;
pub use work::part_of_work;
pub use work::{Team, Work};

/// The source of time, and of waits, for an engine and its emulated devices: the machine's clock, or a simulated one
/// that all copies of this share.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Simulated>>);

impl Clock {
    /// The machine's clock.
    pub const MACHINE: Self = Self(None);

    /// A simulated clock, which begins now and stands still until a thread waits for it. Once all threads that might do
    /// something are waiting, it advances to the earliest time that is waited for: waits take almost no real time.
    #[must_use]
    pub fn simulated() -> Self {
        Self(Some(Arc::default()))
    }

    /// Nanoseconds since the epoch.
    pub fn now_ns(&self) -> i64 {
        if let Some(simulated) = &self.0 {
            return simulated.now_ns();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since the epoch, some milliseconds late.
    pub fn now_ms(&self) -> u64 {
        self.0.as_ref().map_or_else(coarse_ms, |simulated| {
            u64::try_from(simulated.now_ns() / 1_000_000).unwrap_or(0)
        })
    }

    /// A time that never goes back, for durations.
    pub fn instant(&self) -> Instant {
        self.0.as_ref().map_or_else(Instant::now, |simulated| simulated.instant())
    }

    /// A time that never goes back and does not stand still while the machine is suspended, for what others measure,
    /// too. To be compared only with others of its kind.
    pub fn boot_instant(&self) -> Instant {
        self.0.as_ref().map_or_else(boot_instant, |simulated| simulated.instant())
    }

    /// The processor time that the calling thread has taken, whatever the clock: simulated threads work, too. Takes a
    /// system call.
    #[must_use]
    pub fn thread_time() -> Duration {
        duration(clock_gettime(ClockId::ThreadCPUTime))
    }

    /// The time that has passed since `since`.
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

    /// Advances a simulated clock at once, as if the machine's clock were set: no wait takes that time.
    ///
    /// # Panics
    ///
    /// On the machine's clock, which cannot be set.
    pub fn leap(&self, by: Duration) {
        self.0.as_ref().expect("only a simulated clock is set").leap(by);
    }

    /// Waits while `condition` holds, at most until `deadline`; `true` if the deadline came first. Threads that change
    /// what the condition reads must notify `changed`.
    pub fn wait_while<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        deadline: Instant,
    ) -> bool {
        match &self.0 {
            None => changed.wait_while_until(guard, condition, deadline).timed_out(),
            Some(simulated) => simulated.wait_while(changed, guard, condition, deadline),
        }
    }

    /// Work that counts from the moment a thread [begins](Work::begin) it until it is dropped, except while the thread
    /// waits for the time or sleeps: simulated time stands still meanwhile. For threads that work alongside others.
    pub fn work(&self) -> Work {
        Work::new(self.clone())
    }

    /// The simulated clock, if this is one.
    pub fn as_simulated(&self) -> Option<&Simulated> {
        self.0.as_deref()
    }
}

/// The time of the first call, and what the clock that suspension does not stop has counted since.
fn boot_instant() -> Instant {
    static FIRST: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (at, first) = *FIRST.get_or_init(|| (Instant::now(), since_boot()));
    at + since_boot().saturating_sub(first)
}

/// Time since the machine was started, with the time in which it was suspended.
fn since_boot() -> Duration {
    duration(clock_gettime(ClockId::Boottime))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A noted time that is later than now by more than this was noted before the clock was set back.
const SET_BACK_MS: u64 = 1000;

/// Milliseconds from `since_ms` to `now_ms`. A time noted before the clock was set back counts as very old: its age is
/// unknown, and waiting for it would take as long as the clock was set back.
pub const fn age_ms(now_ms: u64, since_ms: u64) -> u64 {
    if since_ms > now_ms.saturating_add(SET_BACK_MS) {
        return u64::MAX;
    }
    now_ms.saturating_sub(since_ms)
}

/// Milliseconds since the epoch at the kernel's last tick.
pub fn coarse_ms() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_instants_go_with_the_machines_boot_clock() {
        let clock = Clock::MACHINE;
        let (began, before) = (clock.boot_instant(), since_boot());
        clock.sleep(Duration::from_millis(20));
        let (inner, ended) = (since_boot().saturating_sub(before), clock.boot_instant());
        assert!(ended - began >= inner, "it is read before and after");
        assert!(ended - began >= Duration::from_millis(20));
    }

    #[test]
    fn what_was_noted_before_the_clock_was_set_back_is_old() {
        assert_eq!(age_ms(5000, 3000), 2000);
        // Another thread noted the time slightly later, or with the finer clock.
        assert_eq!(age_ms(5000, 5900), 0);
        assert_eq!(age_ms(5000, 6001), u64::MAX);
    }
}
