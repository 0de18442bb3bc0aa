//! A mount with its engine, session and control socket, for its whole lifetime.
//!
//! What must hold: data is flushed before the mount is removed, and once more after the last program has released it;
//! only then is the cache closed and the peer informed (I7). A mount in use is never removed unless `--force` was
//! given.

mod forced_unmount;
mod membership;
mod unmount_requests;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::Config;
use halocline_api::control::joining::Members;
use halocline_api::control::{
    Claim, Controlled, MoveReport, ProgressSink, Report, Server, Skipped,
};
use halocline_fuse::{MountOptions, MountedSession, Transport, Unmounted};
use halocline_os::catch_panic::catch_panic;
use halocline_os::error::{Error, Result};
use halocline_vfs::Engine;
use parking_lot::Mutex;

use crate::mount_paths::MountPaths;
use crate::recording::Recording;

pub(crate) use forced_unmount::Flushing;
pub(crate) use membership::waiting_for;
use membership::{Membership, OpenTo, joined};
use unmount_requests::{UnmountRequest, UnmountRequests, detached};

/// How often the end of the session is checked for.
const TICK: Duration = Duration::from_millis(100);
/// How often it is checked whether the mount was unmounted.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest path of a Unix socket's address.
const ADDRESS_BYTES_MAX: usize = 107;

/// An engine that can be mounted.
pub(crate) trait Hosted: Engine + Controlled {
    /// Whether its threads stay on the processor whose requests they take: for engines whose programs mostly ask for
    /// names (see [`MountOptions::bound`]).
    const BOUND: bool;
    /// Whether `halocline run` may join its mount.
    const JOINED: bool;

    /// Makes everything durable that must be, and releases the cache. Nothing is called after it.
    fn close(&self) -> Result<()>;
}

/// A mount that is being served.
pub(crate) struct Host<E: Hosted> {
    engine: Arc<E>,
    session: MountedSession,
    /// Before the server, whose end waits until the answers to these requests are sent.
    unmount_requests: UnmountRequests,
    server: Server,
    /// Keeps the short name of the control socket alive.
    cache: File,
    /// Other users of the mount than this process.
    members: Members,
    unreported: UnreportedConflicts,
    recording: Option<Arc<Recording>>,
    /// No one else may use the origin until the engine is closed.
    claim: Claim,
}

/// Conflicts found by earlier flushes: the request that ends the mount reports all of them.
type UnreportedConflicts = Arc<Mutex<Vec<Skipped>>>;

impl<E: Hosted> Host<E> {
    /// Mounts `engine`, whose origin is claimed; `recording` records the requests to it. With `unmountable`, the
    /// control socket may end the mount.
    pub(crate) fn start(
        (engine, claim): (Arc<E>, Claim),
        config: &Config,
        (paths, recording): (&MountPaths, Option<Arc<Recording>>),
        unmountable: bool,
    ) -> Result<Self> {
        let opened = Arc::clone(&engine);
        Self::begin((engine, claim), config, (paths, recording), unmountable)
            .inspect_err(|_| Self::close_unused(&opened))
    }

    /// Begins the trace that was asked for. An earlier one is replaced only now, when the engine is open: a mount that is
    /// refused keeps it. If none can be begun, the engine is closed.
    pub(crate) fn begin_trace(
        engine: &E,
        trace: Option<&Path>,
        (paths, config): (&MountPaths, &Config),
    ) -> Result<Option<Arc<Recording>>> {
        let recording = trace.map(|file| Recording::begin(file, paths, config)).transpose();
        recording.inspect_err(|_| Self::close_unused(engine))
    }

    /// Closes an engine in order that is not mounted after all: other nodes need not wait for it.
    fn close_unused(engine: &E) {
        if let Err(error) = engine.close() {
            tracing::warn!(%error, "a mount that failed could not be closed in order");
        }
    }

