//! Links, pipes, sockets and devices with several names: on the shared disk, too, these are names of one inode. It has
//! one more name, its number, in `.halocline/linked`, which is closed to others: there every node finds it, whichever of
//! its names it knows, and whatever attributes it has.
//!
//! What must hold: each name that is made for such a number is a hard link of that inode. So a change of its attributes
//! is one of all its names, also of those that only other nodes know.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_os::rename_new::rename_new;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use rustix::fs::{AtFlags, CWD, Mode, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::{ITSELF, make_unnamed, time};
use crate::acl::ACCESS;
use crate::places::descriptor_path::proc_path;
use crate::places::own_xattrs::{self, parse_number};
use crate::places::tree::{FoundDirectory, Tree, fresh};
use crate::stat_conversion::joined;

/// The directory, in the private one of the shared disk.
const DIRECTORY: &str = "linked";

/// Opens the inode with a number, with `O_PATH`; `None` if it never had several names.
///
/// # Errors
/// Those of `open(2)`.
pub(crate) fn open(tree: &Tree, number: u64) -> Result<Option<OwnedFd>> {
    match openat(&tree.private, format!("{DIRECTORY}/{number}"), ITSELF, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// The same, but makes it: of what is at one of its names as the store has it, or else anew.
///
/// # Errors
/// Those of `link(2)` and `mknod(2)`.
pub(crate) fn open_or_make(
    tree: &Tree,
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
) -> Result<OwnedFd> {
    if let Some(found) = open(tree, number)? {
        return Ok(found);
    }
    let dir = tree.private.sub(DIRECTORY)?;
    let made = if let Some(fd) = super::open(above, (name, number), of)? {
        tree.step("keeping a link or device with several names", || {
            linkat(CWD, proc_path(&fd), &dir, number.to_string(), AtFlags::SYMLINK_FOLLOW)
        })
    } else {
        make(tree, &dir, number, of)
    };
    match made {
        // Another node was faster.
        Err(error) if error.errno() == libc::EEXIST => {}
        made => made?,
    }
    open(tree, number)?.ok_or_else(|| Errno::STALE.into())
}

/// Makes one in the directory of all of them.
fn make(tree: &Tree, dir: &PrivateDir, number: u64, of: &Attributes) -> Result<()> {
    let temporary = fresh("o", number);
    let made = tree.step("making a link or device", || {
        make_unnamed(&tree.tmp, &temporary, of)?;
        rename_new(&tree.tmp, &temporary, dir, number.to_string()).map_err(Error::from)
    });
    made.inspect_err(|_| {
        let _gone = unlinkat(&tree.tmp, &temporary, AtFlags::empty());
    })
}

/// Gives the inode one more name, among the temporary files.
pub(super) fn link(tree: &Tree, inode: &OwnedFd, temporary: &str) -> Result<()> {
    Ok(linkat(CWD, proc_path(inode), &tree.tmp, temporary, AtFlags::SYMLINK_FOLLOW)?)
}

/// Whether two descriptors are of one inode.
///
/// # Errors
/// Those of `stat(2)`.
pub(crate) fn are_one(one: &OwnedFd, other: &OwnedFd) -> Result<bool> {
    Ok(stat_descriptor(one)?.key() == stat_descriptor(other)?.key())
}

/// Gives it the attributes that the store has.
///
/// # Errors
/// Those of `chmod(2)`, `chown(2)` and `setxattr(2)`.
pub(crate) fn bring_up_to_date(tree: &Tree, inode: &OwnedFd, of: &Attributes) -> Result<()> {
    let raw = stat_descriptor(inode)?.raw;
    let is_link = of.kind == Kind::Symlink;
    let change = SetAttr {
        mode: (!is_link && raw.st_mode & 0o7777 != of.mode).then_some(of.mode),
        uid: (raw.st_uid != of.uid).then_some(of.uid),
        gid: (raw.st_gid != of.gid).then_some(of.gid),
        ..SetAttr::default()
    };
    let change = if joined(raw.st_mtime, raw.st_mtime_nsec) == of.mtime_ns {
        change
    } else {
        SetAttr { atime: Some(time(of.atime_ns)), mtime: Some(time(of.mtime_ns)), ..change }
    };
    tree.step("setting attributes of a link or device", || {
        for (name, value) in &of.xattrs {
            own_xattrs::set_users(inode, name, value)?;
        }
        for name in xattrs(inode)? {
            if !of.xattrs.contains_key(&name) {
                own_xattrs::clear(inode, OsStr::from_bytes(&name))?;
            }
        }
        // Last: an ACL changes the mode.
        set_attr_on(inode, &change).map(drop)
    })
}

/// The names of those extended attributes that programs have given.
fn xattrs(inode: &OwnedFd) -> Result<Vec<Vec<u8>>> {
    let names = match xattr::list_on(inode) {
        Err(error) if error.errno() == libc::EOPNOTSUPP => return Ok(Vec::new()),
        names => names?,
    };
    let is_users = |name: &&[u8]| {
        *name == ACCESS || name.starts_with(b"trusted.") && !name.starts_with(b"trusted.overlay.")
    };
    Ok(names.split(|byte| *byte == 0).filter(is_users).map(<[u8]>::to_vec).collect())
}

/// It has lost its last name.
///
/// # Errors
/// Those of `unlink(2)`, except that one that is gone is none.
pub(crate) fn forget(tree: &Tree, number: u64) -> Result<()> {
    let path = format!("{DIRECTORY}/{number}");
    let unlink = || unlinkat(&tree.private, &path, AtFlags::empty());
    match tree.step("forgetting a link or device with several names", unlink) {
        Err(error) if error.errno() == libc::ENOENT => Ok(()),
        done => done,
    }
}

/// The numbers of all of them.
///
/// # Errors
/// If the directory cannot be read.
pub(crate) fn numbers(tree: &Tree) -> Result<Vec<u64>> {
    let names = tree.private.sub(DIRECTORY)?.names()?.into_iter();
    Ok(names.filter_map(|name| parse_number(name.as_encoded_bytes())).collect())
}
