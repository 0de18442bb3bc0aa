//! What a removed name referred to.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};

use super::Vnode;
use super::statx::{Freshness, stat_descriptor, stat_descriptor_as};
use super::vnode::VnodeTable;
use crate::Stat;
use halocline_os::error::Result;

/// The inode to which a removed name referred.
#[derive(Debug, Clone)]
pub struct Removed {
    /// Device and inode number.
    pub key: (u64, u64),
    /// Whether that was the inode's last name.
    pub last: bool,
    /// The vnode, if it is live; it stays usable.
    pub vnode: Option<Vnode>,
    /// Attributes just before the removal.
    pub stat: Stat,
    /// The live vnode's descriptor, kept until the vnode itself holds it.
    fd: Option<Arc<OwnedFd>>,
    /// What the name referred to when it was examined.
    seen: Arc<OwnedFd>,
}

impl Removed {
    /// An `O_PATH` descriptor of what the name referred to.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.seen
    }

    /// Examines what a name in the directory `dir` refers to, before it is removed, and keeps a descriptor for its live
    /// vnode, if there is one.
    pub(super) fn examine(
        vnodes: &VnodeTable,
        dir: &OwnedFd,
        (parent, name): (&Vnode, &OsStr),
    ) -> Result<Self> {
        // Opened before it is examined, so that the descriptor is of what was examined.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let seen = Arc::new(openat(dir, name, flags, Mode::empty())?);
        let stat = stat_descriptor(&*seen)?;
        let vnode = vnodes.find(stat.key());
        let fd = vnode.as_ref().map(|vnode| {
            vnode.add_link(parent, name, is_directory(&stat));
            vnode.0.cached().unwrap_or_else(|| seen.clone())
        });
        let last = is_directory(&stat) || stat.raw.st_nlink <= 1;
        Ok(Self { key: stat.key(), last, vnode, stat, fd, seen })
    }

    /// Looks, after a name was removed, whether it was the last one: others may have given the inode another name since
    /// it was examined.
    pub(super) fn count_names(&mut self, freshness: Freshness) {
        if self.is_directory() {
            return;
        }
        // A network file system may no longer answer for a file without names: then it is as it was before.
        if let Ok(now) = stat_descriptor_as(self.seen.as_fd(), freshness) {
            self.last = now.raw.st_nlink == 0;
        }
    }

    /// Removes the name from the vnode; if it was the last one, the descriptor stays with the vnode.
    pub(super) fn forget_name(&mut self, vnodes: &VnodeTable, parent: &Vnode, name: &OsStr) {
        if let (Some(vnode), Some(fd)) = (&self.vnode, self.fd.take()) {
            vnode.remove_link(parent, name);
            if vnode.link().is_none() {
                vnodes.descriptors.keep(vnode, fd);
            }
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        is_directory(&self.stat)
    }
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    stat.kind() == libc::S_IFDIR
}
