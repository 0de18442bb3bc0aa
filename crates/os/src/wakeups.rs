//! What background threads wait by: wakeups, ticks, and the end.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;

/// Wakes the background threads of one engine; `D` is what they are told is due.
#[derive(Debug)]
pub struct Wakeups<D> {
    clock: Clock,
    tick: Duration,
    state: Mutex<State<D>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State<D> {
    stops: bool,
    due: D,
}

impl<D: Default> Wakeups<D> {
    /// Nothing is due yet. Threads look for what is to be done each `tick` without a wakeup, too.
    pub fn new(clock: &Clock, tick: Duration) -> Self {
        Self { clock: clock.clone(), tick, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Says what is due, and wakes who waits for it.
    pub fn wake(&self, tell: impl FnOnce(&mut D)) {
        tell(&mut self.state.lock().due);
        self.changed.notify_all();
    }

    /// Ends the threads once they have finished what they are doing.
    pub fn stop(&self) {
        self.state.lock().stops = true;
        self.changed.notify_all();
    }

    /// Whether the threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stops
    }

    /// Waits until `is_due` returns `true`, or for a tick, however often it is woken; `false` when it is time to stop.
    pub fn wait(&self, is_due: impl Fn(&mut D) -> bool) -> bool {
        let mut state = self.state.lock();
        let tick = self.clock.instant() + self.tick;
        let waits = |state: &mut State<D>| !state.stops && !is_due(&mut state.due);
        self.clock.wait_while(&self.changed, &mut state, waits, tick);
        !state.stops
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
        let tick = Duration::from_secs(1);
        let wakeups = Wakeups::<bool>::new(&Clock::MACHINE, tick);
        let enough = AtomicBool::new(false);
        thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let begun = Instant::now();
                while !enough.load(Ordering::Relaxed) && begun.elapsed() < 100 * tick {
                    wakeups.wake(|due| *due = true);
                    thread::sleep(tick / 100);
                }
                enough.load(Ordering::Relaxed)
            });
            assert!(wakeups.wait(|_| false));
            enough.store(true, Ordering::Relaxed);
            assert!(calls.join().unwrap(), "the tick came only after the last call");
        });
    }

    #[test]
    fn what_is_due_is_not_waited_for_and_who_is_stopped_ends() {
        let wakeups = Wakeups::<bool>::new(&Clock::MACHINE, Duration::from_millis(1));
        wakeups.wake(|due| *due = true);
        assert!(wakeups.wait(std::mem::take));
        assert!(wakeups.wait(std::mem::take), "a tick");
        assert!(!wakeups.is_stopping());
        wakeups.stop();
        assert!(wakeups.is_stopping() && !wakeups.wait(|_| true));
    }
}