    fn begin(
        (engine, mut claim): (Arc<E>, Claim),
        config: &Config,
        (paths, recording): (&MountPaths, Option<Arc<Recording>>),
        unmountable: bool,
    ) -> Result<Self> {
        let mut options = MountOptions::new(&paths.mountpoint);
        options.allow_other = config.allow_other;
        options.allow_suid = config.allow_suid;
        options.allow_dev = config.allow_dev;
        options.direct = config.direct;
        options.attr_timeout = config.attr_timeout;
        if !config.io_uring {
            options.transport = Transport::Device;
        }
        options.busy_poll = config.busy_poll;
        options.bound = E::BOUND;
        options.fsname = paths.origin.display().to_string();
        options.view.clone_from(&paths.view);
        options.recorder = recording.as_ref().map(|recording| recording.recorder().clone());
        if config.threads > 0 {
            options.threads = config.threads as usize;
        }
        let (sender, unmount_requests) = UnmountRequests::new();
        let members = Members::default();
        let unreported = UnreportedConflicts::default();
        let open_to = E::JOINED.then(|| OpenTo::new(paths, config, unmountable)).transpose()?;
        let membership = Arc::new(Membership {
            engine: Arc::clone(&engine),
            unmount_requests: unmountable.then_some(sender),
            mount: OnceLock::new(),
            members: members.clone(),
            unreported: Arc::clone(&unreported),
            recording: recording.clone(),
            open_to,
        });
        let controlled = Arc::clone(&engine);
        let server =
            Server::start(&paths.cache, &paths.mountpoint, controlled, membership.clone())?;
        let session = halocline_fuse::mount(Arc::clone(&engine), &options)?;
        if paths.mountpoint == paths.origin {
            claim.also(&paths.mountpoint);
        }
        claim.serves(&paths.mountpoint);
        claim.answer();
        let cache = File::open(&paths.cache)?;
        // From here on, others may join.
        membership.mount.get_or_init(|| (session.transport(), session.mount_handle()));
        Ok(Self {
            engine,
            session,
            unmount_requests,
            server,
            cache,
            members,
            unreported,
            recording,
            claim,
        })
    }

    /// A path of the control socket that fits a socket address, for this process's children.
    pub(crate) fn socket(&self) -> PathBuf {
        short_name(self.server.socket(), &self.cache)
    }

    /// Waits until no run that joined is left; `tell` is called once with their process ids.
    pub(crate) fn wait_for_members(&self, tell: impl FnOnce(&[u32])) {
        let mut tell = Some(tell);
        while let Err(pids) = self.members.close_if_empty() {
            if let Some(tell) = tell.take() {
                tell(&pids);
            }
            thread::sleep(TICK);
        }
    }

