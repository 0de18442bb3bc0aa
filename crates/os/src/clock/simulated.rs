//! A clock that advances only when all threads wait for it.
//!
//! Threads that work alongside others register that work ([`Clock::work`](super::Clock::work)): while one of them
//! computes, time stands still. A registered thread that sleeps, for example until a thread that waits for the time
//! answers, holds time up no longer than the others. Other threads do not register. So the clock watches whether any
//! thread reads it, or begins or ends a wait: if none does for a moment of real time, all are assumed to wait, and time
//! advances to the earliest that is waited for. No thread that waits for the time holds a condition's lock
//! ([`Clock::wait_while`](super::Clock::wait_while)): a woken thread gets it soon, and holds time up until then.

mod threads;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};

use self::threads::{Sleep, Thread};

/// Real time without a use of the clock after which all threads are assumed to be waiting.
const QUIET: Duration = Duration::from_micros(200);
/// The same while a registered thread runs: it may be spinning on a lock held by a thread that waits for the time.
/// Longer than a busy machine keeps a thread from its processor.
const STUCK: Duration = Duration::from_secs(10);

/// The more waits end before its own, the less often a thread that waits for a notification checks the clock; at most
/// this many count.
const PLACES_MAX: u32 = 7;

thread_local! {
    /// How much registered work the calling thread is doing.
    static WORKS: Cell<usize> = const { Cell::new(0) };
    static ME: Thread = threads::own();
}

/// The clock's state, shared by all its users.
#[derive(Debug)]
pub struct Simulated {
    /// When it began, by the machine's clocks.
    begun: (Instant, SystemTime),
    /// Nanoseconds since then.
    elapsed_ns: AtomicU64,
    /// Counts reads of the clock, and waits that began or ended.
    uses: AtomicU64,
    waits: Mutex<Waits>,
}

/// The time at which a wait ends, and its number.
type Wait = (u64, u64);

#[derive(Debug, Default)]
struct Waits {
    next: u64,
    all: BTreeMap<Wait, Waiter>,
    /// Amount of registered work that no thread has begun yet.
    unbegun: usize,
    /// Registered threads that are not waiting for the time.
    working: BTreeSet<Thread>,
    /// Those of them whose wait ended, until they run: still asleep, but not for long.
    woken: BTreeSet<Thread>,
}

/// A waiting thread.
#[derive(Debug, Clone)]
struct Waiter {
    /// The thread, if it is registered.
    working: Option<Thread>,
    /// Whether it can also be woken by a notification.
    notified: bool,
    /// Notified when the wait is over, or is the next one to end.
    wake: Arc<Condvar>,
}

impl Waits {
    fn first(&self) -> Option<Wait> {
        self.all.first_key_value().map(|(wait, _)| *wait)
    }

    /// Wakes the thread whose wait ends next: only that one watches the others.
    fn wake_first(&self) {
        if let Some(waiter) = self.all.values().next() {
            waiter.wake.notify_one();
        }
    }

    /// How many waits end before this one, but at most [`PLACES_MAX`].
    fn before(&self, wait: Wait) -> u32 {
        (0..PLACES_MAX).zip(self.all.range(..wait)).fold(0, |places, _| places + 1)
    }

    /// The registered working threads except the calling one, if all of them are asleep, as must be the threads that
    /// wait for a notification. The latter wake now and then to check the clock. That is not progress, so for them only
    /// whether they sleep counts, not how often they did: with many of them, they would never all be seen asleep twice
    /// without a wake-up in between.
    fn all_sleep(&self) -> Option<Vec<Sleep>> {
        if self.unbegun > 0 || !self.woken.is_empty() {
            return None;
        }
        let me = ME.with(|me| *me);
        let others = self.working.iter().copied().filter(|thread| *thread != me);
        let asleep: Vec<Sleep> = others.map(threads::sleep_of).collect::<Option<_>>()?;
        let notified = self.all.values().filter(|waiter| waiter.notified);
        let mut notified = notified.filter_map(|it| it.working).filter(|thread| *thread != me);
        notified.all(|thread| threads::sleep_of(thread).is_some()).then_some(asleep)
    }
}

