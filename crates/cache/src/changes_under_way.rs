//! Counts changes of the origin's files in progress, and decides whether the lease is to be renewed for them (I9).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use halocline_meta::lease::Lease;
use halocline_os::clock::Clock;

/// A quarter of the lease's duration.
const RENEW_EVERY: Duration = Duration::from_millis(500);

/// Counts changes of the origin's files in progress.
#[derive(Debug, Default)]
pub(crate) struct ChangesUnderWay {
    count: AtomicU64,
    /// Whether the kernel is to note the end of this process, and the renewal thread is awake.
    noted: AtomicBool,
    stopped: Mutex<bool>,
    begun: Condvar,
    stopping: Condvar,
}

impl ChangesUnderWay {
    /// A change begins.
    pub(crate) fn begin(&self, lease: &Lease) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // Rarely taken: `noted` stays set for a while.
        if !self.noted.load(Ordering::SeqCst) {
            let _stopped = self.stopped.lock();
            if !self.noted.load(Ordering::SeqCst) {
                lease.note_exit();
                // Only now: other changes that begin rely on it without the lock.
                self.noted.store(true, Ordering::SeqCst);
                self.begun.notify_one();
            }
        }
    }

    /// A change ends.
    pub(crate) fn end(&self) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "I9: a change ends that never began");
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Waits until it is time to check whether changes are still in progress; `false` to stop.
    pub(crate) fn wait(&self, clock: &Clock) -> bool {
        let mut stopped = self.stopped.lock();
        while !*stopped && !self.noted.load(Ordering::SeqCst) {
            self.begun.wait(&mut stopped);
        }
        let deadline = clock.instant() + RENEW_EVERY;
        clock.wait_while(&self.stopping, &mut stopped, |stopped| !*stopped, deadline);
        !*stopped
    }

    /// Renews the lease if changes are still in progress; otherwise tells the kernel that there are none.
    pub(crate) fn renew(&self, lease: &Lease) {
        if !self.is_empty() {
            return lease.prolong();
        }
        let _stopped = self.stopped.lock();
        // A change that begins now either sees this, or is seen by the check below.
        self.noted.store(false, Ordering::SeqCst);
        if self.is_empty() {
            lease.forget_exit();
        } else {
            self.noted.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.begun.notify_one();
        self.stopping.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "I9: a change ends that never began")]
    fn i9_a_change_that_never_began_does_not_end() {
        ChangesUnderWay::default().end();
    }
}
