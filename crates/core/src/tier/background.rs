//! Threads that demote files before the SSD is full and remove what migrations leave.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::Core;
use super::signal::Signal;
use crate::error::Result;

/// A background thread: its name, and what it does until it is time to stop.
type Work = (&'static str, fn(&Core));

const WORK: [Work; 3] = [("tier-reaper", reap), ("tier-mover", demote), ("tier-archiver", archive)];

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

fn reap(core: &Core) {
    let mut failed = false;
    while core.signal.wait_to_reap() {
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
    while core.signal.wait_to_demote(in_vain) {
        in_vain = core.keep_below_marks();
    }
}

fn archive(core: &Core) {
    while core.signal.wait_a_tick() {
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
