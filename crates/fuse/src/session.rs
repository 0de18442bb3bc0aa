//! Mounting an engine, serving it, unmounting it.

mod aborting;
mod fusermount;
mod mount_point;
mod mounting;
mod private_namespace;
mod private_view;
mod programs;
mod unmounting;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::BackgroundSession;
use halocline_api::control::mount::MountCopy;
use halocline_os::error::{Error, Result};
use halocline_trace::record::Recorder;
use halocline_vfs::Engine;
use rustix::fs::CWD;
use rustix::mount::MoveMountFlags;

use crate::front::{Front, FrontOptions};
use crate::transport::Transport;
use crate::transport::device::Device;
use crate::transport::device::negotiation::Agreed;
use crate::transport::uring::{self, Between};

use unmounting::OwnMount;

#[cfg(any(test, fuzzing))]
pub(crate) use programs::fuzzing::descriptor as hostile_descriptor;

pub use fusermount::with_helper;
pub use private_namespace::private_namespace;
pub use private_view::PrivateView;

/// Threads by default, with rings for each processor. Engine calls wait for slow devices, so there are more than cores;
/// but the kernel gives requests to idle threads in turn, and each has its own buffers: with 8 threads, 4 KiB requests
/// were up to 1.5 times as fast as with 32 on two cores.
pub const THREADS: usize = 16;

/// How often the end of a session is checked for.
const TICK: Duration = Duration::from_millis(20);
/// How long an unmounted session may take to end before copies that keep the mount in use are searched for, and how
/// often they are.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a session without known users may take to end: far longer than it needs.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// How long the kernel may take to report that a file was closed.
const CLOSING: Duration = Duration::from_secs(2);

/// Where and how to mount.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one mount")]
pub struct MountOptions {
    /// An existing directory; may be the origin itself, if its engine is open already.
    pub mountpoint: PathBuf,
    /// Whether other users may enter; the kernel checks permissions either way.
    pub allow_other: bool,
    /// Whether set-id bits and file capabilities take effect, as far as on the origin. Only if the mount is made
    /// directly.
    pub allow_suid: bool,
    /// Whether device nodes can be opened, as far as on the origin; likewise.
    pub allow_dev: bool,
    /// Whether programs may only read.
    pub read_only: bool,
    /// Threads that answer requests, each with its own queue to the kernel.
    pub threads: usize,
    /// How requests should arrive; rings are used only if the kernel offers them.
    pub transport: Transport,
    /// Whether threads with rings poll briefly for the next request before they sleep.
    pub busy_poll: bool,
    /// Whether threads with rings stay on the processor whose requests they take, and sleep as soon as they have
    /// answered. This makes creating and removing names up to twice as fast. Threads that the engine starts during a
    /// call stay there, too, so none should outlive it.
    pub bound: bool,
    /// Every file bypasses the kernel's page cache.
    pub direct: bool,
    /// How long the kernel may answer from its own copy of attributes and names. The mount is the only writer, so this
    /// only limits how late `stat` shows changes behind it.
    pub attr_timeout: Duration,
    /// First column of `mount`'s output: the origin's path.
    pub fsname: String,
    /// Records reads and writes as a trace.
    pub recorder: Option<Arc<Recorder>>,
    /// A mount that is already made; only programs that enter the view will see it.
    pub view: Option<Arc<PrivateView>>,
}

impl MountOptions {
    /// Defaults for a mount at `mountpoint`.
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            allow_other: false,
            allow_suid: false,
            allow_dev: false,
            read_only: false,
            threads: THREADS,
            transport: Transport::Ring,
            busy_poll: true,
            bound: false,
            direct: false,
            attr_timeout: Duration::from_secs(1),
            fsname: "halocline".into(),
            recorder: None,
            view: None,
        }
    }
}

/// A mount that is being served. Dropping it unmounts, lazily if the mount is busy.
#[derive(Debug)]
pub struct MountedSession {
    threads: Option<MountThreads>,
    transport: Transport,
    mount: OwnMount,
    users: Users,
}

/// Whether programs have anything open; keeps nothing alive.
#[derive(Clone)]
struct Users(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Users {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Users")
    }
}

