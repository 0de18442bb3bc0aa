//! Mounting an engine, serving it, unmounting it.

mod mounting;
mod private_namespace;
mod unmounting;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Notifier};
use halocline_core::engine::Engine;
use halocline_core::error::{Error, Result};

use crate::front::{Front, FrontOptions};

use unmounting::Place;

pub use private_namespace::private_namespace;
pub use unmounting::with_helper;

/// Event-loop threads by default. Engine calls wait for slow devices, so there are more than cores;
/// but the kernel gives requests to idle threads in turn, and each has buffers of its own: with 8
/// threads 4 KiB requests were up to 1.5 times as fast as with 32 on two cores.
pub const THREADS: usize = 16;

/// Where and how to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing directory; may be the origin itself, if its engine is open already.
    pub mountpoint: PathBuf,
    /// Whether other users may enter; permissions are checked by the kernel either way.
    pub allow_other: bool,
    /// Whether programs may only read.
    pub read_only: bool,
    /// Event-loop threads, each with its own queue to the kernel.
    pub threads: usize,
    /// Every file bypasses the kernel's page cache.
    pub direct: bool,
    /// How long the kernel may answer from its own copy of attributes and names. The mount is the
    /// only writer, so this bounds only how late changes behind it are seen by `stat`.
    pub attr_timeout: Duration,
    /// First column of `mount`'s output: the origin's path.
    pub fsname: String,
}

impl MountOptions {
    /// Defaults for a mount at `mountpoint`.
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            allow_other: false,
            read_only: false,
            threads: THREADS,
            direct: false,
            attr_timeout: Duration::from_secs(1),
            fsname: "halocline".into(),
        }
    }
}

/// A mount that is being served. Dropping it unmounts, lazily if the mount is busy.
#[derive(Debug)]
pub struct MountedSession {
    serving: Option<BackgroundSession>,
    place: Place,
}

/// How an unmount ended.
#[derive(Debug)]
pub enum Unmounted {
    /// Nothing uses the engine any more.
    Clean,
    /// Programs still have files open or stand in the mount. It is out of sight and ends when they
    /// are done; [`MountedSession::wait`] waits for that.
    Busy(MountedSession),
}

/// Mounts `engine` and serves it in threads of its own.
///
/// As root, or inside a user namespace, the mount is made directly; an ordinary user outside one
/// needs `fusermount3`.
pub fn mount<E: Engine>(engine: Arc<E>, options: &MountOptions) -> Result<MountedSession> {
    let mountpoint = std::fs::canonicalize(&options.mountpoint)
        .map_err(Error::at(&options.mountpoint, "use the mount point"))?;
    let origin = engine.statfs(&engine.root())?;
    let front = Front::new(
        engine,
        FrontOptions {
            attr_timeout: options.attr_timeout,
            direct: options.direct,
            threads: options.threads,
        },
    );
    let (session, place) = mounting::mount(front, &mountpoint, options, &origin)?;
    let serving = mounting::with_priority(|| session.spawn())
        .map_err(Error::at(&mountpoint, "start serving the mount"))?;
    let mounted = MountedSession { serving: Some(serving), place };
    mounting::widen_read_ahead(&mounted.place.path);
    Ok(mounted)
}

impl MountedSession {
    /// Tells the kernel what changed behind its back.
    pub fn notifier(&self) -> Notifier {
        self.serving.as_ref().expect("taken only when the session ends").notifier()
    }

    /// Whether somebody unmounted and the last user is gone.
    pub fn is_ended(&self) -> bool {
        self.serving.as_ref().is_none_or(|serving| serving.guard.is_finished())
    }

    /// Unmounts unless programs use the mount; `false` when they do, and then nothing changed.
    /// After `true`, [`MountedSession::wait`] returns soon.
    pub fn unmount_if_unused(&self) -> Result<bool> {
        unmounting::unmount_unused(&self.place)
    }

    /// Fails where something else is mounted over the mount, so that it cannot be unmounted.
    pub fn check_uncovered(&self) -> Result<()> {
        self.place.is_there().map(drop)
    }

    /// Waits until somebody unmounted and the last user is gone.
    pub fn wait(mut self) -> Result<()> {
        self.join()
    }

    /// Unmounts. A busy mount is detached: gone from the tree at once, ended when it is unused.
    pub fn unmount(mut self) -> Result<Unmounted> {
        if unmounting::unmount(&self.place)? {
            self.join()?;
            return Ok(Unmounted::Clean);
        }
        tracing::warn!(
            mountpoint = %self.place.path.display(),
            "still in use: detached; it ends when the last program closes its files there"
        );
        Ok(Unmounted::Busy(Self { serving: self.serving.take(), place: self.place.clone() }))
    }

    fn join(&mut self) -> Result<()> {
        match self.serving.take() {
            Some(serving) => serving.join().map_err(Error::at(&self.place.path, "serve the mount")),
            None => Ok(()),
        }
    }
}

impl Drop for MountedSession {
    fn drop(&mut self) {
        let Some(serving) = self.serving.take() else { return };
        if serving.guard.is_finished() {
            return;
        }
        match unmounting::unmount(&self.place) {
            Ok(true) => drop(serving.join()),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot unmount"),
        }
    }
}
