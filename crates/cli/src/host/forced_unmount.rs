//! The end of a mount if its origin, or one of its tiers, does not respond: `umount --force` waits for nothing that may
//! depend on it, even if it stops responding in the middle of the flush; neither does `umount --keep-dirty`.
//!
//! What must hold: the cache is left as after a kill, so that nothing acknowledged is lost (I4); the mount point is
//! freed, and the requester is told what stays on the cache, before the process ends.

use std::io;
use std::mem;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::{Health, MoveReport, Progress, ProgressSink, Skipped};
use halocline_fuse::MountedSession;
use halocline_os::error::{Error, Result};
use halocline_os::timed_calls::TimedCalls;
use parking_lot::Mutex;

use super::{Hosted, flushed};

/// How long an origin may take to report its space: far longer than a busy one needs.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a flush may make no progress until it is checked whether the origin responds.
const FLUSH_SILENCE: Duration = Duration::from_secs(2);
/// How long it may make no progress at all: an origin may respond, but not do what is requested.
const FLUSH_SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long the mount may take to be detached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the thread that owns the mount may take to end it, before it is checked whether the origin responds, and
/// after that if it does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_mins(2);

/// Whether the origin does not respond.
pub(super) fn hangs<E: Hosted>(engine: &Arc<E>) -> bool {
    let engine = Arc::clone(engine);
    let ask = move || {
        // An error is an answer, unless it says that there is none.
        let answered = engine.statfs(&engine.root());
        answered.err().is_none_or(|error| error.errno() != libc::ETIMEDOUT).then_some(())
    };
    TimedCalls::default().within(ORIGIN_TIMEOUT, ask).flatten().is_none()
}

/// Messages from a flush to the thread that waits for it.
enum FlushMessage {
    Now(Progress),
    Ended(Result<MoveReport>),
}

/// The state of a flush for the thread that waits for it.
#[derive(Debug)]
pub(crate) enum Flushing {
    /// Its progress.
    Now(Progress),
    /// It has made no progress for so long.
    Silent(Duration),
}

/// Flushes; `None` if the origin no longer responds, or nothing happens.
pub(super) fn flushed_unless_it_hangs<E: Hosted>(
    engine: &Arc<E>,
    progress: ProgressSink<'_>,
) -> Option<Result<MoveReport>> {
    flushed_until(engine, &mut |flushing| match flushing {
        Flushing::Now(now) => progress(now),
        Flushing::Silent(time) if time > FLUSH_SILENCE_MAX || hangs(engine) => {
            ControlFlow::Break(())
        }
        Flushing::Silent(_) => ControlFlow::Continue(()),
    })
}

/// Flushes; `None` if `told` stops it while it makes no progress: the flush is then abandoned.
pub(super) fn flushed_until<E: Hosted>(
    engine: &Arc<E>,
    told: &mut dyn FnMut(Flushing) -> ControlFlow<()>,
) -> Option<Result<MoveReport>> {
    let (tell, news) = channel();
    let go_on = Arc::new(AtomicBool::new(true));
    let (flushing, wanted) = (Arc::clone(engine), Arc::clone(&go_on));
    let flush = move || {
        let mut now = |now| {
            let heard = tell.send(FlushMessage::Now(now)).is_ok() && wanted.load(Ordering::Relaxed);
            if heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let ended = flushed(&*flushing, &mut now);
        // Before the end of the flush is known: an engine that outlives the claim on the origin keeps the cache locked.
        drop(flushing);
        let _gone = tell.send(FlushMessage::Ended(ended));
    };
    if let Err(error) = thread::Builder::new().name("flush".into()).spawn(flush) {
        return Some(Err(error.into()));
    }
    let mut heard = Instant::now();
    loop {
        match news.recv_timeout(FLUSH_SILENCE) {
            Ok(FlushMessage::Now(now)) => {
                heard = Instant::now();
                if told(Flushing::Now(now)).is_break() {
                    go_on.store(false, Ordering::Relaxed);
                }
            }
            Ok(FlushMessage::Ended(ended)) => return Some(ended),
            Err(RecvTimeoutError::Timeout) => {
                if told(Flushing::Silent(heard.elapsed())).is_break() {
                    return None;
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()));
            }
        }
    }
}

/// The result of the thread that owns the mount, or an error that it waits for an origin that does not respond, or for
/// programs that use the mount (`in_use`), if that is not to be waited for.
pub(super) fn end<E: Hosted>(
    engine: &Arc<E>,
    answer: &Receiver<Result<MoveReport>>,
    waits: bool,
    in_use: &dyn Fn() -> Option<Error>,
) -> Result<Result<MoveReport>> {
    let begun = Instant::now();
    loop {
        match answer.recv_timeout(ANSWER_TIMEOUT) {
            Ok(ended) => return Ok(ended),
            Err(RecvTimeoutError::Timeout) if !waits && hangs(engine) => return Err(stuck()),
            Err(RecvTimeoutError::Timeout) if !waits && begun.elapsed() > ANSWER_TIMEOUT_MAX => {
                return Err(in_use().unwrap_or_else(stuck));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(has_ended()),
        }
    }
}

/// The error for a request that came so late that the result of the mount's end is unknown.
pub(super) fn has_ended() -> Error {
    Error::Refused {
        message:
            "the mount has ended meanwhile: whoever ended it is told what is left on the cache, as \
                  `halocline fsck` does"
                .to_owned(),
        errno: libc::ESHUTDOWN,
    }
}

/// The error if the mount's process cannot even end.
fn stuck() -> Error {
    let pid = std::process::id();
    Error::invalid(
        "the origin does not answer, and the mount process waits for it",
        format!("kill -9 {pid} ends it: dirty data stays on the cache for the next mount"),
    )
}

/// Detaches a mount; what then ends it is the end of the process.
pub(super) fn detach(session: MountedSession) {
    let (detached, answer) = channel();
    // Requests of programs may wait for the origin, and the session's end for them.
    let detach = thread::Builder::new().name("detach".into()).spawn(move || {
        let _gone = detached.send(session.detach());
        mem::forget(session);
    });
    if detach.is_err() || !matches!(answer.recv_timeout(DETACH_TIMEOUT), Ok(Ok(()))) {
        tracing::warn!("the mount could not be detached; it ends with this process");
    }
}

/// What is reported of an engine that is left as it is: all dirty bytes stay on the cache.
pub(super) fn left_as_it_is<E: Hosted>(engine: &E, unreported: &Mutex<Vec<Skipped>>) -> MoveReport {
    let reason = match engine.status().health {
        Health::Silent { reason } => reason,
        _ => "the origin does not answer: this was not flushed to it".to_owned(),
    };
    let left_bytes = engine.report().dirty_bytes_left;
    let skipped = vec![Skipped { path: PathBuf::new(), reason }];
    let mut conflicts = mem::take(&mut *unreported.lock());
    conflicts.append(&mut engine.take_conflicts());
    MoveReport { left_bytes, skipped, conflicts, ..MoveReport::default() }
}