/// The threads of a mount.
#[derive(Debug)]
struct MountThreads {
    device: BackgroundSession,
    rings: Option<uring::RingThreads>,
    /// Used to report closed files to the kernel; the last user of the connection.
    _connection: Arc<OwnedFd>,
}

impl MountThreads {
    fn is_finished(&self) -> bool {
        self.device.guard.is_finished()
            && self.rings.as_ref().is_none_or(uring::RingThreads::is_finished)
    }

    /// Waits until the mount is gone.
    fn join(self) -> io::Result<()> {
        let device = self.device.join();
        let rings = self.rings.map_or(Ok(()), uring::RingThreads::join);
        device.and(rings)
    }
}

/// How an unmount ended.
#[derive(Debug)]
pub enum Unmounted {
    /// The engine is no longer used.
    Clean,
    /// Programs still have files open or their working directory in the mount, or it has copies, for example in other
    /// mount namespaces. It is invisible and ends when they are done; [`MountedSession::wait`] waits for that.
    Busy(Box<MountedSession>),
}

/// A mount as others ask for it: whether it is still there, who uses it, and copies for processes that do not see it.
#[derive(Debug, Clone)]
pub struct MountHandle(OwnMount);

impl MountHandle {
    /// Whether the mount is no longer where it was made: it was unmounted, and ends with its last user.
    pub fn is_detached(&self) -> bool {
        matches!(self.0.is_there(), Ok(false))
    }

    /// Descriptions of programs that have something open there, as far as visible to this process; if there are many,
    /// only some.
    pub fn programs(&self) -> Vec<String> {
        self.0.programs()
    }

    /// A copy of the mount that is not attached anywhere yet: [`show_over`] attaches it where the receiver wants.
    ///
    /// # Errors
    /// Not in a namespace of this process's own, or without the privilege to mount in it.
    pub fn copy(&self) -> Result<OwnedFd> {
        self.0.copy()
    }
}

/// Shows a mount over `path`: the copy, or else what is mounted at `mountpoint`.
pub fn show_over(path: &Path, copy: Option<OwnedFd>, mountpoint: &Path) -> Result<()> {
    let shown = match copy {
        Some(copy) => {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(copy, "", CWD, path, flags)
        }
        None => rustix::mount::mount_bind_recursive(mountpoint, path),
    };
    shown.map_err(|errno| Error::at(path, "mount over")(errno.into()))
}

/// Mounts `engine` and serves it in threads of its own.
///
/// As root, or inside a user namespace, the mount is made directly; an ordinary user outside one
/// needs `fusermount3`.
pub fn mount<E: Engine>(engine: Arc<E>, options: &MountOptions) -> Result<MountedSession> {
    let mountpoint = std::fs::canonicalize(&options.mountpoint)
        .map_err(Error::at(&options.mountpoint, "use the mount point"))?;
    let origin = engine.statfs(&engine.root())?;
    let front = FrontOptions {
        attr_timeout: options.attr_timeout,
        direct: options.direct,
        device_threads: options.threads,
    };
    let recorded_to = options.recorder.clone().map(|recorder| (recorder, mountpoint.clone()));
    let front = Arc::new(Front::new(engine, front, recorded_to));
    // Threads inherit the priority of the one that starts them.
    let rings = mounting::with_priority(|| prepare_rings(options));
    let agreed = Arc::new(Agreed::with_rings(rings.is_some()));
    let device = Device::new(front.clone(), options.threads, agreed.clone());
    let (session, mount) = mounting::mount(device, &mountpoint, options, &origin)?;
    let start = || -> Result<MountThreads> {
        let at = |error| Error::at(&mountpoint, "start serving the mount")(error);
        let connection = Arc::new(session.as_fd().try_clone_to_owned().map_err(at)?);
        front.connection.set_device(&connection);
        let device = mounting::with_priority(|| session.spawn()).map_err(at)?;
        front.stale_pages.start(device.notifier()).map_err(at)?;
        if let Some(places) = &front.directory_places {
            places.start(device.notifier()).map_err(at)?;
        }
        let rings = rings.filter(|_| agreed.rings());
        let rings = rings.map(|rings| rings.serve(&front, &connection));
        options.view.as_ref().map_or(Ok(()), |view| view.show())?;
        Ok(MountThreads { device, rings, _connection: connection })
    };
    let used = Arc::downgrade(&front);
    let users = Users(Arc::new(move || used.upgrade().is_some_and(|front| front.is_used())));
    let threads = start().inspect_err(|_| {
        // No thread would ever answer there.
        let _undone = mount.unmount();
    })?;
    let transport = if threads.rings.is_some() { Transport::Ring } else { Transport::Device };
    if let Some(device) = mount.here().and_then(|point| point.device) {
        mounting::widen_read_ahead(device);
    }
    Ok(MountedSession { threads: Some(threads), transport, mount, users })
}

