//! What a disk refuses, as far as it can be known before anything is changed.

use std::os::fd::AsFd;

use halocline_os::chattr;
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::statfs;
use rustix::fs::{Access, AtFlags, CWD, StatxFlags, accessat, statx};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use super::descriptor_path::proc_path;

/// Whether this process may change owner and mode of what is another user's.
pub(crate) fn is_above_owners() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER))
}

/// Why this process cannot give a file or directory an extended attribute; `None` if nothing is known that keeps it from that.
/// Its owner may always: permissions that he has taken from himself become withheld ones.
pub(crate) fn of_attributes(fd: &impl AsFd) -> Option<Errno> {
    let stat = stat_descriptor(fd).ok()?;
    if let Some(fixed) = of_anybody(fd) {
        return Some(fixed);
    }
    if stat.raw.st_uid == own_uid() {
        return None;
    }
    accessat(CWD, proc_path(fd), Access::WRITE_OK, AtFlags::EACCESS).err()
}

/// The same for its owner and mode.
pub(crate) fn of_owner(fd: &impl AsFd) -> Option<Errno> {
    let is_ours = || stat_descriptor(fd).is_ok_and(|stat| stat.raw.st_uid == own_uid());
    of_anybody(fd).or_else(|| (!is_ours() && !is_above_owners()).then_some(Errno::PERM))
}

/// What keeps everybody from a change: a file system that is read only, or a flag (`chattr(1)`).
fn of_anybody(fd: &impl AsFd) -> Option<Errno> {
    if statfs(fd.as_fd()).is_ok_and(|disk| disk.f_flag & libc::ST_RDONLY != 0) {
        return Some(Errno::ROFS);
    }
    let found = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()?;
    chattr::is_fixed(&found).then_some(Errno::PERM)
}

/// What to do about an error by which a disk refuses a change.
pub(crate) fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => {
            "give it to the user of the mounts (chown), take its flags away (lsattr -d; chattr -i -a), or move it away"
        }
        libc::EACCES => "give it to the user of the mounts (chown), or move it away",
        libc::ESTALE | libc::ENOENT => "see that nobody changes the disks meanwhile",
        errno => {
            let error = std::io::Error::from_raw_os_error(errno);
            halocline_os::error::remedy(&error).unwrap_or("see the kernel's log (dmesg)")
        }
    }
}
