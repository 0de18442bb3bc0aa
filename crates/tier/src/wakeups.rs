//! What the background threads are told, and how they wait for it.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use halocline_os::clock::Clock;

/// How often the SSD is checked without a wakeup.
const TICK: Duration = Duration::from_secs(1);

/// What the background threads are told.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    reap: bool,
    demote: bool,
}

impl Wakeups {
    /// Starts with no thread woken.
    pub(super) fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..Self::default() }
    }

    /// Reports that there is data of removed files.
    pub(super) fn wake_reaper(&self) {
        self.set(|state| state.reap = true);
    }

    /// Reports that the SSD may be fuller than it should be.
    pub(super) fn wake_demoter(&self) {
        self.set(|state| state.demote = true);
    }

    /// Waits until data of removed files is due; `false` when it is time to stop.
    pub(super) fn wait_to_reap(&self) -> bool {
        self.wait(|state| std::mem::take(&mut state.reap))
    }

    /// Waits until the SSD must be checked, or for the whole tick if the last check was `in_vain`; `false` when it is
    /// time to stop.
    pub(super) fn wait_to_demote(&self, in_vain: bool) -> bool {
        self.wait(|state| std::mem::take(&mut state.demote) && !in_vain)
    }

    /// Waits for a tick; `false` when it is time to stop.
    pub(super) fn wait_a_tick(&self) -> bool {
        self.wait(|_| false)
    }

    /// Ends the threads once they have finished what they are doing.
    pub(super) fn stop(&self) {
        self.set(|state| state.stop = true);
    }

    fn set(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `due` returns `true`, or for [`TICK`], however often it is woken; `false` when it is time to stop.
    fn wait(&self, due: impl Fn(&mut State) -> bool) -> bool {
        let mut state = self.state.lock();
        let tick = self.clock.instant() + TICK;
        let waits = |state: &mut State| !state.stop && !due(state);
        self.clock.wait_while(&self.changed, &mut state, waits, tick);
        !state.stop
    }

    /// Rests after `panics` consecutive rounds that panicked, however often it is woken: what panics is likely to do so
    /// again, and each time is logged.
    pub(super) fn rest(&self, panics: u32) {
        for _ in 0..(1_u32 << panics.min(6)) {
            if !self.wait_a_tick() {
                return;
            }
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Programs that write wake it all the time; a thread that no longer heeds them still gets its tick.
    #[test]
    fn wakeups_that_are_not_due_do_not_delay_the_tick() {
        let (wakeups, enough) = (Wakeups::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let begun = Instant::now();
                while !enough.load(Ordering::Relaxed) && begun.elapsed() < 100 * TICK {
                    wakeups.set(|state| state.demote = true);
                    thread::sleep(TICK / 100);
                }
                enough.load(Ordering::Relaxed)
            });
            assert!(wakeups.wait(|_| false));
            enough.store(true, Ordering::Relaxed);
            assert!(calls.join().unwrap(), "the tick came only after the last call");
        });
    }
}
