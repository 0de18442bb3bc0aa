//! Threads that demote files before the SSD is full and remove what migrations leave.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::signal::Signal;
use super::wiring::Core;
use halocline_os::error::Result;
use halocline_os::unpanicked::caught;

/// A background thread: its name, what it waits for until it is time to stop, and what it does then.
pub(super) struct Work {
    pub(super) name: &'static str,
    pub(super) wait: fn(&Signal, Done) -> bool,
    pub(super) round: fn(&Core, Done) -> Done,
}

/// What came of the last round, for the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Done {
    #[default]
    Worked,
    /// There was nothing that could be done.
    InVain,
}

pub(super) const WORK: [Work; 3] = [
    Work { name: "tier-reaper", wait: |signal, _| signal.wait_to_reap(), round: reap },
    Work {
        name: "tier-mover",
        // Each write to a full SSD calls. Where all that is there is pinned or in use, looking at all
        // of it again, or copying what changes meanwhile, is of no use before some time has passed.
        wait: |signal, last| signal.wait_to_demote(last == Done::InVain),
        round: demote,
    },
    Work { name: "tier-archiver", wait: |signal, _| signal.wait_a_tick(), round: archive },
];

/// The running threads.
#[derive(Debug)]
pub(super) struct Background {
    signal: Arc<Signal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts the threads of `core`.
    pub(super) fn start(core: &Arc<Core>, all: impl IntoIterator<Item = Work>) -> Result<Self> {
        let signal = core.signal.clone();
        let mut threads = Vec::new();
        for work in all {
            let core = core.clone();
            let working = core.clock.work();
            let thread = thread::Builder::new().name(work.name.into()).spawn(move || {
                let _working = working.begin();
                yield_to_programs();
                work.run(&core);
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
        self.signal.stop();
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

impl Work {
    /// Round after round. One that panics moved its files to the step at which it did, as a kill does: they are
    /// where their names say, and what is left over is finished at the next mount.
    fn run(&self, core: &Core) {
        let mut last = Done::default();
        let mut panics = 0;
        while (self.wait)(&core.signal, last) {
            match caught(|| (self.round)(core, last)) {
                Ok(done) => (last, panics) = (done, 0),
                Err(panicked) => {
                    core.defects.defect(self.name, &panicked);
                    panics += 1;
                    core.signal.rest(panics);
                }
            }
        }
    }
}

fn reap(core: &Core, last: Done) -> Done {
    let Err(error) = core.leftovers.finish() else { return Done::Worked };
    if last == Done::Worked {
        tracing::warn!(%error, "data of removed files stays for now");
    }
    Done::InVain
}

fn demote(core: &Core, _last: Done) -> Done {
    if core.executor.keep_below_marks() { Done::InVain } else { Done::Worked }
}

fn archive(core: &Core, _last: Done) -> Done {
    core.archiver.archive_due(&|| core.signal.is_stopping());
    Done::Worked
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
