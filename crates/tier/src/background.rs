//! Threads that demote files before the SSD is full, and that remove what migrations leave behind.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::components::Components;
use super::wakeups::Wakeups;
use halocline_os::catch_panic::caught;
use halocline_os::error::Result;
use halocline_os::priority::yield_to_programs;

/// Work that is done for a tier besides the requests of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chore {
    /// Frees what moves left behind, and removes the data of files whose names are gone.
    Reap,
    /// Demotes files if the SSD is fuller than its high watermark.
    Demote,
    /// Records clean copies again if their permissions have changed.
    RecordCopies,
    /// Moves clean copies of renamed files to the paths of their names, and makes copies that are due.
    Archive,
}

/// A background thread: its name; its wait, which is told whether the last round was fruitless and returns `false` when
/// it is time to stop; and the chores that it does after each wait.
struct Work {
    name: &'static str,
    wait: fn(&Wakeups, bool) -> bool,
    chores: &'static [Chore],
}

const WORK: [Work; 3] = [
    Work { name: "tier-reaper", wait: |wakeups, _| wakeups.wait_to_reap(), chores: &[Chore::Reap] },
    Work {
        name: "tier-demoter",
        // Each write to a full SSD wakes this thread. If everything there is pinned or in use, it is pointless to
        // examine all files again, or to copy files that are changing, before some time has passed.
        wait: |wakeups, in_vain| wakeups.wait_to_demote(in_vain),
        chores: &[Chore::Demote],
    },
    Work {
        name: "tier-archiver",
        wait: |wakeups, _| wakeups.wait_a_tick(),
        chores: &[Chore::RecordCopies, Chore::Archive],
    },
];

/// The running threads.
#[derive(Debug)]
pub(super) struct Background {
    wakeups: Arc<Wakeups>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts the threads of `components`.
    pub(super) fn start(components: &Arc<Components>) -> Result<Self> {
        let wakeups = components.base.wakeups.clone();
        let mut threads = Vec::new();
        for work in WORK {
            let components = components.clone();
            let working = components.base.clock.work();
            let thread = thread::Builder::new().name(work.name.into()).spawn(move || {
                let _working = working.begin();
                yield_to_programs();
                work.run(&components);
            })?;
            threads.push(thread);
        }
        Ok(Self { wakeups, threads: Mutex::new(threads) })
    }

    /// Without threads: the caller does the chores of `components`.
    pub(super) fn by_others(components: &Components) -> Self {
        Self { wakeups: components.base.wakeups.clone(), threads: Mutex::default() }
    }

    /// Ends the threads once they have finished what they are doing.
    pub(super) fn stop(&self) {
        self.wakeups.stop();
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
    /// Runs round after round. A round that panics leaves its files at the step at which it panicked, as a kill would:
    /// they are where their names say, and what is left over is finished at the next mount.
    fn run(&self, components: &Components) {
        let (mut in_vain, mut panics) = (false, 0);
        while (self.wait)(&components.base.wakeups, in_vain) {
            match caught(|| self.round(components, in_vain)) {
                Ok(now) => (in_vain, panics) = (now, 0),
                Err(panicked) => {
                    components.base.notes.add_panic(self.name, &panicked);
                    panics += 1;
                    components.base.wakeups.rest(panics);
                }
            }
        }
    }

    /// Runs one round; returns whether it was fruitless. Errors are reported once for several such rounds in a row
    /// (`in_vain`: the last one was fruitless).
    fn round(&self, components: &Components, in_vain: bool) -> bool {
        let mut all_done = true;
        for chore in self.chores {
            all_done &= chore.round(components).unwrap_or_else(|error| {
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
    /// Does in this thread what is due; `false` if none of it could be done.
    pub(super) fn round(self, components: &Components) -> Result<bool> {
        let stops = &|| components.base.wakeups.is_stopping();
        match self {
            Self::Reap => components.base.leftovers.finish()?,
            Self::Demote => return Ok(!components.executor.keep_below_watermarks()),
            Self::RecordCopies => components.permissions.record_again(stops),
            Self::Archive => components.archiver.archive_due(stops),
        }
        Ok(true)
    }
}
