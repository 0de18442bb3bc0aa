//! The end of a mount whose origin does not answer: `umount --force` waits for nothing that may wait for the origin.
//!
//! What must hold: the cache is left as a kill leaves it, so that nothing acknowledged is lost (I4); the mount point is
//! free, and whoever asked is told what stays on the cache, before the process ends.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use halocline_core::control::{MoveReport, Skipped};
use halocline_core::error::{Error, Result};

use super::{Host, Hosted};

/// How long an origin may take to tell of its space: far longer than a busy one needs.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the mount may take to be detached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the thread that owns the mount may take to end it.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the origin does not answer. The question is asked by a thread of its own, which is left behind then.
pub(super) fn hangs<E: Hosted>(engine: &Arc<E>) -> bool {
    let (told, answer) = channel();
    let engine = Arc::clone(engine);
    let ask = move || {
        // An error is an answer.
        let _answered = engine.statfs(&engine.root());
        let _gone = told.send(());
    };
    let asked = thread::Builder::new().name("origin".into()).spawn(ask);
    asked.is_ok() && answer.recv_timeout(ORIGIN_TIMEOUT).is_err()
}

/// What is told where the mount's process cannot even end.
pub(super) fn stuck() -> Error {
    let pid = std::process::id();
    Error::invalid(
        "the origin does not answer, and the mount process waits for it",
        format!("kill -9 {pid} ends it: dirty data stays on the cache for the next mount"),
    )
}

impl<E: Hosted> Host<E> {
    /// Detaches the mount, tells who asked, and leaves everything else to the end of the process, which the caller
    /// brings about: threads that wait for the origin end with it.
    pub(super) fn leave(self, done: &Sender<Result<MoveReport>>) -> MoveReport {
        self.members.close();
        let Self { engine, session, server, untold, recording, _claim: claim, .. } = self;
        let (detached, answer) = channel();
        // Requests of programs may wait for the origin, and the session's end for them.
        let detach = thread::Builder::new().name("detach".into()).spawn(move || {
            let _gone = detached.send(session.detach());
            mem::forget(session);
        });
        if detach.is_err() || !matches!(answer.recv_timeout(DETACH_TIMEOUT), Ok(Ok(()))) {
            tracing::warn!("the mount could not be detached; it ends with this process");
        }
        if let Some(recording) = recording {
            recording.end();
        }
        let reason = "the origin does not answer: nothing was flushed to it".to_owned();
        let left_bytes = engine.report().dirty_bytes_left;
        let skipped = vec![Skipped { path: PathBuf::new(), reason }];
        let conflicts = mem::take(&mut *untold.lock());
        let report = MoveReport { left_bytes, skipped, conflicts, ..MoveReport::default() };
        let _gone = done.send(Ok(report.clone()));
        server.leave();
        // Their ends would wait for threads that wait for the origin.
        mem::forget((engine, claim));
        report
    }
}