    /// Serves until the control socket, a signal (`stop`) or an `umount` ends the mount.
    ///
    /// While something else is mounted over the mount, no one can unmount it, and ending would leave a dead mount below
    /// and take open files from programs: after a request to stop, it then serves on until that is gone.
    pub(crate) fn serve(mut self, mut stop: impl FnMut() -> bool) -> Result<MoveReport> {
        let (mut stopping, mut looked) = (false, Instant::now());
        // All mounts of the machine are read for that, of which there may be thousands.
        let mut is_left = |session: &MountedSession| {
            let is_due = looked.elapsed() >= LOOK_EVERY;
            if is_due {
                looked = Instant::now();
            }
            is_due && session.is_left()
        };
        loop {
            let ending = match self.unmount_requests.next(TICK) {
                Ok(ending) => ending,
                // One that is left ends when nobody stands there any more, or sees a copy.
                Err(RecvTimeoutError::Timeout)
                    if self.session.is_ended() || is_left(&self.session) =>
                {
                    tracing::info!("unmounted by somebody else: flushing");
                    return self.end(false, &mut |_| ControlFlow::Continue(()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let told = stop();
                    stopping |= told;
                    if stopping && self.is_ready_to_stop(told) {
                        return self.end(false, &mut |_| ControlFlow::Continue(()));
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return self.end(false, &mut |_| ControlFlow::Continue(()));
                }
            };
            let UnmountRequest { force, keep_dirty, hangs, done } = ending;
            if let Err(refused) = self.make_unmountable(force) {
                self.members.reopen();
                let _ = done.send(Err(refused));
                continue;
            }
            self.unmount_requests.add(done);
            if hangs {
                return self.leave();
            }
            return self.end(keep_dirty, &mut |_| ControlFlow::Continue(()));
        }
    }

    /// Whether nothing prevents an unmount; flushes and reports it if `told` just now.
    fn is_ready_to_stop(&self, told: bool) -> bool {
        if told {
            tracing::info!("told to stop: flushing");
            let mut silent = |_| ControlFlow::Continue(());
            match flushed(&*self.engine, &mut silent) {
                Ok(flushed) => self.unreported.lock().extend(flushed.conflicts),
                Err(error) => tracing::warn!(%error, "cannot flush"),
            }
        }
        let free = self.session.check_uncovered().and_then(|()| {
            self.members.close_if_empty().map_err(|pids| {
                let what = format!("runs have joined the mount: {}", waiting_for(&pids));
                Error::invalid(what, "it ends when they have")
            })
        });
        match free {
            Ok(()) => true,
            Err(covered) => {
                if told {
                    tracing::warn!("told to stop, but this waits: {covered}");
                }
                false
            }
        }
    }

    /// Unmounts unless the mount is in use, or with `force` ensures that it can be unmounted.
    fn make_unmountable(&self, force: bool) -> Result<()> {
        if force {
            self.session.check_uncovered()?;
            return if self.session.is_detached() { self.session.abort() } else { Ok(()) };
        }
        if let Err(pids) = self.members.close_if_empty() {
            return Err(Error::invalid(
                format!("runs have joined the mount: {}", waiting_for(&pids)),
                "wait until they end, or detach it with --force: it ends when they have",
            ));
        }
        self.session.check_copies_unused()?;
        if self.session.unmount_if_unused()? {
            // It may have been detached earlier by someone else.
            let is_kept = self.session.is_kept_open();
            return if is_kept {
                Err(detached(&self.session.mount_handle().programs()))
            } else {
                Ok(())
            };
        }
        Err(Error::invalid(
            "programs use the mount",
            format!(
                "end them (`fuser -vm {}` lists them), or detach it with --force",
                crate::text::path(self.session.mountpoint())
            ),
        ))
    }

    /// Unmounts, flushes the last changes, closes the engine, and informs all who requested it. A busy mount is
    /// detached, and this waits for its last user.
    fn end(self, keep_dirty: bool, progress: ProgressSink<'_>) -> Result<MoveReport> {
        self.ended(keep_dirty, progress).map(|(_, left)| left)
    }

    /// The same, and the report of the whole mount. The engine, and its lock on the cache with it, must be gone before
    /// the claim: whoever has waited for that opens the cache.
    fn ended(self, keep_dirty: bool, progress: ProgressSink<'_>) -> Result<(Report, MoveReport)> {
        self.members.close();
        let Self {
            engine,
            session,
            mut unmount_requests,
            server,
            members,
            unreported,
            recording,
            claim,
            ..
        } = self;
        let asking = (&members, &unreported, &mut unmount_requests);
        let ended = finish(&engine, session, asking, keep_dirty, progress);
        if let Some(recording) = recording {
            recording.end();
        }
        unmount_requests.tell(&ended);
        // Waits until the answers are sent.
        drop(server);
        let report = engine.report();
        drop(engine);
        drop(claim);
        ended.map(|left| (report, left))
    }

    /// Detaches the mount, informs the requester, and leaves everything else to the end of the process, which the
    /// caller causes: threads that wait for the origin end with it.
    fn leave(self) -> Result<MoveReport> {
        self.members.close();
        let Self {
            engine, session, server, unmount_requests, unreported, recording, claim, ..
        } = self;
        forced_unmount::detach(session);
        if let Some(recording) = recording {
            recording.end();
        }
        let told = Ok(forced_unmount::left_as_it_is(&*engine, &unreported));
        unmount_requests.tell(&told);
        server.leave();
        // Dropping these would wait for threads that wait for the origin.
        std::mem::forget((engine, claim));
        told
    }

    /// Flushes, unmounts and closes, and returns the report of the whole mount. If `told` stops a flush that makes no
    /// progress, dirty bytes stay on the cache, and the waiting threads end with the process.
    pub(crate) fn finish_with_report(
        self,
        mut told: impl FnMut(Flushing) -> ControlFlow<()> + Send,
    ) -> Result<(Report, MoveReport)> {
        self.members.close();
        let Some(first) = forced_unmount::flushed_until(&self.engine, &mut told) else {
            let engine = Arc::clone(&self.engine);
            let left = self.leave()?;
            return Ok((engine.report(), left));
        };
        let first = first?;
        let stopped = first.left_bytes > 0;
        let (report, last) = self.ended(stopped, &mut |now| told(Flushing::Now(now)))?;
        Ok((report, joined(&first, last)))
    }
}

/// A path of a control socket in `dir` that fits a socket address, for this process's children.
pub(crate) fn short_name(socket: &Path, dir: &File) -> PathBuf {
    match socket.file_name() {
        Some(name) if socket.as_os_str().len() > ADDRESS_BYTES_MAX => {
            let (pid, fd) = (std::process::id(), dir.as_raw_fd());
            Path::new("/proc").join(format!("{pid}/fd/{fd}")).join(name)
        }
        _ => socket.to_owned(),
    }
}

/// The end of a mount: see [`Host::end`]. Once the mount is gone, the result says so, and what stays on the cache, or
/// is not in order, and why.
fn finish<E: Hosted>(
    engine: &Arc<E>,
    session: MountedSession,
    (members, unreported, unmount_requests): (&Members, &UnreportedConflicts, &mut UnmountRequests),
    mut keep_dirty: bool,
    progress: ProgressSink<'_>,
) -> Result<MoveReport> {
    let elsewhere = match session.unmount()? {
        Unmounted::Clean => Ok(None),
        Unmounted::Busy(session) => session.wait_besides(
            || members.close_if_empty().is_err(),
            |session| keep_dirty |= unmount_requests.meet(session),
        ),
    };
    let mut report = if keep_dirty {
        let (left_bytes, conflicts) = (engine.report().dirty_bytes_left, engine.take_conflicts());
        MoveReport { left_bytes, conflicts, ..MoveReport::default() }
    } else {
        flushed(&**engine, progress)?
    };
    // While the mount is still served somewhere, the engine stays open: the process ends as if it were killed.
    let is_closed = elsewhere?.is_none();
    if is_closed && let Err(error) = catch_panic(|| engine.close()) {
        match not_flushed(&**engine, error) {
            Ok(left) => {
                report.left_bytes = left.left_bytes;
                report.skipped.extend(left.skipped);
            }
            // The mount is gone, and nothing is left on the cache.
            Err(error) => report.not_in_order = Some(error.to_string()),
        }
    }
    report.conflicts.splice(..0, std::mem::take(&mut *unreported.lock()));
    Ok(report)
}

/// Flushes. If that fails as a whole, the result reports that all dirty bytes stay on the cache.
fn flushed<E: Hosted>(engine: &E, progress: ProgressSink<'_>) -> Result<MoveReport> {
    catch_panic(|| Controlled::flush(engine, None, false, progress))
        .or_else(|error| not_flushed(engine, error))
}

/// Reports that dirty data stays on the cache; the error itself if there is none.
fn not_flushed<E: Hosted>(engine: &E, error: Error) -> Result<MoveReport> {
    let left_bytes = engine.report().dirty_bytes_left;
    if left_bytes == 0 {
        return Err(error);
    }
    let skipped = vec![Skipped { path: PathBuf::new(), reason: error.to_string() }];
    Ok(MoveReport { left_bytes, skipped, ..MoveReport::default() })
}
