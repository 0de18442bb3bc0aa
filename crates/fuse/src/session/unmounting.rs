//! `umount(2)`, or `fusermount3` where this user may not call it.
//!
//! What must hold: only our own mount is unmounted. The same path may be that of the origin's disk
//! below, and of whatever somebody mounted over us.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use halocline_api::control::mount::{self, MountCopy, Standing};
use halocline_os::error::{Error, Result};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags};

use super::PrivateView;

/// How often and how long a busy mount is tried before it is detached.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// The programs that unmount for an ordinary user, which may lie outside its path.
const HELPERS: [&str; 4] = ["fusermount3", "fusermount", "/bin/fusermount3", "/bin/fusermount"];

/// A mount of ours.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Where it was made.
    pub(super) path: PathBuf,
    /// Its number among the mounts.
    pub(super) number: u64,
    /// Major and minor number of its file system's device.
    pub(super) device: Option<(u64, u64)>,
    /// Who unmounts it where this process does not see it.
    view: Option<Arc<PrivateView>>,
}

impl Place {
    /// The mount that was just made on `path`.
    pub(super) fn of_new_mount(path: &Path) -> Result<Self> {
        let number = mount::number_on(path).map_err(Error::at(path, "find the mount on"))?;
        let gone = || Error::at(path, "mount on")(io::ErrorKind::NotFound.into());
        let number = number.ok_or_else(gone)?;
        let device = mount::device_of(number).map_err(Error::at(path, "find the mount on"))?;
        Ok(Self { path: path.to_owned(), number, device, view: None })
    }

    /// The mount that is seen in a view.
    pub(super) fn in_view(view: &Arc<PrivateView>) -> Self {
        Self { path: view.over().to_owned(), number: 0, device: None, view: Some(Arc::clone(view)) }
    }

    /// Where else the mount's file system is seen, which keeps it alive.
    pub(super) fn copies(&self) -> Vec<MountCopy> {
        self.device.map_or_else(Vec::new, |device| mount::copies(device, self.number))
    }

    /// Ends the connection of the mount whatever still sees it.
    pub(super) fn abort(&self) -> io::Result<()> {
        super::aborting::abort(self.device.ok_or(io::ErrorKind::Unsupported)?)
    }

    /// Whether the mount is there to be unmounted; an error where another is over it.
    pub(super) fn is_there(&self) -> Result<bool> {
        if self.view.is_some() {
            return Ok(true);
        }
        let standing = mount::standing(&self.path, self.number);
        match standing.map_err(Error::at(&self.path, "look for the mount on"))? {
            Standing::OnTop => Ok(true),
            Standing::Gone => Ok(false),
            Standing::Covered => Err(Error::invalid(
                format!("{}: something else is mounted over it", self.path.display()),
                "unmount that first",
            )),
        }
    }
}

/// A copy of the mount that is nowhere yet.
pub(super) fn copy(place: &Place) -> Result<OwnedFd> {
    if let Some(view) = &place.view {
        return view.copy();
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, &place.path, flags)
        .map_err(|errno| Error::at(&place.path, "copy the mount on")(errno.into()))
}

/// Unmounts; `false` if it was busy and is detached only. A mount that is gone already is fine.
pub(super) fn unmount(place: &Place) -> Result<bool> {
    if let Some(view) = &place.view {
        return view.unmount(true);
    }
    if unmount_unused(place)? {
        return Ok(true);
    }
    match rustix::mount::unmount(&place.path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) => Ok(false),
        Err(Errno::INVAL | Errno::NOENT) => Ok(true),
        Err(Errno::PERM) => {
            let detached = with_helper(&place.path, &["-u", "-z"])?;
            if detached.status.success() {
                return Ok(false);
            }
            let said = String::from_utf8_lossy(&detached.stderr);
            Err(Error::invalid(
                format!("{}: {}", place.path.display(), said.trim()),
                format!(
                    "close what uses the mount and run: fusermount3 -u {}",
                    place.path.display()
                ),
            ))
        }
        Err(errno) => Err(Error::at(&place.path, "detach")(errno.into())),
    }
}

/// Unmounts unless the mount is in use; `false` if it is, and then nothing has changed. A mount
/// that is gone already is fine.
pub(super) fn unmount_unused(place: &Place) -> Result<bool> {
    if let Some(view) = &place.view {
        return view.unmount(false);
    }
    for attempt in 1..=TRIES {
        if !place.is_there()? {
            return Ok(true);
        }
        let busy = match rustix::mount::unmount(&place.path, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => return Ok(true),
            Err(Errno::BUSY) => true,
            Err(Errno::PERM) => !with_helper(&place.path, &["-u", "-q"])?.status.success(),
            Err(errno) => return Err(Error::at(&place.path, "unmount")(errno.into())),
        };
        if !busy {
            return Ok(true);
        }
        if attempt < TRIES {
            thread::sleep(BETWEEN_TRIES);
        }
    }
    Ok(false)
}

/// Runs what an ordinary user outside a user namespace needs for unmounting `mountpoint`.
///
/// # Errors
/// There is no such program.
pub fn with_helper(mountpoint: &Path, options: &[&str]) -> Result<Output> {
    run_helper(|command| {
        command.args(options).arg("--").arg(mountpoint);
        Ok(())
    })
}

/// Runs the program that mounts and unmounts for an ordinary user, prepared by `prepare`.
pub(super) fn run_helper(prepare: impl Fn(&mut Command) -> io::Result<()>) -> Result<Output> {
    let mut missing = None;
    for helper in HELPERS {
        let mut command = Command::new(helper);
        prepare(&mut command)?;
        match command.output() {
            Ok(output) => return Ok(output),
            Err(error) => missing = missing.or(Some(error)),
        }
    }
    Err(Error::invalid(
        format!("fusermount3 cannot be run: {}", missing.expect("there are names to try")),
        "install fuse3, or unmount as root",
    ))
}
