//! Threads that demote files before the SSD is full and remove what migrations leave.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::signal::Signal;
use super::wiring::Core;
use halocline_os::catch_panic::caught;
use halocline_os::error::Result;

/// What is done for a tier beside the requests of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chore {
    /// Frees what moves left, and removes the data of files whose names are gone.
    Reap,
    /// Demotes files where the SSD is fuller than its high watermark.
    Demote,
    /// Marks the clean copies anew whose permissions have changed.
    MarkCopies,
    /// Puts clean copies of renamed files to the paths of their names, and makes those that are due.
    Archive,
}

/// A background thread: its name, what it waits for until it is time to stop, given whether its last
/// round was in vain, and what it does then.
struct Work {
    name: &'static str,
    wait: fn(&Signal, bool) -> bool,
    chores: &'static [Chore],
}

const WORK: [Work; 3] = [
    Work { name: "tier-reaper", wait: |signal, _| signal.wait_to_reap(), chores: &[Chore::Reap] },
    Work {
        name: "tier-mover",
        // Each write to a full SSD calls. Where all that is there is pinned or in use, looking at all
        // of it again, or copying what changes meanwhile, is of no use before some time has passed.
        wait: |signal, in_vain| signal.wait_to_demote(in_vain),
        chores: &[Chore::Demote],
    },
    Work {
        name: "tier-archiver",
        wait: |signal, _| signal.wait_a_tick(),
        chores: &[Chore::MarkCopies, Chore::Archive],
    },
];

/// The running threads.
#[derive(Debug)]
pub(super) struct Background {
    signal: Arc<Signal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts the threads of `core`.
    pub(super) fn start(core: &Arc<Core>) -> Result<Self> {
        let signal = core.base.signal.clone();
        let mut threads = Vec::new();
        for work in WORK {
            let core = core.clone();
            let working = core.base.clock.work();
            let thread = thread::Builder::new().name(work.name.into()).spawn(move || {
                let _working = working.begin();
                yield_to_programs();
                work.run(&core);
            })?;
            threads.push(thread);
        }
        Ok(Self { signal, threads: Mutex::new(threads) })
    }

    /// No threads: somebody else does the chores of `core`.
    pub(super) fn by_others(core: &Core) -> Self {
        Self { signal: core.base.signal.clone(), threads: Mutex::default() }
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
        let (mut in_vain, mut panics) = (false, 0);
        while (self.wait)(&core.base.signal, in_vain) {
            match caught(|| self.round(core, in_vain)) {
                Ok(now) => (in_vain, panics) = (now, 0),
                Err(panicked) => {
                    core.base.defects.defect(self.name, &panicked);
                    panics += 1;
                    core.base.signal.rest(panics);
                }
            }
        }
    }

    /// One round; whether it was in vain, which is told once of several `in_vain` in a row.
    fn round(&self, core: &Core, in_vain: bool) -> bool {
        let mut all_done = true;
        for chore in self.chores {
            all_done &= chore.round(core).unwrap_or_else(|error| {
                if !in_vain {
                    tracing::warn!(%error, "data of removed files stays for now");
                }
                false
            });
        }
        !all_done
    }
}

impl Chore {
    /// Does what is due in this thread; `false` where nothing could be done of it.
    pub(super) fn round(self, core: &Core) -> Result<bool> {
        let stops = &|| core.base.signal.is_stopping();
        match self {
            Self::Reap => core.base.leftovers.finish()?,
            Self::Demote => return Ok(!core.executor.keep_below_marks()),
            Self::MarkCopies => core.permissions.mark_anew(stops),
            Self::Archive => core.archiver.archive_due(stops),
        }
        Ok(true)
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
