//! Signals between the rebuilder's thread and the others.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Doing;
use halocline_os::clock::Clock;

/// How often the rebuilder checks for work when it is not woken.
const TICK: Duration = Duration::from_millis(100);

/// Longest rest after rounds that panicked.
const REST_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Signal {
    clock: Clock,
    stop: AtomicBool,
    doing: AtomicU8,
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Signal {
    /// A signal whose waits use `clock`.
    pub(super) fn new(clock: Clock) -> Self {
        let (stop, doing) = (AtomicBool::new(false), AtomicU8::new(0));
        Self { clock, stop, doing, woken: Mutex::new(false), wake: Condvar::new() }
    }

    /// Ends the thread's next wait, unless it was already woken.
    pub(super) fn wake(&self) {
        let mut woken = self.woken.lock();
        if !*woken {
            *woken = true;
            self.wake.notify_one();
        }
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        *self.woken.lock() = true;
        self.wake.notify_all();
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, doing: Doing) {
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    pub(super) fn doing(&self) -> Doing {
        match self.doing.load(Ordering::Relaxed) {
            1 => Doing::Waiting,
            2 => Doing::Flushing,
            3 => Doing::Fetching,
            _ => Doing::Idle,
        }
    }

    /// Waits until the thread is woken, for a tick at most.
    pub(super) fn wait(&self) {
        let mut woken = self.woken.lock();
        let until = self.clock.instant() + TICK;
        self.clock.wait_while(&self.wake, &mut woken, |woken| !*woken, until);
        *woken = false;
    }

    /// Rests even if woken: longer after each of `panics` rounds in a row. A round that panicked is likely to panic
    /// again, and each panic is logged.
    pub(super) fn rest(&self, panics: u32) {
        let rest = TICK.saturating_mul(1 << panics.min(16)).min(REST_MAX);
        let mut woken = self.woken.lock();
        let until = self.clock.instant() + rest;
        self.clock.wait_while(&self.wake, &mut woken, |_| !self.stopping(), until);
        *woken = false;
    }
}
