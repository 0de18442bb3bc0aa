//! Threads that demote files before the SSD is full and remove what migrations leave.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Core;
use crate::error::Result;

/// How often the SSD is looked at without being told to.
const TICK: Duration = Duration::from_secs(1);

/// A background thread: its name, and what it does until it is time to stop.
type Work = (&'static str, fn(&Core));

const WORK: [Work; 3] = [("tier-reaper", reap), ("tier-mover", demote), ("tier-archiver", archive)];

/// What the background threads are told.
#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    reap: bool,
    demote: bool,
}

/// The running threads.
#[derive(Debug)]
pub(super) struct Background {
    signal: Arc<Signal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts the threads of `core`.
    pub(super) fn start(core: &Arc<Core>) -> Result<Self> {
        let signal = core.signal.clone();
        let mut threads = Vec::new();
        for (name, work) in WORK {
            let core = core.clone();
            let thread = thread::Builder::new().name(name.into()).spawn(move || {
                yield_to_programs();
                work(&core);
            })?;
            threads.push(thread);
        }
        Ok(Self { signal, threads: Mutex::new(threads) })
    }

    /// No threads: tests do their work at times of their own.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { signal: Arc::default(), threads: Mutex::default() }
    }

    /// Ends the threads after what they are doing.
    pub(super) fn stop(&self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Signal {
    fn set(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `due` says so, or for [`TICK`], however often others call; `false` when it is
    /// time to stop.
    fn wait(&self, due: impl Fn(&mut State) -> bool) -> bool {
        let mut state = self.state.lock();
        let tick = Instant::now() + TICK;
        while !state.stop && !due(&mut state) {
            if self.changed.wait_until(&mut state, tick).timed_out() {
                break;
            }
        }
        !state.stop
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }
}

impl Core {
    /// There is data of removed files.
    pub(super) fn wake_reaper(&self) {
        self.signal.set(|state| state.reap = true);
    }

    /// The SSD may be fuller than it should be.
    pub(super) fn wake_mover(&self) {
        self.signal.set(|state| state.demote = true);
    }

    /// Bytes on the SSD at a share of the limit, in percent.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a limit needs no exact bytes"
    )]
    pub(super) fn mark(&self, percent: f64) -> u64 {
        (self.residents.account.limit as f64 * percent / 100.0) as u64
    }

    /// Bytes below the limit that have to stay free, or files are demoted to have them so.
    pub(super) fn kept_free(&self) -> u64 {
        let limit = self.residents.account.limit;
        limit - self.mark(self.options.high).min(limit)
    }

    /// Bytes that should be free below the limit, where fewer are: down to the low mark once the
    /// high one is passed, and as much again of the SSD's own file system where others fill it.
    fn wanted_room(&self) -> Option<u64> {
        let (used, low) = (self.residents.used(), self.mark(self.options.low));
        let limit = self.residents.account.limit;
        if used > self.mark(self.options.high) {
            return Some(limit - low);
        }
        // Moving files within one file system makes no room.
        let ssd = self.sides[0].device;
        if self.sides[1..].iter().any(|side| side.device == ssd) {
            return None;
        }
        let room = self.sides[0].room().ok()?;
        if room >= limit - self.mark(self.options.high) {
            return None;
        }
        let missing = (limit - low).saturating_sub(room).min(used);
        (missing > 0).then(|| self.residents.free() + missing)
    }

    /// Demotes files where the SSD is fuller than it should be. Whether that was in vain.
    pub(super) fn keep_below_marks(&self) -> bool {
        self.count_passed_through();
        self.wanted_room()
            .is_some_and(|bytes| !self.signal.is_stopping() && !self.free_up(bytes, u64::MAX))
    }

    /// Whether the SSD is fuller than the high mark.
    pub(super) fn is_crowded(&self) -> bool {
        self.residents.used() > self.mark(self.options.high)
    }
}

fn reap(core: &Core) {
    let mut failed = false;
    while core.signal.wait(|state| std::mem::take(&mut state.reap)) {
        let done = core.finish_removals();
        if let Err(error) = &done
            && !failed
        {
            tracing::warn!(%error, "data of removed files stays for now");
        }
        failed = done.is_err();
    }
}

fn demote(core: &Core) {
    // Each write to a full SSD calls. Where all that is there is pinned or in use, looking at all
    // of it again, or copying what changes meanwhile, is of no use before some time has passed.
    let mut in_vain = false;
    while core.signal.wait(|state| std::mem::take(&mut state.demote) && !in_vain) {
        in_vain = core.keep_below_marks();
    }
}

fn archive(core: &Core) {
    while core.signal.wait(|_| false) {
        core.archive_due(&|| core.signal.is_stopping());
    }
}

/// The lowest priority for processor and disk.
fn yield_to_programs() {
    /// `IOPRIO_CLASS_BE` at its lowest level: an idle class could wait for ever on a busy disk.
    const BEST_EFFORT_LOWEST: i32 = (2 << 13) | 7;
    // SAFETY: plain numbers about the calling thread; a refusal is of no consequence.
    unsafe {
        libc::syscall(libc::SYS_ioprio_set, 1, 0, BEST_EFFORT_LOWEST);
        libc::setpriority(libc::PRIO_PROCESS, 0, 10);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Programs that write call all the time; who heeds them no more still gets its tick.
    #[test]
    fn calls_that_are_not_heeded_do_not_put_the_tick_off() {
        let (signal, enough) = (Signal::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let begun = Instant::now();
                while !enough.load(Ordering::Relaxed) && begun.elapsed() < 20 * TICK {
                    signal.set(|state| state.demote = true);
                    thread::sleep(TICK / 100);
                }
                enough.load(Ordering::Relaxed)
            });
            assert!(signal.wait(|_| false));
            enough.store(true, Ordering::Relaxed);
            assert!(calls.join().unwrap(), "the tick came only after the last call");
        });
    }
}
