//! Directories on an SSD: they are made as files there need them.
//!
//! The store keeps the whole path of a file on an SSD, so these directories are limited in depth. On the shared disk a
//! place is the number of a directory and a name in it, and directories may be as deep as programs make them.

use std::os::fd::OwnedFd;

use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_cluster::names::attributes::RelativePath;
use halocline_os::error::{Error, Result};
use halocline_os::process_user::own_uid;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::stat_descriptor;
use rustix::io::Errno;

use super::own_xattrs::{self, owner_permissions::set_attr};
use super::tree::{FoundDirectory, Owner, Tree, child};
use super::{DirectoryStep, directory_times};

/// The longest path of a directory on an SSD: there is room for a name in it.
pub(crate) const BYTES_MAX: usize = RelativePath::BYTES_MAX - 1 - NAME_BYTES_MAX;

/// The error's number for a directory that is deeper.
pub(crate) const TOO_DEEP: i32 = libc::ENAMETOOLONG;

/// The directory to which steps from the root lead; missing ones are made, closed to others.
///
/// # Errors
/// `ENAMETOOLONG` if it is [too deep](BYTES_MAX).
pub(crate) fn find_or_make(ssd: &Tree, steps: &[DirectoryStep]) -> Result<FoundDirectory> {
    if steps.iter().map(|step| step.name.as_bytes().len() + 1).sum::<usize>() > BYTES_MAX {
        return Err(too_deep());
    }
    if let Some(found) = ssd.find(steps)? {
        return if is_too_deep(&found) { Err(too_deep()) } else { Ok(found) };
    }
    let closed = Owner { mode: 0o700, uid: own_uid(), gid: rustix::process::getegid().as_raw() };
    let mut found: FoundDirectory = (ssd.look(None)?, None);
    for step in steps {
        found = match child(&found, step)? {
            Some(below) => below,
            // If another thread has made it meanwhile, ours gets the other name: both are found.
            None => match directory_times::make_mirror(ssd, &found, step, closed) {
                Err(error) if error.errno() == libc::EEXIST => {
                    child(&found, step)?.ok_or(Errno::EXIST)?
                }
                made => made?,
            },
        };
        if is_too_deep(&found) {
            return Err(too_deep());
        }
    }
    Ok(found)
}

/// Gives a directory that no mount has made its number. Nobody but us may change that, so it is closed to others first, like those
/// that we make.
///
/// # Errors
/// Those of `chmod(2)`, `chown(2)` and `setxattr(2)`.
pub(crate) fn number_by_hand(ssd: &Tree, directory: &OwnedFd, number: u64) -> Result<()> {
    let (uid, gid) = (own_uid(), rustix::process::getegid().as_raw());
    let raw = stat_descriptor(directory)?.raw;
    let closed = SetAttr {
        mode: Some(0o700),
        uid: (raw.st_uid != uid).then_some(uid),
        gid: (raw.st_gid != gid).then_some(gid),
        ..SetAttr::default()
    };
    ssd.step("closing a directory", || set_attr(directory, &closed).map(drop))?;
    ssd.step("numbering a directory", || {
        own_xattrs::set_number(directory, own_xattrs::DIRECTORY, number)
    })
}

/// The error for a directory that is too deep.
pub(crate) fn too_deep() -> Error {
    Error::Refused {
        message: "its directory is too deep for an SSD: files in it stay where they are, and can go to the shared disk"
            .to_owned(),
        errno: TOO_DEEP,
    }
}

fn is_too_deep((_, path): &FoundDirectory) -> bool {
    path.as_ref().is_some_and(|path| path.as_bytes().len() > BYTES_MAX)
}
