//! Links, pipes, sockets and devices with several names: on the shared disk, too, these are names of one inode. It has
//! one more name, its number, in `.halocline/linked`, which is closed to others: there every node finds it, whichever of
//! its names it knows, and whatever attributes it has.
//!
//! What must hold:
//! - Each name that is made for such a number is a hard link of that inode. So a change of its attributes is one of all
//!   its names, also of those that only other nodes know.
//! - Whoever sees in the store that something has several names has the disk keep its inode, before a name of it is made
//!   or compared there. So no node takes one inode for it, and another node another one.
//! - No inode is kept for two numbers.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_os::error::Result;
use halocline_os::rename_new::rename_new;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::set_attr_on;
use rustix::fs::{AtFlags, CWD, Mode, linkat, openat, unlinkat};
use rustix::io::Errno;

use super::{ITSELF, time};
use crate::acl::ACCESS;
use crate::places::descriptor_path::proc_path;
use crate::places::own_xattrs::{self, parse_number};
use crate::places::tree::Tree;
use crate::places::users_xattrs::names_on;
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

/// Keeps what is among the temporary files for a number, if there is nothing; otherwise drops it. Returns what is kept.
///
/// # Errors
/// Those of `rename(2)`.
pub(super) fn keep(tree: &Tree, temporary: &str, number: u64) -> Result<OwnedFd> {
    let dir = tree.private.sub(DIRECTORY)?;
    let kept = tree.step("keeping a link or device with several names", || {
        rename_new(&tree.tmp, temporary, &dir, number.to_string())
    });
    if kept.is_err() {
        drop_temporary(tree, temporary);
    }
    match kept {
        // Another node was faster.
        Err(error) if error.errno() == libc::EEXIST => {}
        kept => kept?,
    }
    open(tree, number)?.ok_or_else(|| Errno::STALE.into())
}

/// Drops something that was made among the temporary files.
pub(super) fn drop_temporary(tree: &Tree, temporary: &str) {
    let _gone = unlinkat(&tree.tmp, temporary, AtFlags::empty());
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
    let names = names_on(inode)?;
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
