//! Those who ask for the end of a mount by its control socket.
//!
//! What must hold: each of them is answered, also who asks while the mount ends already; the control socket waits for
//! whoever is not, and the process for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use halocline_api::control::MoveReport;
use halocline_fuse::MountedSession;
use halocline_os::error::{Error, Result};

/// Somebody asks for the end of the mount.
pub(super) struct UnmountRequest {
    pub(super) force: bool,
    pub(super) keep_dirty: bool,
    /// The origin does not answer: nothing is waited for that may wait for it.
    pub(super) hangs: bool,
    pub(super) done: Sender<Result<MoveReport>>,
}

/// All who asked and are not answered yet.
pub(super) struct UnmountRequests {
    asked: Receiver<UnmountRequest>,
    /// Those who wait for the end.
    waiting: Vec<Sender<Result<MoveReport>>>,
}

impl UnmountRequests {
    pub(super) fn new() -> (Sender<UnmountRequest>, Self) {
        let (sender, asked) = channel();
        (sender, Self { asked, waiting: Vec::new() })
    }

    /// The next who asks, within `wait`.
    pub(super) fn next(&self, wait: Duration) -> Result<UnmountRequest, RecvTimeoutError> {
        self.asked.recv_timeout(wait)
    }

    /// `done` waits for the end, which is near.
    pub(super) fn add(&mut self, done: Sender<Result<MoveReport>>) {
        self.waiting.push(done);
    }

    /// Answers who asks while programs keep a detached mount: with force the connection is taken from them, else they
    /// are waited for. Whether somebody wants dirty data to stay on the cache.
    pub(super) fn meet(&mut self, session: &MountedSession) -> bool {
        let mut keep_dirty = false;
        while let Ok(ending) = self.asked.try_recv() {
            let taken = match ending.force {
                true => session.abort(),
                false if session.is_used() => Err(detached(&session.mount_handle().programs())),
                // It ends soon.
                false => Ok(()),
            };
            match taken {
                Ok(()) => {
                    keep_dirty |= ending.keep_dirty;
                    self.add(ending.done);
                }
                Err(refused) => drop(ending.done.send(Err(refused))),
            }
        }
        keep_dirty
    }

    /// Tells all how the mount ended. Whoever asks from now on finds nobody.
    pub(super) fn tell(self, ended: &Result<MoveReport>) {
        let Self { asked, waiting } = self;
        for done in waiting.into_iter().chain(asked.try_iter().map(|ending| ending.done)) {
            let copy = match ended {
                Ok(report) => Ok(report.clone()),
                Err(error) => {
                    Err(Error::Refused { message: error.to_string(), errno: error.errno() })
                }
            };
            // One who went away needs no answer.
            let _gone = done.send(copy);
        }
    }
}

/// Why a detached mount does not end.
pub(super) fn detached(programs: &[String]) -> Error {
    Error::invalid(
        format!("the mount is detached and {}", used_by(programs)),
        "end them, or take it from them with --force: it ends when they have closed their files",
    )
}

/// Who uses a detached mount, as part of a sentence.
pub(super) fn used_by(programs: &[String]) -> String {
    if programs.is_empty() {
        // A program may work there, or have something of it mapped or mounted, without a file open.
        return "it flushes, or something still works there, or its origin does not answer"
            .to_owned();
    }
    format!("still used by {}", programs.join(", "))
}
