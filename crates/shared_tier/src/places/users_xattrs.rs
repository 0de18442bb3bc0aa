//! Extended attributes that programs set.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use halocline_os::error::Result;
use halocline_vfs::namespace::xattr;
use rustix::io::Errno;

use super::tree::Tree;

/// Refuses own attributes, which programs may not touch.
fn check_xattr(name: &OsStr) -> Result<()> {
    if xattr::hidden_xattr(name) { Err(Errno::PERM.into()) } else { Ok(()) }
}

pub(crate) fn set_xattr(
    tree: &Tree,
    fd: &OwnedFd,
    name: &OsStr,
    value: &[u8],
    flags: i32,
) -> Result<()> {
    check_xattr(name)?;
    tree.step("setting an extended attribute", || xattr::set_on(fd, name, value, flags))
}

pub(crate) fn remove_xattr(tree: &Tree, fd: &OwnedFd, name: &OsStr) -> Result<()> {
    check_xattr(name)?;
    tree.step("removing an extended attribute", || xattr::remove_on(fd, name))
}
