//! Prolongs the lease while changes of the origin's files are under way, however long they take, and has the kernel
//! note the end of a process that is killed meanwhile (I9).
//!
//! Who makes a change extends the lease before it and after it. A write to a slow disk, or a thread that a busy
//! machine lets wait, would outlive that: after a kill in such a moment, our own bytes would be taken for those of
//! others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::own_changes::OwnChanges;
use halocline_meta::lease::Lease;
use halocline_os::clock::Clock;

/// A quarter of what the lease lasts.
const RENEW_EVERY: Duration = Duration::from_millis(500);

/// How many changes of the origin's files are under way.
#[derive(Debug, Default)]
pub(crate) struct ChangesUnderWay {
    count: AtomicU64,
    /// Whether the kernel is to note the end of this process, and the renewal is awake.
    noted: AtomicBool,
    stopped: Mutex<bool>,
    begun: Condvar,
    stopping: Condvar,
}

impl ChangesUnderWay {
    /// A change begins.
    pub(crate) fn begin(&self, lease: &Lease) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // Seldom: it stays noted for a while.
        if !self.noted.load(Ordering::SeqCst) {
            let _stopped = self.stopped.lock();
            if !self.noted.swap(true, Ordering::SeqCst) {
                lease.note_exit();
                self.begun.notify_one();
            }
        }
    }

    /// It ends.
    pub(crate) fn end(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Waits until it is time to look whether changes are still under way; `false` to stop.
    fn wait(&self, clock: &Clock) -> bool {
        let mut stopped = self.stopped.lock();
        while !*stopped && !self.noted.load(Ordering::SeqCst) {
            self.begun.wait(&mut stopped);
        }
        let deadline = clock.instant() + RENEW_EVERY;
        clock.wait_while(&self.stopping, &mut stopped, |stopped| !*stopped, deadline);
        !*stopped
    }

    /// Renews the lease if changes are still under way; else the kernel is told that none is.
    fn renew(&self, lease: &Lease) {
        if !self.is_empty() {
            return lease.prolong();
        }
        let _stopped = self.stopped.lock();
        // A change that begins now sees that, or is seen here.
        self.noted.store(false, Ordering::SeqCst);
        if self.is_empty() {
            lease.forget_exit();
        } else {
            self.noted.store(true, Ordering::SeqCst);
        }
    }

    fn stop(&self) {
        *self.stopped.lock() = true;
        self.begun.notify_one();
        self.stopping.notify_one();
    }
}

/// The thread that renews the lease.
#[derive(Debug)]
pub(crate) struct LeaseRenewal {
    own: Arc<OwnChanges>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LeaseRenewal {
    /// Starts it.
    pub(crate) fn start(own: &Arc<OwnChanges>, clock: &Clock) -> Self {
        let (own, clock) = (Arc::clone(own), clock.clone());
        let renewed = Arc::clone(&own);
        let renew = move || {
            while renewed.under_way.wait(&clock) {
                renewed.under_way.renew(&renewed.lease);
            }
        };
        let thread = thread::Builder::new().name("lease".to_owned()).spawn(renew);
        Self {
            own,
            thread: Mutex::new(Some(thread.expect("the system can start one more thread"))),
        }
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        self.own.under_way.stop();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        self.stop();
    }
}
