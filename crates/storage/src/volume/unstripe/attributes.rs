//! Owner, mode, times and extended attributes of what is copied.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::super::origin::tree_walk::{TreeEntry, at, by_descriptor};
use super::Lacking;
use halocline_os::error::{Error, Result};
use halocline_os::posix_acl;
use halocline_vfs::namespace::xattr::hidden_xattr;

/// Copies owner, extended attributes, mode and times, in an order in which none undoes another.
pub(super) fn copy_attributes(
    from: &TreeEntry,
    to: &OwnedFd,
    shown: &Path,
    lacking: &mut Lacking,
) -> Result<()> {
    let found = &from.found;
    copy_owner(found, to, shown).map_err(Error::at(shown, "set the owner"))?;
    let (source, target) = (by_descriptor(&from.fd), by_descriptor(to));
    copy_xattrs(&source, &target, shown, lacking)
        .map_err(Error::at(shown, "set the extended attributes"))?;
    if !found.is_symlink() {
        let mode = Mode::from_raw_mode(found.mode() & 0o7777);
        rustix::fs::chmod(&target, mode).map_err(at(shown, "set the mode"))?;
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(found.atime(), found.atime_nsec()),
        last_modification: time(found.mtime(), found.mtime_nsec()),
    };
    rustix::fs::utimensat(to, "", &times, AtFlags::EMPTY_PATH).map_err(at(shown, "set the times"))
}

/// Sets the owner unless it is already right; a user who may not give files away keeps them.
fn copy_owner(found: &Metadata, to: &OwnedFd, shown: &Path) -> io::Result<()> {
    let now = rustix::fs::fstat(to)?;
    if (now.st_uid, now.st_gid) == (found.uid(), found.gid()) {
        return Ok(());
    }
    let owner = (Some(Uid::from_raw(found.uid())), Some(Gid::from_raw(found.gid())));
    match rustix::fs::chownat(to, "", owner.0, owner.1, AtFlags::EMPTY_PATH) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            tracing::warn!(path = %shown.display(), "belongs to you: only root can give files away");
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Paths by descriptors lead to a link itself. ACLs that new entries inherited from the directory of the copy are not
/// the file's, and are removed.
fn copy_xattrs(from: &Path, to: &Path, shown: &Path, lacking: &mut Lacking) -> io::Result<()> {
    for acl in [posix_acl::ACCESS, posix_acl::DEFAULT] {
        match rustix::fs::removexattr(to, acl) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            // Links and special files have none.
            Err(_) if !fs::metadata(to)?.is_file() && !fs::metadata(to)?.is_dir() => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut list = vec![0_u8; 1 << 16];
    let len = match rustix::fs::listxattr(from, &mut list) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(Errno::TOOBIG) => {
            lacking.push(Error::invalid(
                format!(
                    "{}: the names of its extended attributes take more than the 64 KiB that the kernel lists; only ACLs and capabilities are \
                     copied",
                    shown.display()
                ),
                "remove some of them from the file first (setfattr -x NAME)",
            ));
            let deciding =
                [posix_acl::ACCESS, posix_acl::DEFAULT, "security.capability"].join("\0");
            list[..deciding.len()].copy_from_slice(deciding.as_bytes());
            deciding.len()
        }
        other => other?,
    };
    let mut value = vec![0_u8; 1 << 16];
    for name in list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = OsString::from_vec(name.to_vec());
        if hidden_xattr(&name) {
            continue;
        }
        let len = match rustix::fs::getxattr(from, name.as_os_str(), &mut value) {
            // Its owner removed it meanwhile.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            other => other?,
        };
        lacking.extend(set_xattr(to, &name, &value[..len], shown).err());
    }
    Ok(())
}

/// How many and how long ones a file has is up to its owner, and what file systems hold differs: nobody else's files are kept
/// from being copied by that.
fn set_xattr(to: &Path, name: &OsStr, value: &[u8], shown: &Path) -> Result<()> {
    match rustix::fs::setxattr(to, name, value, XattrFlags::empty()) {
        // Names that only root may set, such as security labels.
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            tracing::warn!(path = %shown.display(), ?name, "the extended attribute cannot be kept");
            Ok(())
        }
        Err(errno) => Err(Error::invalid(
            format!(
                "{}: its extended attribute {} of {} bytes cannot be kept there: {}",
                shown.display(),
                name.display(),
                value.len(),
                io::Error::from(errno)
            ),
            "copy to a file system that holds it, or remove it from the file first",
        )),
        Ok(()) => Ok(()),
    }
}
