//! Where our mount is: visible to this process, or only in a view that a holder keeps. Both are unmounted and copied in
//! the same way.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use halocline_api::control::mount::MountCopy;
use halocline_os::error::Result;

use super::PrivateView;
use super::mount_point::MountPoint;

/// A mount of ours.
#[derive(Debug, Clone)]
pub(super) enum OwnMount {
    /// Visible to this process.
    Here(MountPoint),
    /// Visible in a view; its holder unmounts it.
    InView(Arc<PrivateView>),
}

impl OwnMount {
    /// Where it was made.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Here(point) => &point.path,
            Self::InView(view) => view.over(),
        }
    }

    /// The mount itself, if it is visible to this process.
    pub(super) const fn here(&self) -> Option<&MountPoint> {
        match self {
            Self::Here(point) => Some(point),
            Self::InView(_) => None,
        }
    }

    /// Other mounts of the same file system, which keep it in use.
    pub(super) fn copies(&self) -> Vec<MountCopy> {
        self.here().map_or_else(Vec::new, MountPoint::copies)
    }

    /// Descriptions of programs that have something open or mapped there; if there are many, only some.
    pub(super) fn programs(&self) -> Vec<String> {
        let on = |point: &MountPoint| super::programs::programs_on(point.number, point.device);
        self.here().map_or_else(Vec::new, on)
    }

    /// Ends the connection of the mount, even if it is still visible elsewhere.
    pub(super) fn abort(&self) -> io::Result<()> {
        let device = self.here().and_then(|point| point.device);
        super::aborting::abort(device.ok_or(io::ErrorKind::Unsupported)?)
    }

    /// Whether the mount can be unmounted; an error if another is mounted over it.
    pub(super) fn is_there(&self) -> Result<bool> {
        self.here().map_or(Ok(true), MountPoint::is_there)
    }

    /// A copy of the mount that is not attached anywhere yet.
    pub(super) fn copy(&self) -> Result<OwnedFd> {
        match self {
            Self::Here(point) => point.copy(),
            Self::InView(view) => view.copy(),
        }
    }

    /// Unmounts; `false` if it was busy and is only detached. A mount that is already gone is fine.
    pub(super) fn unmount(&self) -> Result<bool> {
        match self {
            Self::Here(point) => point.unmount(),
            Self::InView(view) => view.unmount(true),
        }
    }

    /// Unmounts unless the mount is in use; if it is, nothing changes and the result is `false`.
    pub(super) fn unmount_unused(&self) -> Result<bool> {
        match self {
            Self::Here(point) => point.unmount_unused(),
            Self::InView(view) => view.unmount(false),
        }
    }
}
