//! Removes set-id bits and file capabilities when a caller without the right to keep them changes a file's contents, and
//! refuses changes of attributes by whoever is no longer the owner.
//!
//! The kernel leaves this to us (`HANDLE_KILLPRIV_V2`), which saves it a check of the extended attributes before each
//! write; we check once per inode until something may have set them again.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::Errno;
use halocline_os::error::Result;
use halocline_os::process_status::ProcessStatus;
use halocline_vfs::Allocate;
use halocline_vfs::ownership::{CHOWN, FOWNER, Owner, acts_for};
use halocline_vfs::{Caller, Engine, SetAttr, SetTime, Stat};

use super::inode_table::Inode;
use super::{Answer, Refused};

const CAPABILITY: &str = "security.capability";

/// Notes set-id bits found in a `stat`.
pub(super) fn notice<N>(inode: &Inode<N>, stat: &Stat) {
    if stat.raw.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 {
        forget(inode);
    }
}

/// Makes the next write check again.
pub(super) fn forget<N>(inode: &Inode<N>) {
    inode.set_id_check.changed();
}

/// Permission bits without those that a change of the contents removes; `None` if nothing is removed. A set-group-id
/// bit without group execution means mandatory locking and stays.
pub(super) fn stripped(mode: u32) -> Option<u32> {
    let mut lost = mode & libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        lost |= mode & libc::S_ISGID;
    }
    let regular = mode & libc::S_IFMT == libc::S_IFREG;
    (regular && lost != 0).then_some((mode & 0o7777) & !lost)
}

/// Removes privileges from files.
#[derive(Debug)]
pub(super) struct Privileges<E> {
    pub(super) engine: Arc<E>,
}

impl<E: Engine> Privileges<E> {
    /// Removes privileges from a file whose contents the caller is about to change.
    pub(super) fn drop_all(
        &self,
        inode: &Inode<E::Vnode>,
        handle: Option<&E::Handle>,
        caller: Caller,
    ) -> Result<()> {
        if handle.is_some_and(|handle| self.engine.was_given_privileges(handle)) {
            forget(inode);
        }
        let Some(look) = inode.set_id_check.begin() else { return Ok(()) };
        self.look_and_drop(inode, handle, caller)?;
        inode.set_id_check.end(look);
        Ok(())
    }

    fn look_and_drop(
        &self,
        inode: &Inode<E::Vnode>,
        handle: Option<&E::Handle>,
        caller: Caller,
    ) -> Result<()> {
        let mode = self.engine.stat(&inode.vnode, handle)?.raw.st_mode;
        if let Some(mode) = stripped(mode) {
            let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
            match self.engine.set_attr(&inode.vnode, handle, &change, caller) {
                // A user's mount may not change the mode of another user's file, and need not: the origin's kernel
                // removes the bits when such a user changes the contents. That may happen only at a flush; this call,
                // which changes no contents, does it now if it can.
                Err(error) if error.errno() == libc::EPERM => {
                    let reserve =
                        |handle| self.engine.allocate(handle, 0, 1, Allocate::ReserveKeepSize);
                    let _now = handle.map(reserve);
                }
                changed => drop(changed?),
            }
        }
        match self.engine.remove_xattr(&inode.vnode, OsStr::new(CAPABILITY)) {
            Err(error)
                if !matches!(error.errno(), libc::ENODATA | libc::EOPNOTSUPP | libc::EPERM) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a change of attributes by a caller who no longer owns the file. The kernel compares with the owner that
    /// it saw last, and does not ask for the present one of an open file; another node, or somebody behind the mount,
    /// may have given the file to someone else since.
    pub(super) fn check_owner_for(
        &self,
        inode: &Inode<E::Vnode>,
        handle: Option<&E::Handle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Answer<()> {
        let sets_time = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let is_owners = change.mode.is_some()
            || change.uid.is_some()
            || change.gid.is_some()
            || sets_time(change.atime)
            || sets_time(change.mtime);
        if !is_owners || is_exempt(caller) {
            return Ok(());
        }
        let raw = self.engine.stat(&inode.vnode, handle)?.raw;
        // A kernel without `HANDLE_KILLPRIV_V2` removes the bits by itself before somebody's write.
        let is_stripped = change.mode.is_some() && change.mode == stripped(raw.st_mode);
        if is_stripped || may_act_as(&raw, caller) {
            return Ok(());
        }
        Err(Refused(Errno::EPERM))
    }

    /// The same for a change of an ACL.
    pub(super) fn check_owner(&self, inode: &Inode<E::Vnode>, caller: Caller) -> Answer<()> {
        if is_exempt(caller) {
            return Ok(());
        }
        let raw = self.engine.stat(&inode.vnode, None)?.raw;
        if may_act_as(&raw, caller) { Ok(()) } else { Err(Refused(Errno::EPERM)) }
    }

    /// Removes the set-group-id bit when a caller outside the file's group sets its ACL: the ACL's mask replaces the
    /// group permission on which the bit relied.
    pub(super) fn after_acl_change(&self, inode: &Inode<E::Vnode>, caller: Caller) -> Result<()> {
        let raw = self.engine.stat(&inode.vnode, None)?.raw;
        let outside = caller.uid != 0 && !in_group(caller, raw.st_gid);
        if outside && raw.st_mode & libc::S_ISGID != 0 {
            let mode = Some(raw.st_mode & 0o7777 & !libc::S_ISGID);
            let change = SetAttr { mode, ..SetAttr::default() };
            self.engine.set_attr(&inode.vnode, None, &change, caller)?;
        }
        Ok(())
    }
}

/// Whether the owner does not matter: for root, and for the user whose mount it is, whom the file system below checks.
fn is_exempt(caller: Caller) -> bool {
    caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw()
}

/// Whether the caller owns what has these attributes, or has a capability to act as if.
fn may_act_as(raw: &libc::stat64, caller: Caller) -> bool {
    acts_for(caller, Owner { uid: raw.st_uid, gid: raw.st_gid }, CHOWN | FOWNER)
}

/// Whether the caller's process has the group, including its supplementary groups.
fn in_group(caller: Caller, gid: u32) -> bool {
    if caller.gid == gid {
        return true;
    }
    let status = ProcessStatus::of(caller.pid);
    status.is_ok_and(|status| status.numbers("Groups").any(|group| group == gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_write_takes_away() {
        assert_eq!(stripped(libc::S_IFREG | 0o4755), Some(0o755));
        assert_eq!(stripped(libc::S_IFREG | 0o6755), Some(0o755));
        assert_eq!(stripped(libc::S_IFREG | 0o2745), None);
        assert_eq!(stripped(libc::S_IFREG | 0o644), None);
        assert_eq!(stripped(libc::S_IFDIR | 0o2775), None);
    }
}
