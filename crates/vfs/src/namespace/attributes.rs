//! Reading and changing attributes.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, StatxFlags, readlinkat, statx};

use super::statx::{set_attr_on, stat_at_as, stat_descriptor_as};
use super::{Namespace, Node, ON_DESCRIPTOR};
use crate::{SetAttr, Stat};
use halocline_os::error::Result;

impl Namespace {
    /// Attributes: through the node's descriptor if it is open, otherwise by a name that still refers to the node,
    /// which then needs no descriptor.
    pub fn stat(&self, node: &Node) -> Result<Stat> {
        if let Some(fd) = node.0.cached() {
            return stat_descriptor_as(fd.as_fd(), self.freshness);
        }
        if let Some(link) = node.link()
            && let Ok(stat) =
                stat_at_as(self.descriptor(&link.parent)?.as_fd(), &link.name, self.freshness)
            && stat.key() == node.key()
        {
            return Ok(stat);
        }
        stat_descriptor_as(self.descriptor(node)?.as_fd(), self.freshness)
    }

    /// Id of the mount that the node is on, unique while that mount exists. If the kernel does not report it (before
    /// Linux 5.8), the node's device.
    pub fn mount_of(&self, node: &Node) -> Result<u64> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let found = match node.link().filter(|_| node.0.cached().is_none()) {
            Some(link) => {
                let parent = self.descriptor(&link.parent)?;
                statx(&*parent, link.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW, wanted)?
            }
            None => statx(&*self.descriptor(node)?, "", ON_DESCRIPTOR, wanted)?,
        };
        let told = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        Ok(if told {
            found.stx_mnt_id
        } else {
            libc::makedev(found.stx_dev_major, found.stx_dev_minor)
        })
    }

    /// Changes owner, mode, size and times, in an order in which none undoes another.
    pub fn set_attr(&self, node: &Node, change: &SetAttr) -> Result<Stat> {
        set_attr_on(&*self.descriptor(node)?, change)
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, node: &Node) -> Result<OsString> {
        let target = readlinkat(&*self.descriptor(node)?, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}
