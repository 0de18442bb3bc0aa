//! Renews the lease while changes of the origin's files are in progress, however long they take, and makes the kernel
//! note the end of a process that is killed meanwhile (I9).
//!
//! Each change extends the lease before it begins and after it ends. A write to a slow disk, or a thread that waits on
//! a busy machine, may take longer than the lease: after a kill at such a moment, our own bytes would be taken for
//! those of others.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::own_changes::OwnChanges;
use halocline_os::clock::Clock;

/// The thread that renews the lease.
#[derive(Debug)]
pub(crate) struct LeaseRenewal {
    own: Arc<OwnChanges>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LeaseRenewal {
    /// Starts the thread.
    pub(crate) fn start(own: &Arc<OwnChanges>, clock: &Clock) -> Self {
        let (own, clock) = (Arc::clone(own), clock.clone());
        let renewed = Arc::clone(&own);
        let renew = move || {
            while renewed.under_way.wait(&clock) {
                // A change that begins may wait for a lock held here, so no simulated time may pass.
                let _working = clock.work().begin();
                renewed.under_way.renew(&renewed.lease);
            }
        };
        let thread = thread::Builder::new().name("lease".to_owned()).spawn(renew);
        Self {
            own,
            thread: Mutex::new(Some(thread.expect("the system can start one more thread"))),
        }
    }

    /// Stops the thread.
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
