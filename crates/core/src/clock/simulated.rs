//! A clock that goes on only where everybody waits for it.
//!
//! It cannot know who has work to do: the engine's threads do not sign in. So it watches whether anybody looks at
//! the clock or begins or ends a wait. Where nobody does for a moment of real time, all wait, and the time goes to
//! the earliest that is waited for. A thread that computes for longer than that looks slow, as on a busy machine.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Real time in which nobody uses the clock, after which all are taken to wait.
const QUIET: Duration = Duration::from_micros(200);

/// The clock's state, shared by all its users.
#[derive(Debug)]
pub(crate) struct Simulated {
    /// Its beginning, by the machine's clocks.
    begun: (Instant, SystemTime),
    /// Nanoseconds since then.
    elapsed_ns: AtomicU64,
    /// Counts looks at the clock, and waits that began or ended.
    uses: AtomicU64,
    waits: Mutex<Waits>,
    passed: Condvar,
}

/// Who waits: the time that is waited for, and a number of the wait.
#[derive(Debug, Default)]
struct Waits {
    next: u64,
    all: BTreeSet<(u64, u64)>,
}

impl Default for Simulated {
    fn default() -> Self {
        let (uses, waits) = (AtomicU64::new(0), Mutex::default());
        let begun = (Instant::now(), SystemTime::now());
        Self { begun, elapsed_ns: AtomicU64::new(0), uses, waits, passed: Condvar::new() }
    }
}

impl Simulated {
    /// Nanoseconds since the epoch.
    pub(super) fn now_ns(&self) -> i64 {
        let begun = self.begun.1.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(begun.as_nanos())
            .unwrap_or(i64::MAX)
            .saturating_add_unsigned(self.elapsed_ns())
    }

    /// Nanoseconds since the clock's beginning.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.elapsed_ns.load(Ordering::Acquire)
    }

    pub(super) fn instant(&self) -> Instant {
        self.begun.0 + Duration::from_nanos(self.elapsed_ns())
    }

    /// Waits until `deadline`.
    pub(super) fn sleep_until(&self, deadline: Instant) {
        self.sleep_until_ns(self.ns_at(deadline));
    }

    /// Waits until `deadline_ns` nanoseconds since the clock's beginning.
    pub(crate) fn sleep_until_ns(&self, deadline_ns: u64) {
        let wait = self.begin(deadline_ns);
        let mut waits = self.waits.lock();
        while !self.is_over(wait) {
            let before = self.uses.load(Ordering::Relaxed);
            if self.passed.wait_for(&mut waits, QUIET).timed_out() {
                self.go_on(&waits, wait, before);
            }
        }
        waits.all.remove(&wait);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`Clock::wait_until`](super::Clock::wait_until).
    pub(super) fn wait_until<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> bool {
        let wait = self.begin(self.ns_at(deadline));
        let is_late = loop {
            if self.is_over(wait) {
                break true;
            }
            let before = self.uses.load(Ordering::Relaxed);
            if !changed.wait_for(guard, QUIET).timed_out() {
                break false;
            }
            self.go_on(&self.waits.lock(), wait, before);
        };
        self.waits.lock().all.remove(&wait);
        self.uses.fetch_add(1, Ordering::Relaxed);
        is_late
    }

    fn begin(&self, deadline_ns: u64) -> (u64, u64) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        let mut waits = self.waits.lock();
        waits.next += 1;
        let wait = (deadline_ns, waits.next);
        waits.all.insert(wait);
        wait
    }

    fn is_over(&self, (deadline_ns, _): (u64, u64)) -> bool {
        self.elapsed_ns.load(Ordering::Acquire) >= deadline_ns
    }

    /// Sets the clock to the end of `wait` where that is the earliest, and nobody has used the clock since `before`.
    fn go_on(&self, waits: &Waits, wait: (u64, u64), before: u64) {
        if waits.all.first() == Some(&wait) && self.uses.load(Ordering::Relaxed) == before {
            self.elapsed_ns.fetch_max(wait.0, Ordering::AcqRel);
            self.passed.notify_all();
        }
    }

    fn ns_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::clock::Clock;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wait_takes_its_time_and_no_real_time() {
        let (clock, real) = (Clock::simulated(), Instant::now());
        let (before, before_ns) = (clock.instant(), clock.now_ns());
        for _ in 0..24 {
            clock.sleep(HOUR);
        }
        assert_eq!(clock.elapsed(before), 24 * HOUR);
        assert_eq!(clock.now_ns() - before_ns, 24 * 3600 * 1_000_000_000);
        assert!(real.elapsed() < HOUR, "a day is over in less than an hour");
    }

    #[test]
    fn waits_at_the_same_time_overlap() {
        let clock = Clock::simulated();
        let begun = clock.instant();
        thread::scope(|scope| {
            for hours in [3, 1, 2] {
                let clock = clock.clone();
                scope.spawn(move || {
                    clock.sleep_until(begun + HOUR * hours);
                    assert!(clock.elapsed(begun) >= HOUR * hours);
                });
            }
        });
        assert_eq!(clock.elapsed(begun), 3 * HOUR);
    }

    #[test]
    fn who_is_notified_waits_no_longer() {
        let clock = Clock::simulated();
        let (told, change) = (Mutex::new(false), Condvar::new());
        let begun = clock.instant();
        thread::scope(|scope| {
            let mut guard = told.lock();
            scope.spawn(|| {
                *told.lock() = true;
                change.notify_all();
            });
            while !*guard {
                clock.wait_until(&change, &mut guard, begun + HOUR * 1_000_000);
            }
        });
        let mut guard = told.lock();
        assert!(clock.wait_until(&change, &mut guard, clock.instant() + HOUR));
    }
}