/// Rings for requests, if they are wanted and the kernel offers them.
fn prepare_rings<E: Engine>(options: &MountOptions) -> Option<uring::Prepared<E>> {
    // A single thread means that requests are to come one after another.
    if options.transport == Transport::Device || options.threads <= 1 || !uring::offered() {
        return None;
    }
    let between = match options {
        MountOptions { bound: true, .. } => Between::Bound,
        MountOptions { busy_poll: true, .. } => Between::Poll,
        _ => Between::Sleep,
    };
    let prepared = uring::Prepared::new(options.threads, between);
    prepared.inspect_err(|error| tracing::debug!(%error, "no rings for requests")).ok()
}

impl MountedSession {
    /// How requests arrive.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether it was unmounted and its last user is gone.
    pub fn is_ended(&self) -> bool {
        self.threads.as_ref().is_none_or(MountThreads::is_finished)
    }

    /// The same, but waits briefly: a session ends soon after its mount.
    fn is_ended_soon(&self) -> bool {
        let begun = Instant::now();
        // Programs that only have their working directory there are not known, and a busy machine may be slow.
        let wait_limit = || if self.is_used() { LOOK_EVERY } else { ENDING_MAX };
        while !self.is_ended() && begun.elapsed() < wait_limit() {
            thread::sleep(TICK);
        }
        self.is_ended()
    }

    /// Whether it was unmounted while programs used it, and they still do.
    pub fn is_detached(&self) -> bool {
        self.mount_handle().is_detached() && !self.is_ended_soon()
    }

    /// Whether it was unmounted and no file there is open: programs may still have their working directory there, and
    /// other mount namespaces may have copies.
    pub fn is_left(&self) -> bool {
        self.mount_handle().is_detached() && !self.is_used()
    }

    /// Whether programs have something open there.
    pub fn is_used(&self) -> bool {
        (self.users.0)()
    }

    /// Whether open files keep the mount in use although it was unmounted: the kernel reports a close with delay.
    pub fn is_kept_open(&self) -> bool {
        let begun = Instant::now();
        let gone = self.mount_handle().is_detached();
        while gone && self.is_used() && !self.is_ended() {
            if begun.elapsed() >= LOOK_EVERY {
                return true;
            }
            thread::sleep(TICK);
        }
        false
    }

    /// Disconnects the mount from all its users, who get `ENOTCONN` from now on.
    pub fn abort(&self) -> Result<()> {
        let fail = |error| {
            let what =
                format!("{}: cannot be taken from its users: {error}", self.mount.path().display());
            Error::invalid(what, "end the programs that use it")
        };
        self.mount.abort().map_err(fail)
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        self.mount.path()
    }

    /// Unmounts unless programs use the mount; if they do, nothing changes and the result is `false`. After `true`,
    /// [`MountedSession::wait`] returns soon.
    pub fn unmount_if_unused(&self) -> Result<bool> {
        self.mount.unmount_unused()
    }

    /// Fails if something else is mounted over the mount, so that it cannot be unmounted.
    pub fn check_uncovered(&self) -> Result<()> {
        self.mount.is_there().map(drop)
    }

    /// The mount, for whoever shows it to others.
    pub fn mount_handle(&self) -> MountHandle {
        MountHandle(self.mount.clone())
    }

