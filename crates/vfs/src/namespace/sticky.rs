//! Removals and renames in directories with the sticky bit, where only the owner of something, or of the directory, may
//! take its name away.
//!
//! The kernel above has compared the owner of what the name led to a moment before, and others may have given the name to
//! something else since. So the file system below is asked with the caller's user id, and without the capability to act
//! for other owners: it compares the owner of what it removes.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, StatxFlags, statat, statx};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;

use super::ON_DESCRIPTOR;
use super::act_as::Ids;
use crate::Caller;
use crate::ownership::{FOWNER, Owner, acts_for};
use halocline_os::error::Result;

/// A name in an open directory.
type At<'a> = (&'a OwnedFd, &'a OsStr);

/// Takes names away by `take`, on behalf of a caller; `None` is this process. An unprivileged process leaves all to the
/// file system below, which compares with the process's own user.
pub(super) fn take_away<T>(
    by: Option<Caller>,
    names: &[At<'_>],
    take: impl Fn() -> rustix::io::Result<T>,
) -> Result<T> {
    let Some(by) = by.filter(|by| by.uid != 0 && geteuid().is_root()) else { return Ok(take()?) };
    let mut compared = Vec::new();
    for at in names {
        if is_anothers(at.0, by)? {
            compared.push(*at);
        }
    }
    if compared.is_empty() {
        return Ok(take()?);
    }
    let ids = Ids::of(by, CapabilitySet::FOWNER)?;
    let taken = take();
    drop(ids);
    match taken {
        // The file system does not know of the caller's capability, or a server of its further groups.
        Err(Errno::PERM | Errno::ACCESS) if compared.iter().all(|at| may_take(*at, by)) => {
            Ok(take()?)
        }
        taken => Ok(taken?),
    }
}

/// Whether only owners may take names away in a directory, and it is not the caller's own.
fn is_anothers(dir: &OwnedFd, by: Caller) -> Result<bool> {
    // As it is known here: a network file system need not ask its server.
    let flags = ON_DESCRIPTOR | AtFlags::STATX_DONT_SYNC;
    let found = statx(dir, "", flags, StatxFlags::MODE | StatxFlags::UID)?;
    Ok(u32::from(found.stx_mode) & libc::S_ISVTX != 0 && found.stx_uid != by.uid)
}

fn may_take((dir, name): At<'_>, by: Caller) -> bool {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => acts_for(by, Owner { uid: found.st_uid, gid: found.st_gid }, FOWNER),
        Err(errno) => errno == Errno::NOENT,
    }
}
