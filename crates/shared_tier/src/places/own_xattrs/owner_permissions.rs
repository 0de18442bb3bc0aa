//! Permissions that owners have taken from themselves, on the disks of an ordinary user's mount.
//!
//! The kernel checks permissions on the mount, by the modes in the store. On the disks the owner's are in the way of a
//! process that is not root: without them it can neither open a file to move it, nor read or set attributes, nor pass a
//! directory. So there the owner may always read and write, and search directories, and an attribute says what of that is
//! withheld from programs (`docs/decisions/0090-what-disks-say-of-hostile-names-and-modes.md`).
//!
//! What must hold: at each moment a mode on a disk, without what is withheld, is the mode from before a change or after it, or one
//! that gives its owner less.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::AsFd;

use halocline_os::error::Result;
use halocline_os::process_user::own_uid;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use halocline_vfs::{SetAttr, Stat};
use rustix::fs::{Mode, chmod};
use rustix::thread::{CapabilitySet, capabilities};

use super::is_without_room;
use crate::places::descriptor_path::proc_path;

/// What is withheld, as octal digits of a mode.
const WITHHELD: &str = "user.halocline.withheld";
/// The permissions of the owner.
const OWNERS: u32 = 0o700;

thread_local! {
    /// Whether the thread may change no modes.
    static ONLY_LOOKS: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, its thread leaves the modes on disks as they are: it only looks.
#[derive(Debug)]
pub(crate) struct OnlyLooking {
    before: bool,
}

impl OnlyLooking {
    pub(crate) fn begin() -> Self {
        Self { before: ONLY_LOOKS.replace(true) }
    }
}

impl Drop for OnlyLooking {
    fn drop(&mut self) {
        ONLY_LOOKS.set(self.before);
    }
}

/// The permissions without which the owner's process cannot do its work.
const fn needed(raw: &libc::stat64) -> u32 {
    match raw.st_mode & libc::S_IFMT {
        libc::S_IFREG => 0o600,
        libc::S_IFDIR => 0o700,
        _ => 0,
    }
}

/// Whether permissions of its owner bind this process.
fn binds(raw: &libc::stat64) -> bool {
    let is_above = || {
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE))
    };
    raw.st_uid == own_uid() && !is_above()
}

/// What is withheld from the owner of a file or directory. Like all attributes it is a claim, of what its owner may do.
pub(crate) fn withheld(fd: &impl AsFd) -> u32 {
    let value = xattr::get_on(fd, OsStr::new(WITHHELD)).ok();
    let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| u32::from_str_radix(text, 8).ok()).unwrap_or(0) & OWNERS
}

fn set_withheld(fd: &impl AsFd, bits: u32) -> Result<()> {
    match bits {
        0 => super::clear(fd, WITHHELD),
        bits => set_on(fd, OsStr::new(WITHHELD), format!("{bits:o}").as_bytes(), 0),
    }
}

/// The mode that programs see of something on a disk.
pub(crate) fn mode(fd: &impl AsFd, raw: &libc::stat64) -> u32 {
    let withheld = if needed(raw) == 0 { 0 } else { withheld(fd) };
    raw.st_mode & 0o7777 & !withheld
}

/// Changes owner, mode and times of a file or directory, as programs shall see them.
///
/// # Errors
/// Those of `chown(2)`, `chmod(2)`, `utimensat(2)` and `setxattr(2)`. Where an attribute finds no room, the disk has the
/// mode itself.
pub(crate) fn set_attr(fd: &impl AsFd, change: &SetAttr) -> Result<Stat> {
    let Some(mode) = change.mode else { return set_attr_on(fd, change) };
    let raw = stat_descriptor(fd)?.raw;
    let before = withheld(fd);
    let mut after = if binds(&raw) { needed(&raw) & !mode } else { 0 };
    if before | after != before {
        match set_withheld(fd, before | after) {
            Err(error) if is_without_room(&error) => after = 0,
            set => set?,
        }
    }
    let changed = set_attr_on(fd, &SetAttr { mode: Some(mode | after), ..*change })?;
    if before | after != after {
        set_withheld(fd, after)?;
    }
    Ok(changed)
}

/// An ACL has given something its mode: withholds what its owner has lost by that.
pub(crate) fn follow_acl(fd: &impl AsFd) -> Result<()> {
    let raw = stat_descriptor(fd)?.raw;
    if !binds(&raw) && withheld(fd) == 0 {
        return Ok(());
    }
    let change = SetAttr { mode: Some(raw.st_mode & 0o7777), ..SetAttr::default() };
    set_attr(fd, &change).map(drop)
}

/// Makes a call on a file or directory. If the disk refuses it to the owner for the mode, as it does where an earlier
/// version, a tier of one node or root's mount has set that, the permissions become withheld ones, and the call is made again.
///
/// # Errors
/// Those of the call.
pub(crate) fn permitted<T>(fd: &impl AsFd, call: impl Fn() -> Result<T>) -> Result<T> {
    match call() {
        Err(error) if error.errno() == libc::EACCES && withholds_missing(fd).unwrap_or(false) => {
            call()
        }
        done => done,
    }
}

/// Lets this process into a directory on whose disk the owner has no permissions, if it is the owner's.
pub(crate) fn admit(directory: &impl AsFd) {
    if let Err(error) = withholds_missing(directory) {
        tracing::debug!(%error, "a directory without its owner's permissions");
    }
}

/// Withholds the permissions that the disk does not give to the owner; returns whether there are any.
fn withholds_missing(fd: &impl AsFd) -> Result<bool> {
    let raw = stat_descriptor(fd)?.raw;
    let missing = needed(&raw) & !raw.st_mode;
    if missing == 0 || !binds(&raw) || ONLY_LOOKS.get() {
        return Ok(false);
    }
    let mode = |bits: u32| chmod(proc_path(fd), Mode::from_raw_mode(bits & 0o7777));
    // In this order: without the permission to write there are no attributes to be set.
    mode(raw.st_mode | missing)?;
    let value = format!("{:o}", withheld(fd) | missing);
    let set = xattr::set_on(fd, OsStr::new(WITHHELD), value.as_bytes(), 0);
    if set.is_err() {
        mode(raw.st_mode)?;
    }
    set.map(|()| true)
}

/// As [`xattr::get_on`], if need be with [permissions](permitted) of the owner.
pub(crate) fn get_on(fd: &impl AsFd, name: &OsStr) -> Result<Vec<u8>> {
    permitted(fd, || xattr::get_on(fd, name))
}

/// As [`xattr::set_on`], in the same way.
pub(crate) fn set_on(fd: &impl AsFd, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
    permitted(fd, || xattr::set_on(fd, name, value, flags))
}

/// As [`xattr::remove_on`], in the same way.
pub(crate) fn remove_on(fd: &impl AsFd, name: &OsStr) -> Result<()> {
    permitted(fd, || xattr::remove_on(fd, name))
}

#[cfg(test)]
mod tests;