    /// Fails if programs have files or directories open and the mount has copies: an unmount would succeed, because
    /// only users of this very mount keep it busy.
    pub fn check_copies_unused(&self) -> Result<()> {
        let copy = self.mount.copies().into_iter().next();
        let Some(copy) = copy.filter(|_| !self.are_users_gone_soon()) else { return Ok(()) };
        // Users of the copy are not known.
        let known = self.mount.programs();
        let who = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
        Err(Error::invalid(
            format!("programs use the mount, which is also at {copy}{who}"),
            "end them, or detach it with --force: it ends when they have closed their files",
        ))
    }

    /// The kernel reports a close with delay.
    fn are_users_gone_soon(&self) -> bool {
        let begun = Instant::now();
        loop {
            if !self.is_used() {
                return true;
            }
            if begun.elapsed() >= CLOSING {
                return false;
            }
            thread::sleep(TICK);
        }
    }

    /// Waits until it was unmounted and its last user is gone: see [`MountedSession::wait_besides`].
    pub fn wait(self) -> Result<()> {
        match self.wait_besides(|| false, |_| ())? {
            None => Ok(()),
            Some(copy) => Err(Error::invalid(
                format!("the mount is still at {copy}, and cannot be ended there by this user"),
                "unmount it there, too",
            )),
        }
    }

    /// Waits until it was unmounted and its last user is gone. Copies of the mount without open files do not count as
    /// users, unless `expected`: their connection is ended. Calls `meanwhile` repeatedly.
    ///
    /// Returns a copy that keeps the mount in use if this process may not end the connection: it is served there until
    /// the process ends.
    ///
    /// # Errors
    /// What ended the serving threads.
    pub fn wait_besides(
        mut self,
        expected: impl Fn() -> bool,
        mut meanwhile: impl FnMut(&Self),
    ) -> Result<Option<MountCopy>> {
        let mut looked = Instant::now();
        while !self.is_ended() {
            thread::sleep(TICK);
            meanwhile(&self);
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            let unused = !expected() && !self.is_used();
            if unused
                && matches!(self.mount.is_there(), Ok(false))
                && let Some(copy) = self.leave_copies()
            {
                return Ok(Some(copy));
            }
            looked = Instant::now();
        }
        self.join().map(|()| None)
    }

    /// Ends the connection if copies of the mount keep it in use; returns one if this process may not.
    fn leave_copies(&mut self) -> Option<MountCopy> {
        let copy = self.mount.copies().into_iter().next()?;
        if let Err(error) = self.mount.abort() {
            tracing::warn!(%copy, %error, "unmounted, but there is a copy, which ends with this process");
            // Its threads wait for requests until then.
            drop(self.threads.take());
            return Some(copy);
        }
        tracing::warn!(%copy, "unmounted, but there was a copy: its connection is ended");
        None
    }

    /// Detaches the mount, in use or not, without waiting.
    pub fn detach(&self) -> Result<()> {
        self.mount.unmount().map(drop)
    }

    /// Unmounts. A busy mount is detached: removed from the tree at once, and ended when it is no longer used.
    pub fn unmount(mut self) -> Result<Unmounted> {
        if self.mount.unmount()? {
            // It may have been detached by someone else.
            if self.mount.copies().is_empty() && self.is_ended_soon() {
                self.join()?;
                return Ok(Unmounted::Clean);
            }
        } else {
            tracing::warn!(
                mountpoint = %self.mount.path().display(),
                "still in use: detached; it ends when the last program closes its files there"
            );
        }
        let (threads, mount) = (self.threads.take(), self.mount.clone());
        let (transport, users) = (self.transport, self.users.clone());
        Ok(Unmounted::Busy(Box::new(Self { threads, transport, mount, users })))
    }

    fn join(&mut self) -> Result<()> {
        match self.threads.take() {
            Some(threads) => {
                threads.join().map_err(Error::at(self.mount.path(), "serve the mount"))
            }
            None => Ok(()),
        }
    }
}

impl Drop for MountedSession {
    fn drop(&mut self) {
        let Some(threads) = self.threads.take() else { return };
        if threads.is_finished() {
            return;
        }
        match self.mount.unmount() {
            Ok(true) if self.mount.copies().is_empty() => drop(threads.join()),
            Ok(true) => match self.mount.abort() {
                Ok(()) => drop(threads.join()),
                Err(error) => tracing::warn!(%error, "copies of the mount are left"),
            },
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot unmount"),
        }
    }
}
