//! A mount of ours, identified by path and mount id, and `umount(2)` on it, or `fusermount3` if this user may not call
//! that.
//!
//! What must hold: only our own mount is unmounted. On the same path there may also be the mount of the origin's disk
//! below, or a mount that someone made over ours.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use halocline_api::control::mount::{self, MountCopy, MountState};
use halocline_os::error::{Error, Result};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags};

use super::fusermount::with_helper;

/// How often a busy mount is tried before it is detached, and the pause between tries.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// A mount of ours that this process can see.
#[derive(Debug, Clone)]
pub(super) struct MountPoint {
    /// Where it was made.
    pub(super) path: PathBuf,
    /// Its mount id.
    pub(super) number: u64,
    /// Major and minor number of its file system's device.
    pub(super) device: Option<(u64, u64)>,
}

impl MountPoint {
    /// The mount that was just made on `path`.
    pub(super) fn of_new_mount(path: &Path) -> Result<Self> {
        let number = mount::number_on(path).map_err(Error::at(path, "find the mount on"))?;
        let gone = || Error::at(path, "mount on")(io::ErrorKind::NotFound.into());
        let number = number.ok_or_else(gone)?;
        let device = mount::device_of(number).map_err(Error::at(path, "find the mount on"))?;
        Ok(Self { path: path.to_owned(), number, device })
    }

    /// Other mounts of the same file system, which keep it in use.
    pub(super) fn copies(&self) -> Vec<MountCopy> {
        self.device.map_or_else(Vec::new, |device| mount::copies(device, self.number))
    }

    /// Whether the mount can be unmounted; an error if another is mounted over it.
    pub(super) fn is_there(&self) -> Result<bool> {
        let state = mount::state(&self.path, self.number);
        match state.map_err(Error::at(&self.path, "look for the mount on"))? {
            MountState::OnTop => Ok(true),
            MountState::Gone => Ok(false),
            MountState::Covered => Err(Error::invalid(
                format!("{}: something else is mounted over it", self.path.display()),
                "unmount that first",
            )),
        }
    }

    /// A copy of the mount that is not attached anywhere yet.
    pub(super) fn copy(&self) -> Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        rustix::mount::open_tree(CWD, &self.path, flags)
            .map_err(|errno| Error::at(&self.path, "copy the mount on")(errno.into()))
    }

    /// Unmounts; `false` if it was busy and is only detached. A mount that is already gone is fine.
    pub(super) fn unmount(&self) -> Result<bool> {
        if self.unmount_unused()? {
            return Ok(true);
        }
        match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
            Ok(()) => Ok(false),
            Err(Errno::INVAL | Errno::NOENT) => Ok(true),
            Err(Errno::PERM) => {
                let detached = with_helper(&self.path, &["-u", "-z"])?;
                if detached.status.success() {
                    return Ok(false);
                }
                let said = String::from_utf8_lossy(&detached.stderr);
                let path = self.path.display();
                Err(Error::invalid(
                    format!("{path}: {}", said.trim()),
                    format!("close what uses the mount and run: fusermount3 -u {path}"),
                ))
            }
            Err(errno) => Err(Error::at(&self.path, "detach")(errno.into())),
        }
    }

    /// Unmounts unless the mount is in use; if it is, nothing changes and the result is `false`. A mount that is
    /// already gone is fine.
    pub(super) fn unmount_unused(&self) -> Result<bool> {
        for attempt in 1..=TRIES {
            if !self.is_there()? {
                return Ok(true);
            }
            let busy = match rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => return Ok(true),
                Err(Errno::BUSY) => true,
                Err(Errno::PERM) => !with_helper(&self.path, &["-u", "-q"])?.status.success(),
                Err(errno) => return Err(Error::at(&self.path, "unmount")(errno.into())),
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
}
