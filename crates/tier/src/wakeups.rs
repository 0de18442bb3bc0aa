//! What the background threads are told, and how they wait for it.

use std::time::Duration;

use halocline_os::clock::Clock;
use halocline_os::wakeups;

/// How often the SSD is checked without a wakeup.
const TICK: Duration = Duration::from_secs(1);

/// What the background threads are told.
#[derive(Debug)]
pub(super) struct Wakeups(wakeups::Wakeups<Due>);

#[derive(Debug, Default)]
struct Due {
    reap: bool,
    demote: bool,
}

impl Wakeups {
    /// Starts with no thread woken.
    pub(super) fn new(clock: &Clock) -> Self {
        Self(wakeups::Wakeups::new(clock, TICK))
    }

    /// Reports that there is data of removed files.
    pub(super) fn wake_reaper(&self) {
        self.0.wake(|due| due.reap = true);
    }

    /// Reports that the SSD may be fuller than it should be.
    pub(super) fn wake_demoter(&self) {
        self.0.wake(|due| due.demote = true);
    }

    /// Waits until data of removed files is due; `false` when it is time to stop.
    pub(super) fn wait_to_reap(&self) -> bool {
        self.0.wait(|due| std::mem::take(&mut due.reap))
    }

    /// Waits until the SSD must be checked; after a fruitless check (`in_vain`), always for a whole tick. `false` when
    /// it is time to stop.
    pub(super) fn wait_to_demote(&self, in_vain: bool) -> bool {
        self.0.wait(|due| std::mem::take(&mut due.demote) && !in_vain)
    }

    /// Waits for a tick; `false` when it is time to stop.
    pub(super) fn wait_a_tick(&self) -> bool {
        self.0.wait(|_| false)
    }

    /// Ends the threads once they have finished what they are doing.
    pub(super) fn stop(&self) {
        self.0.stop();
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
        self.0.is_stopping()
    }
}
