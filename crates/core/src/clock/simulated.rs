//! A clock that goes on only where everybody waits for it.
//!
//! Threads that work beside others say so ([`Clock::work`](super::Clock::work)): while one of them computes, time stands
//! still. The others do not sign in. So the clock watches whether anybody looks at it, or begins or ends a wait: where
//! nobody does for a moment of real time, all are taken to wait, and the time goes to the earliest that is waited for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Real time in which nobody uses the clock, after which all are taken to wait.
const QUIET: Duration = Duration::from_micros(200);
/// The same where some say that they work: they wait for a lock that one who waits for the time holds.
const STUCK: Duration = Duration::from_secs(1);

thread_local! {
    /// How often the calling thread says that it works.
    static WORKS: Cell<usize> = const { Cell::new(0) };
}

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

/// The time that a wait is for, and its number.
type Wait = (u64, u64);

#[derive(Debug, Default)]
struct Waits {
    next: u64,
    /// How often the waiting thread says that it works, when it waits for nothing.
    all: BTreeMap<Wait, usize>,
    /// The same of all threads that wait for nothing.
    working: usize,
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

    /// Counts one more that works, from now on and whichever thread it will be.
    pub(super) fn add_work(&self) {
        self.waits.lock().working += 1;
    }

    /// The calling thread is the one that was counted.
    pub(super) fn begin_work() {
        WORKS.set(WORKS.get() + 1);
    }

    /// One that was counted works no longer; `began`, where the calling thread is it.
    pub(super) fn end_work(&self, began: bool) {
        if began {
            WORKS.set(WORKS.get() - 1);
        }
        self.waits.lock().working -= 1;
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until `deadline_ns` nanoseconds since the clock's beginning.
    pub(crate) fn sleep_until_ns(&self, deadline_ns: u64) {
        let (wait, mut waits) = self.begin(deadline_ns);
        let mut quiet = self.watch();
        while waits.all.contains_key(&wait) && !self.is_over(wait) {
            if self.passed.wait_for(&mut waits, QUIET).timed_out() {
                self.go_on(&mut waits, wait, &mut quiet);
            }
        }
        self.end(&mut waits, wait);
    }

    /// As [`Clock::wait_until`](super::Clock::wait_until).
    pub(super) fn wait_until<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> bool {
        let (wait, waits) = self.begin(self.ns_at(deadline));
        drop(waits);
        let mut quiet = self.watch();
        if self.is_over(wait) {
            // One that calls this again and again must not keep the lock from those it waits for.
            MutexGuard::unlocked_fair(guard, || ());
        }
        let is_late = loop {
            if self.is_over(wait) {
                break true;
            }
            if !changed.wait_for(guard, QUIET).timed_out() {
                break false;
            }
            self.go_on(&mut self.waits.lock(), wait, &mut quiet);
        };
        self.end(&mut self.waits.lock(), wait);
        is_late
    }

    fn begin(&self, deadline_ns: u64) -> (Wait, MutexGuard<'_, Waits>) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        let mut waits = self.waits.lock();
        waits.next += 1;
        let (wait, works) = ((deadline_ns, waits.next), WORKS.get());
        waits.working -= works;
        waits.all.insert(wait, works);
        (wait, waits)
    }

    /// The calling thread goes on. Whoever set the clock to its time counted it as working already.
    fn end(&self, waits: &mut Waits, wait: Wait) {
        waits.working += waits.all.remove(&wait).unwrap_or(0);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self, (deadline_ns, _): Wait) -> bool {
        self.elapsed_ns.load(Ordering::Acquire) >= deadline_ns
    }

    /// Sets the clock to the end of `wait` where that is the earliest, and nobody uses the clock.
    fn go_on(&self, waits: &mut Waits, wait: Wait, quiet: &mut Quiet) {
        let now = self.watch();
        if quiet.uses != now.uses {
            *quiet = now;
            return;
        }
        let long = if waits.working > 0 { STUCK } else { QUIET };
        let first = waits.all.first_key_value().map(|(wait, _)| *wait);
        if first != Some(wait) || now.since.duration_since(quiet.since) < long {
            return;
        }
        self.elapsed_ns.fetch_max(wait.0, Ordering::AcqRel);
        while let Some(entry) = waits.all.first_entry()
            && entry.key().0 <= wait.0
        {
            waits.working += entry.remove();
        }
        self.passed.notify_all();
    }

    fn watch(&self) -> Quiet {
        Quiet { since: Instant::now(), uses: self.uses.load(Ordering::Relaxed) }
    }

    fn ns_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Since when, in real time, one who waits has seen nobody use the clock, and the count of uses then.
#[derive(Debug)]
struct Quiet {
    since: Instant,
    uses: u64,
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::clock::Clock;

    const HOUR: Duration = Duration::from_hours(1);

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

    /// A wait for what is over kept the lock: whoever was to change something never got it.
    #[test]
    fn a_wait_that_is_over_lets_go_of_the_lock() {
        let clock = Clock::simulated();
        let (told, change) = (Mutex::new(false), Condvar::new());
        let over = clock.instant();
        clock.sleep(HOUR);
        thread::scope(|scope| {
            let mut guard = told.lock();
            scope.spawn(|| *told.lock() = true);
            while !*guard {
                assert!(clock.wait_until(&change, &mut guard, over));
            }
        });
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