impl Default for Simulated {
    fn default() -> Self {
        let (uses, waits) = (AtomicU64::new(0), Mutex::default());
        let begun = (Instant::now(), SystemTime::now());
        Self { begun, elapsed_ns: AtomicU64::new(0), uses, waits }
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
    pub fn elapsed_ns(&self) -> u64 {
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

    /// Counts one more worker from now on, whichever thread it will be.
    pub(super) fn add_work(&self) {
        self.lock().unbegun += 1;
    }

    /// The calling thread is a worker that was counted.
    pub(super) fn begin_work(&self) {
        WORKS.set(WORKS.get() + 1);
        let mut waits = self.lock();
        waits.unbegun -= 1;
        waits.working.insert(ME.with(|me| *me));
    }

    /// Work that was counted ends; `began` if the calling thread had begun it. Returns whether that thread now does no
    /// other work.
    pub(super) fn end_work(&self, began: bool) -> bool {
        let mut waits = self.lock();
        if !began {
            waits.unbegun -= 1;
            return false;
        }
        WORKS.set(WORKS.get() - 1);
        let last = WORKS.get() == 0;
        if last {
            waits.working.remove(&ME.with(|me| *me));
        }
        last
    }

    /// As [`Clock::leap`](super::Clock::leap).
    pub(super) fn leap(&self, by: Duration) {
        let to_ns = self.ns_at(self.instant() + by);
        self.set(&mut self.lock(), to_ns);
    }

    /// Waits until `deadline_ns` nanoseconds since the clock's beginning.
    pub fn sleep_until_ns(&self, deadline_ns: u64) {
        let (wait, wake, mut waits) = self.begin(deadline_ns, false);
        let mut quiet = self.watch();
        while waits.all.contains_key(&wait) && !self.is_over(wait) {
            if waits.first() != Some(wait) {
                wake.wait(&mut waits);
                quiet = self.watch();
            } else if wake.wait_for(&mut waits, QUIET).timed_out() {
                MutexGuard::unlocked(&mut waits, || self.go_on(wait, &mut quiet, || ()));
            }
        }
        self.end(&mut waits, wait);
    }

    /// As [`Clock::wait_while`](super::Clock::wait_while).
    pub(super) fn wait_while<T>(
        &self,
        changed: &Condvar,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        deadline: Instant,
    ) -> bool {
        let (wait, _, waits) = self.begin(self.ns_at(deadline), true);
        drop(waits);
        let mut quiet = self.watch();
        if self.is_over(wait) {
            // A caller that repeats this must not keep the lock from the threads for which it waits.
            MutexGuard::unlocked_fair(guard, || ());
        }
        let is_late = loop {
            // The notification may have come before the lock was taken again.
            if !condition(guard) {
                break false;
            }
            if self.is_over(wait) {
                break true;
            }
            let nap = QUIET * (1 + self.before(wait));
            if changed.wait_for(guard, nap).timed_out()
                && self.before(wait) == 0
                && condition(guard)
            {
                self.go_on(wait, &mut quiet, || MutexGuard::unlocked_fair(guard, || ()));
            }
        };
        self.end(&mut self.lock(), wait);
        is_late
    }

    /// For threads that use the clock. Counted first, because a thread that waits for this lock seems to be asleep.
    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.uses.fetch_add(1, Ordering::AcqRel);
        self.waits.lock()
    }

    fn begin(
        &self,
        deadline_ns: u64,
        notified: bool,
    ) -> (Wait, Arc<Condvar>, MutexGuard<'_, Waits>) {
        let mut waits = self.lock();
        waits.next += 1;
        let wait = (deadline_ns, waits.next);
        let working = (WORKS.get() > 0).then(|| ME.with(|me| *me));
        if let Some(me) = working {
            waits.working.remove(&me);
        }
        let wake = Arc::new(Condvar::new());
        waits.all.insert(wait, Waiter { working, notified, wake: Arc::clone(&wake) });
        (wait, wake, waits)
    }

    /// The calling thread continues.
    fn end(&self, waits: &mut Waits, wait: Wait) {
        if let Some(waiter) = waits.all.remove(&wait) {
            waits.working.extend(waiter.working);
            waits.wake_first();
        } else {
            waits.woken.remove(&ME.with(|me| *me));
        }
        self.uses.fetch_add(1, Ordering::AcqRel);
    }

    /// As [`Waits::before`]; 1 if the waits are locked.
    fn before(&self, wait: Wait) -> u32 {
        // Does not wait for the lock: the caller holds a lock that a notified thread may want, which would then seem
        // asleep.
        self.waits.try_lock().map_or(1, |waits| waits.before(wait))
    }

    fn is_over(&self, (deadline_ns, _): Wait) -> bool {
        self.elapsed_ns.load(Ordering::Acquire) >= deadline_ns
    }

    /// Sets the clock to the end of `wait` if that is the earliest and no thread uses the clock. The threads are
    /// examined twice, each time one after another: one of them may wake another that was already examined, or sleep
    /// because the caller holds the lock that it wants. In between, the locks are released, the caller's by `let_go`.
    /// If no thread woke meanwhile, all of them are asleep.
    fn go_on(&self, wait: Wait, quiet: &mut Quiet, let_go: impl FnOnce()) {
        let now = self.watch();
        if quiet.uses != now.uses {
            *quiet = now;
            return;
        }
        let long = now.since.duration_since(quiet.since);
        let is_stuck = long >= STUCK;
        let waits = self.waits.lock();
        if waits.first() != Some(wait) || long < QUIET {
            return;
        }
        let asleep = waits.all_sleep();
        MutexGuard::unlock_fair(waits);
        if asleep.is_none() && !is_stuck {
            return;
        }
        let_go();
        let mut waits = self.waits.lock();
        // The count is compared last: a notified thread is seen awake until it has counted that it continues.
        let is_quiet = (is_stuck || waits.all_sleep() == asleep)
            && self.uses.load(Ordering::Acquire) == now.uses;
        if waits.first() == Some(wait) && is_quiet {
            self.set(&mut waits, wait.0);
        }
    }

    fn set(&self, waits: &mut Waits, to_ns: u64) {
        self.elapsed_ns.fetch_max(to_ns, Ordering::AcqRel);
        debug_assert!(waits.woken.is_subset(&waits.working), "who was woken works");
        while let Some(entry) = waits.all.first_entry()
            && entry.key().0 <= to_ns
        {
            let waiter = entry.remove();
            waits.working.extend(waiter.working);
            waits.woken.extend(waiter.working);
            waiter.wake.notify_one();
        }
        waits.wake_first();
    }

    fn watch(&self) -> Quiet {
        Quiet { since: Instant::now(), uses: self.uses.load(Ordering::Acquire) }
    }

    fn ns_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun.0).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Since when, in real time, a waiting thread has seen no use of the clock, and the count of uses at that time.
#[derive(Debug)]
struct Quiet {
    since: Instant,
    uses: u64,
}

#[cfg(test)]
mod tests;
