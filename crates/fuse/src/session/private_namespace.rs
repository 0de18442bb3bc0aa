//! A mount namespace visible only to this process and its children.

use std::fs;

use halocline_os::error::{Error, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Enters a private mount namespace: later mounts are invisible to all others. For an ordinary user it is inside a new
/// user namespace, in which the user and group id stay the same.
///
/// The process must have only one thread (`EINVAL` otherwise for an ordinary user).
pub fn private_namespace() -> Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mut flags = UnshareFlags::NEWNS;
    if uid != 0 {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: no descriptor table is split (CLONE_FILES is not among the flags).
    unsafe { unshare_unsafe(flags) }.map_err(|errno| {
        if uid == 0 || errno == rustix::io::Errno::INVAL {
            return Error::from(errno);
        }
        Error::invalid(
            format!("this system lets ordinary users make no user namespaces ({errno})"),
            "as root: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000 \
             kernel.apparmor_restrict_unprivileged_userns=0 (those that exist), or run as root",
        )
    })?;
    if uid != 0 {
        map_own_ids(uid, gid)?;
    }
    // Mounts must not propagate back to the original namespace. Unmounts there must propagate here; otherwise this
    // namespace would keep a shared mount busy.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|errno| Error::at("/", "make the mounts private below")(errno.into()))
}

fn map_own_ids(uid: u32, gid: u32) -> Result<()> {
    for (file, map) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{uid} {uid} 1")),
        ("/proc/self/gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(file, map).map_err(Error::at(file, "write"))?;
    }
    Ok(())
}
