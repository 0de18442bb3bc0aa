//! The end of a mount whose origin, or one of whose tiers, does not answer: `umount --force` waits for nothing that may
//! wait for it, also where it stops answering in the middle of the flush; nor does `umount --keep-dirty`.
//!
//! What must hold: the cache is left as a kill leaves it, so that nothing acknowledged is lost (I4); the mount point is
//! free, and whoever asked is told what stays on the cache, before the process ends.

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
use halocline_os::error::{Error, Result};
use halocline_os::looks::Looks;

use super::{Host, Hosted, flushed};

/// How long an origin may take to tell of its space: far longer than a busy one needs.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a flush may tell nothing until the origin is asked whether it answers.
const FLUSH_SILENCE: Duration = Duration::from_secs(2);
/// How long one may tell nothing at all: an origin may answer, and not do what is asked of it.
const FLUSH_SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long the mount may take to be detached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the thread that owns the mount may take to end it, before the origin is asked whether it answers, and if it
/// does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_mins(2);

/// Whether the origin does not answer.
pub(super) fn hangs<E: Hosted>(engine: &Arc<E>) -> bool {
    let engine = Arc::clone(engine);
    let ask = move || {
        // An error is an answer, unless it says that there is none.
        let answered = engine.statfs(&engine.root());
        answered.err().is_none_or(|error| error.errno() != libc::ETIMEDOUT).then_some(())
    };
    Looks::default().within(ORIGIN_TIMEOUT, ask).is_none()
}

/// What a flush tells who waits for it.
enum Told {
    Now(Progress),
    Ended(Result<MoveReport>),
}

/// What who waits for a flush is told.
#[derive(Debug)]
pub(crate) enum Flushing {
    /// It goes on.
    Now(Progress),
    /// Nothing was heard of it for so long.
    Silent(Duration),
}

/// Flushes; `None` once the origin does not answer any more, or does nothing.
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

/// Flushes; `None` where `told` stops that while nothing is heard of it: the flush is left behind then.
pub(super) fn flushed_until<E: Hosted>(
    engine: &Arc<E>,
    told: &mut dyn FnMut(Flushing) -> ControlFlow<()>,
) -> Option<Result<MoveReport>> {
    let (tell, news) = channel();
    let go_on = Arc::new(AtomicBool::new(true));
    let (flushing, wanted) = (Arc::clone(engine), Arc::clone(&go_on));
    let flush = move || {
        let mut now = |now| {
            let heard = tell.send(Told::Now(now)).is_ok() && wanted.load(Ordering::Relaxed);
            if heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let ended = flushed(&*flushing, &mut now);
        let _gone = tell.send(Told::Ended(ended));
    };
    if let Err(error) = thread::Builder::new().name("flush".into()).spawn(flush) {
        return Some(Err(error.into()));
    }
    let mut heard = Instant::now();
    loop {
        match news.recv_timeout(FLUSH_SILENCE) {
            Ok(Told::Now(now)) => {
                heard = Instant::now();
                if told(Flushing::Now(now)).is_break() {
                    go_on.store(false, Ordering::Relaxed);
                }
            }
            Ok(Told::Ended(ended)) => return Some(ended),
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

/// What the thread that owns the mount says of its end, or that it waits for an origin that does not
/// answer, where that shall not be waited for.
pub(super) fn end<E: Hosted>(
    engine: &Arc<E>,
    answer: &Receiver<Result<MoveReport>>,
    waits: bool,
) -> Result<Result<MoveReport>> {
    let begun = Instant::now();
    loop {
        match answer.recv_timeout(ANSWER_TIMEOUT) {
            Ok(ended) => return Ok(ended),
            Err(RecvTimeoutError::Timeout)
                if !waits && (begun.elapsed() > ANSWER_TIMEOUT_MAX || hangs(engine)) =>
            {
                return Err(stuck());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(has_ended()),
        }
    }
}

/// What is told to who asked so late that nobody can tell how the mount ended.
pub(super) fn has_ended() -> Error {
    Error::Refused {
        message:
            "the mount has ended meanwhile: whoever ended it is told what is left on the cache, as \
                  `halocline fsck` does"
                .to_owned(),
        errno: libc::ESHUTDOWN,
    }
}

/// What is told where the mount's process cannot even end.
fn stuck() -> Error {
    let pid = std::process::id();
    Error::invalid(
        "the origin does not answer, and the mount process waits for it",
        format!("kill -9 {pid} ends it: dirty data stays on the cache for the next mount"),
    )
}

impl<E: Hosted> Host<E> {
    /// Detaches the mount, tells who asked, and leaves everything else to the end of the process, which the caller
    /// brings about: threads that wait for the origin end with it.
    pub(super) fn leave(self) -> Result<MoveReport> {
        self.members.close();
        let Self {
            engine,
            session,
            server,
            unmount_requests,
            untold,
            recording,
            _claim: claim,
            ..
        } = self;
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
        let reason = match engine.status().health {
            Health::Silent { reason } => reason,
            _ => "the origin does not answer: this was not flushed to it".to_owned(),
        };
        let left_bytes = engine.report().dirty_bytes_left;
        let skipped = vec![Skipped { path: PathBuf::new(), reason }];
        let mut conflicts = mem::take(&mut *untold.lock());
        conflicts.append(&mut engine.take_conflicts());
        let report = MoveReport { left_bytes, skipped, conflicts, ..MoveReport::default() };
        let told = Ok(report);
        unmount_requests.tell(&told);
        server.leave();
        // Their ends would wait for threads that wait for the origin.
        mem::forget((engine, claim));
        told
    }
}
