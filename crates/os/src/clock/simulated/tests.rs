use std::thread;

use super::*;
use crate::clock::{Clock, Team};

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

/// Regression: a wait that was already over kept the lock, and the thread that was to change something never got
/// it.
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
            clock.wait_while(&change, &mut guard, |told| !*told, over);
        }
    });
}

/// Regression: the parts of a request run on other threads, and the thread that waited for them held time up.
#[test]
fn one_that_works_and_sleeps_does_not_hold_the_time_up() {
    let clock = Clock::simulated();
    let (begun, real) = (clock.instant(), Instant::now());
    let working = clock.work().begin();
    for _ in 0..20 {
        thread::scope(|scope| {
            scope.spawn(|| clock.sleep(HOUR));
        });
    }
    drop(working);
    assert_eq!(clock.elapsed(begun), 20 * HOUR);
    assert!(real.elapsed() < 2 * STUCK, "as if nobody worked");
}

/// Regression: each thread woke so often to check the clock that they were never all asleep: each step took
/// [`STUCK`].
#[test]
fn many_that_wait_to_be_notified_do_not_hold_the_time_up() {
    const WAITERS: usize = 24;
    const STEPS: u32 = 20;
    let clock = Clock::simulated();
    let (begun, real) = (clock.instant(), Instant::now());
    let (told, change) = (Mutex::new(false), Condvar::new());
    let (team, works) = Team::new(&clock, WAITERS + 1);
    let until = begun + HOUR * 1_000_000;
    thread::scope(|scope| {
        for (number, work) in works.into_iter().enumerate() {
            let (clock, told, change, team) = (&clock, &told, &change, &team);
            scope.spawn(move || {
                let working = work.begin();
                if number == 0 {
                    (0..STEPS).for_each(|_| clock.sleep(HOUR));
                    *told.lock() = true;
                    change.notify_all();
                } else {
                    assert!(!clock.wait_while(change, &mut told.lock(), |told| !*told, until));
                }
                team.leave(working);
            });
        }
    });
    assert_eq!(clock.elapsed(begun), STEPS * HOUR);
    assert!(real.elapsed() < 2 * STUCK, "{:?} for {STEPS} steps", real.elapsed());
}

#[test]
fn time_stands_still_while_one_that_works_runs() {
    let clock = Clock::simulated();
    let begun = clock.instant();
    let (own, other) = (clock.work(), clock.work());
    thread::scope(|scope| {
        scope.spawn(|| {
            let _working = other.begin();
            clock.sleep(HOUR);
        });
        let _working = own.begin();
        let until = Instant::now() + 50 * QUIET;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        assert_eq!(clock.elapsed(begun), Duration::ZERO);
    });
    assert_eq!(clock.elapsed(begun), HOUR);
}

#[test]
fn who_is_notified_waits_no_longer() {
    let clock = Clock::simulated();
    let (told, change) = (Mutex::new(false), Condvar::new());
    let begun = clock.instant();
    // Registered: or the time would run to the deadline while the thread waits for a processor.
    let work = clock.work();
    thread::scope(|scope| {
        let mut guard = told.lock();
        scope.spawn(|| {
            let _working = work.begin();
            *told.lock() = true;
            change.notify_all();
        });
        let until = begun + HOUR * 1_000_000;
        assert!(!clock.wait_while(&change, &mut guard, |told| !*told, until));
    });
    let mut guard = told.lock();
    assert!(clock.wait_while(&change, &mut guard, |_| true, clock.instant() + HOUR));
}

/// Regression: a notified thread seemed to sleep until it ran, and the time advanced to the deadline of another.
#[test]
fn no_time_passes_between_a_notification_and_what_it_leads_to() {
    const ROUNDS: u32 = 300;
    let clock = Clock::simulated();
    let begun = clock.instant();
    let (turn, changed) = (Mutex::new(0), Condvar::new());
    let (team, works) = Team::new(&clock, 3);
    let until = begun + HOUR * 1_000_000;
    thread::scope(|scope| {
        for (own, work) in (0..).zip(works) {
            let (clock, turn, changed, team) = (&clock, &turn, &changed, &team);
            scope.spawn(move || {
                let working = work.begin();
                for _ in 0..ROUNDS {
                    let mut guard = turn.lock();
                    let is_other = |turn: &mut u32| *turn != own;
                    assert!(!clock.wait_while(changed, &mut guard, is_other, until));
                    drop(guard);
                    clock.sleep(HOUR);
                    *turn.lock() = (own + 1) % 3;
                    changed.notify_all();
                }
                team.leave(working);
            });
        }
    });
    assert_eq!(clock.elapsed(begun), 3 * ROUNDS * HOUR);
}
