//! Removes set-id bits and file capabilities when a caller without the right to keep them changes a file's contents, and
//! refuses changes of attributes by whoever is no longer the owner.
//!
//! The kernel leaves this to us (`HANDLE_KILLPRIV_V2`), which saves it a check of the extended attributes before each
//! write; we check once per inode until something may have set them again.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::Errno;
use halocline_os::error::Result;
use halocline_vfs::Allocate;
use halocline_vfs::ownership::{CHOWN, FOWNER, Owner, acts_for, is_in_group};
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

/// Permission bits of what is no directory without the set-id bits that fall; `None` if none falls. A set-group-id bit
/// without group execution stays for who is in the file's group (Linux, `setattr_should_drop_sgid`).
fn stripped(mode: u32, is_in_group: impl FnOnce() -> bool) -> Option<u32> {
    let mut lost = mode & libc::S_ISUID;
    let set_group = mode & libc::S_ISGID;
    if set_group != 0 && (mode & libc::S_IXGRP != 0 || !is_in_group()) {
        lost |= set_group;
    }
    (lost != 0).then_some((mode & 0o7777) & !lost)
}

/// Whether a change is one of the owner or group: also one that names neither, `chown(path, -1, -1)`, which comes
/// without any attribute.
fn gives_away(change: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, size, atime, mtime } = change;
    let is_other = mode.is_some() || size.is_some() || atime.is_some() || mtime.is_some();
    uid.is_some() || gid.is_some() || !is_other
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
        let raw = self.engine.stat(&inode.vnode, handle)?.raw;
        let is_regular = raw.st_mode & libc::S_IFMT == libc::S_IFREG;
        let mode = stripped(raw.st_mode, || is_in_group(caller, raw.st_gid)).filter(|_| is_regular);
        self.take_away(inode, handle, mode, caller)?;
        // What stays for who is in the group falls when somebody else writes.
        if mode.unwrap_or(raw.st_mode) & libc::S_ISGID == 0 {
            inode.set_id_check.end(look);
        }
        Ok(())
    }

    /// The change as it is to be made: with a mode that lacks the set-id bits, if it is one of the owner or group. Of a
    /// change that names neither, capabilities fall here, since the file system below is not asked for it.
    ///
    /// The kernel also asks so before somebody's write, who need not own the file. Then nothing is done here: the write
    /// takes the bits away. A stranger's `chown(path, -1, -1)` so succeeds and changes nothing, where Linux refuses it
    /// (`EPERM`) if there are bits.
    pub(super) fn with_what_falls(
        &self,
        inode: &Inode<E::Vnode>,
        handle: Option<&E::Handle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Result<SetAttr> {
        if !gives_away(change) || change.mode.is_some() {
            return Ok(*change);
        }
        let raw = self.engine.stat(&inode.vnode, handle)?.raw;
        let has_none = matches!(raw.st_mode & libc::S_IFMT, libc::S_IFDIR | libc::S_IFLNK);
        if has_none || !may_act_as(&raw, caller) {
            return Ok(*change);
        }
        let mode = stripped(raw.st_mode, || is_in_group(caller, raw.st_gid));
        if change.uid.is_none() && change.gid.is_none() {
            self.take_away(inode, handle, mode, caller)?;
            return Ok(*change);
        }
        Ok(SetAttr { mode, ..*change })
    }

    /// Gives a file this mode, if any, and takes its capabilities away.
    fn take_away(
        &self,
        inode: &Inode<E::Vnode>,
        handle: Option<&E::Handle>,
        mode: Option<u32>,
        caller: Caller,
    ) -> Result<()> {
        if let Some(mode) = mode {
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
        let is_stripped = change.mode.is_some()
            && change.mode == stripped(raw.st_mode, || is_in_group(caller, raw.st_gid));
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
        if !is_in_group(caller, raw.st_gid) && raw.st_mode & libc::S_ISGID != 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls() {
        for (mode, inside, outside) in [
            (0o4755, Some(0o755), Some(0o755)),
            (0o6755, Some(0o755), Some(0o755)),
            (0o2745, None, Some(0o745)),
            (0o6747, Some(0o2747), Some(0o747)),
            (0o644, None, None),
        ] {
            let mode = libc::S_IFREG | mode;
            assert_eq!((stripped(mode, || true), stripped(mode, || false)), (inside, outside));
        }
    }
}
