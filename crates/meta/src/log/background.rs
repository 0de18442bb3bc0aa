//! The background thread of a log: makes the next file before the current one is full, and writes a snapshot once the
//! files have grown.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use super::Shared;
use halocline_os::catch_panic::caught;
use halocline_os::clock::{Work, part_of_work};

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Background {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Rung when there is something to do.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Quiet,
    Rung,
    Over,
}

impl Bell {
    pub(super) fn ring(&self) {
        let mut state = self.state.lock();
        if *state == State::Quiet {
            *state = State::Rung;
            self.rung.notify_one();
        }
    }

    /// Waits for the bell; `false` when the thread is to end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while *state == State::Quiet {
            self.rung.wait(&mut state);
        }
        if *state == State::Rung {
            *state = State::Quiet;
        }
        *state != State::Over
    }

    fn end(&self) {
        *self.state.lock() = State::Over;
        self.rung.notify_one();
    }
}

impl Background {
    /// Does `work` whenever the bell rings. A panic may have left the tables of the files half changed: the log takes
    /// nothing from then on, as after a failed write.
    pub(super) fn start(shared: &Arc<Shared>, work: fn(&Shared)) -> Self {
        let (shared, working) = (Arc::clone(shared), part_of_work());
        let thread = thread::Builder::new()
            .name("records".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    // With a simulated clock: the time that the disk takes does not count there.
                    let _working = working.map(Work::begin);
                    // A thread that waits for room makes it itself once there is no background thread to wait for.
                    let _alone = OnEnd(&shared);
                    while shared.bell.wait() {
                        if let Err(panicked) = caught(|| work(&shared)) {
                            shared.fail(&panicked);
                        }
                        shared.wake_waiters();
                    }
                }
            })
            .expect("the system can start one more thread");
        Self { shared, thread: Some(thread) }
    }
}

struct OnEnd<'a>(&'a Shared);

impl Drop for OnEnd<'_> {
    fn drop(&mut self) {
        self.0.background_ended();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.bell.end();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported where it happened.
            let _ = thread.join();
        }
    }
}
