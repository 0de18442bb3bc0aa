//! The mount as seen by the control socket: who may end it, and who joins it.
//!
//! What must hold: a mount ends by itself only if no one has joined it, and from then on no one can.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use halocline_api::config::{Config, OPTIONS};
use halocline_api::control::joining::{Member, Members, MountPoint};
use halocline_api::control::{Joined, Mounted, MoveReport, ProcessHint, ProgressSink};
use halocline_fuse::{MountHandle, Transport};
use halocline_os::error::{Error, Result};

use super::forced_unmount;
use super::unmount_requests::{UnmountRequest, detached, used_by};
use super::{Hosted, UnreportedConflicts, flushed};
use crate::mount_paths::MountPaths;
use crate::recording::Recording;
use crate::text;

/// Connects the control socket to the thread that owns the mount.
pub(super) struct Membership<E> {
    pub(super) engine: Arc<E>,
    pub(super) unmount_requests: Option<Sender<UnmountRequest>>,
    /// What joining runs are shown, once there is a mount.
    pub(super) mount: OnceLock<(Transport, MountHandle)>,
    /// Runs that use the mount besides its own process.
    pub(super) members: Members,
    pub(super) unreported: UnreportedConflicts,
    pub(super) recording: Option<Arc<Recording>>,
    /// The origin at which others may join.
    pub(super) open_to: Option<OpenTo>,
}

/// A mount that runs may join.
pub(super) struct OpenTo {
    origin: PathBuf,
    /// Its device and inode.
    id: (u64, u64),
    /// Where the mount is visible to all; `None` for a private one.
    mountpoint: Option<MountPoint>,
    options: BTreeMap<String, String>,
}

impl OpenTo {
    /// To be called before the mount is made, which may cover the origin.
    pub(super) fn new(paths: &MountPaths, config: &Config, public: bool) -> Result<Self> {
        let origin = paths.origin.clone();
        let seen = fs::metadata(&origin).map_err(Error::at(&origin, "look at the origin"))?;
        let options = OPTIONS.iter().map(|option| (option.key.to_owned(), (option.get)(config)));
        Ok(Self {
            origin,
            id: (seen.dev(), seen.ino()),
            mountpoint: public.then(|| MountPoint(paths.mountpoint.clone())),
            options: options.collect(),
        })
    }
}

impl<E: Hosted> Mounted for Membership<E> {
    fn transport(&self) -> &'static str {
        match self.mount.get() {
            Some((Transport::Ring, _)) => "io_uring",
            Some((Transport::Device, _)) => "device",
            None => "",
        }
    }

    fn origin(&self) -> Option<PathBuf> {
        self.open_to.as_ref().map(|open| open.origin.clone())
    }

    fn notes(&self) -> Vec<String> {
        self.recording.iter().map(|recording| recording.state()).collect()
    }

    fn detached(&self) -> Option<String> {
        let (_, mount) = self.mount.get()?;
        mount.is_detached().then(|| used_by(&mount.programs()))
    }

    fn hinted(&self, hint: &ProcessHint) {
        if let (Some(recording), Some(rank)) = (&self.recording, hint.rank) {
            recording.recorder().set_rank(hint.pid, rank);
        }
    }

    fn is_ending(&self) -> bool {
        let gone = self.mount.get().is_some_and(|(_, mount)| mount.is_detached());
        gone || self.members.is_closed()
    }

    fn join(
        &self,
        pid: u32,
        origin: Option<(u64, u64)>,
    ) -> Result<(Joined, Option<OwnedFd>, Member)> {
        let not_now = || Error::from(std::io::Error::from_raw_os_error(libc::ESHUTDOWN));
        let open = self.open_to.as_ref().ok_or_else(|| {
            Error::invalid(
                "a file tier is not joined",
                "use its mount point: it is for many programs",
            )
        })?;
        if origin.is_some_and(|origin| origin != open.id) {
            return Err(Error::invalid(
                format!(
                    "the cache is in use by process {} for another origin, {}",
                    std::process::id(),
                    open.origin.display()
                ),
                "name that origin, or another cache",
            ));
        }
        let mount = self.mount.get().map(|(_, mount)| mount);
        let mount = mount.filter(|mount| !mount.is_detached()).ok_or_else(not_now)?;
        let member = self.members.admit(pid)?;
        let private = open.mountpoint.is_none() && origin.is_some();
        let copy = private.then(|| mount.copy()).transpose()?;
        let joined = Joined {
            pid: std::process::id(),
            mountpoint: open.mountpoint.clone(),
            options: open.options.clone(),
            report: self.engine.report(),
        };
        Ok((joined, copy, member))
    }

    fn unmount(
        &self,
        force: bool,
        keep_dirty: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        let Some(unmount_requests) = &self.unmount_requests else {
            return Err(Error::invalid(
                "this mount belongs to `halocline run`",
                "it ends when its command does",
            ));
        };
        // A request that leaves data dirty does not wait for anyone else either.
        let mut hangs = (force || keep_dirty) && forced_unmount::hangs(&self.engine);
        let mut first = MoveReport::default();
        if !keep_dirty && !hangs {
            let flushed = if force {
                forced_unmount::flushed_unless_it_hangs(&self.engine, progress)
            } else {
                Some(flushed(&*self.engine, progress))
            };
            hangs = flushed.is_none();
            first = flushed.transpose()?.unwrap_or_default();
        }
        // The request that ends the mount reports these, even if this is not yet the end.
        self.unreported.lock().append(&mut first.conflicts);
        if first.left_bytes > 0 && !force {
            return Err(not_flushed(&first));
        }
        let (done, answer) = channel();
        unmount_requests
            .send(UnmountRequest { force, keep_dirty: keep_dirty || hangs, hangs, done })
            .map_err(|_| forced_unmount::has_ended())?;
        // The owner's thread may itself be waiting for the origin, because a signal told it to stop, or the origin
        // hangs by now.
        let last = forced_unmount::end(&self.engine, &answer, !force && !keep_dirty, &|| {
            let (_, mount) = self.mount.get()?;
            let programs = mount.programs();
            (mount.is_detached() && !programs.is_empty()).then(|| detached(&programs))
        })?;
        Ok(joined(&first, last?))
    }
}

fn not_flushed(report: &MoveReport) -> Error {
    let why = report.skipped.first().map_or_else(String::new, |skipped| {
        format!(", for example {}: {}", skipped.path.display(), skipped.reason)
    });
    Error::invalid(
        format!("{} could not be flushed{why}", text::bytes(report.left_bytes)),
        "see to that and try again, or unmount with --force: dirty data stays on the cache",
    )
}

/// Merges the results of two flushes.
pub(super) fn joined(first: &MoveReport, last: MoveReport) -> MoveReport {
    MoveReport {
        bytes: first.bytes + last.bytes,
        files: first.files.max(last.files),
        seconds: first.seconds + last.seconds,
        already_files: 0,
        clean_bytes: first.clean_bytes + last.clean_bytes,
        left_bytes: last.left_bytes,
        // Without a second attempt, the first one says why.
        skipped: if last.skipped.is_empty() && last.left_bytes > 0 {
            first.skipped.clone()
        } else {
            last.skipped
        },
        conflicts: first.conflicts.iter().cloned().chain(last.conflicts).collect(),
        not_in_order: last.not_in_order,
    }
}

/// Processes as part of a sentence.
pub(crate) fn waiting_for(pids: &[u32]) -> String {
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    let word = if pids.len() == 1 { "process" } else { "processes" };
    format!("{word} {}", pids.join(", "))
}
