//! What a name on the shared disk leads to, of links, pipes, sockets and devices. Their looks do not say it: many pipes
//! have the same owner and mode.
//!
//! What must hold: a name is taken for that of an object of the store only
//! - if it leads to the inode that the disk has for the number of the object ([`several_names`]), or,
//! - if the disk has none, because the object never had several names, to an inode that looks like it, also by its time,
//!   and has no other name: that is nothing that the disk has for another number.
//!
//! So what several names lead to is never taken for something else. What has one name, and is like another one with
//! one name in all of this, may stand for that.

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, openat, readlinkat};
use rustix::io::Errno;

use super::several_names;
use super::{At, ITSELF, Inode, NS_PER_S};
use crate::entry_names::os;
use crate::places::tree::{FoundDirectory, Tree, candidates};
use crate::stat_conversion::{file_type, joined};

const NS_PER_US: i64 = 1_000;

/// Opens an object at its name or beside that, with [`OFlags::PATH`](rustix::fs::OFlags::PATH); `None` if it is not there.
/// One that the disk knows by its number may look otherwise.
///
/// # Errors
/// Those of `open(2)` and `stat(2)`.
pub(crate) fn open(
    tree: &Tree,
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
) -> Result<Option<OwnedFd>> {
    for name in candidates(name, number) {
        if let Some(found) = at((above, &name))?
            && is_object(tree, &found, (number, of), None)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Opens what looks like an object at its name or beside that; it may be another one.
///
/// # Errors
/// Those of `open(2)` and `stat(2)`.
pub(super) fn look_alike(
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
) -> Result<Option<OwnedFd>> {
    for name in candidates(name, number) {
        if let Some(found) = at((above, &name))?
            && looks_like(&found, of)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether an object is at a name, however it looks if the disk knows it by its number.
///
/// # Errors
/// Those of `open(2)` and `stat(2)`.
pub(crate) fn is_at(tree: &Tree, name: At<'_>, of: (u64, &Attributes)) -> Result<bool> {
    at(name)?.map_or(Ok(false), |found| is_object(tree, &found, of, None))
}

/// Whether an object is at a name, and looks as the store has it, or is what was `placed` there.
///
/// # Errors
/// Those of `open(2)` and `stat(2)`.
pub(crate) fn is_as_in_store(
    tree: &Tree,
    name: At<'_>,
    (number, of): (u64, &Attributes),
    placed: Option<Inode>,
) -> Result<bool> {
    let Some(found) = at(name)? else { return Ok(false) };
    let is_placed = placed == Some(stat_descriptor(&found)?.key());
    Ok(is_object(tree, &found, (number, of), placed)? && (is_placed || looks_like(&found, of)?))
}

fn is_object(
    tree: &Tree,
    found: &OwnedFd,
    (number, of): (u64, &Attributes),
    placed: Option<Inode>,
) -> Result<bool> {
    let stat = stat_descriptor(found)?;
    if !of.kind.is_other() || stat.raw.st_mode & libc::S_IFMT != file_type(of.kind) {
        return Ok(false);
    }
    if let Some(several) = several_names::open(tree, number)? {
        return several_names::are_one(found, &several);
    }
    let is_alone = stat.raw.st_nlink == 1;
    Ok(is_alone
        && (placed == Some(stat.key()) || looks_like(found, of)? && has_time(&stat.raw, of)))
}

/// Whether the content of something changed when the store says, as far as the file system keeps times.
fn has_time(found: &libc::stat64, of: &Attributes) -> bool {
    let (is, wanted) = (joined(found.st_mtime, found.st_mtime_nsec), of.mtime_ns);
    [1, NS_PER_US, NS_PER_S].into_iter().any(|unit| is == wanted - wanted.rem_euclid(unit))
}

/// Opens what is at a name.
pub(super) fn at((above, name): At<'_>) -> Result<Option<OwnedFd>> {
    match openat(&above.0, os(name), ITSELF, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Whether something has the kind, owner, mode, device number and target that the store has of an object. It may be
/// another one.
///
/// # Errors
/// Those of `stat(2)` and `readlink(2)`.
fn looks_like(found: &OwnedFd, of: &Attributes) -> Result<bool> {
    let raw = stat_descriptor(found)?.raw;
    if !of.kind.is_other()
        || raw.st_mode & libc::S_IFMT != file_type(of.kind)
        || (raw.st_uid, raw.st_gid) != (of.uid, of.gid)
    {
        return Ok(false);
    }
    Ok(match of.kind {
        Kind::Symlink => readlinkat(found, "", Vec::new())?.as_bytes() == of.target,
        _ => raw.st_mode & 0o7777 == of.mode && raw.st_rdev == of.rdev,
    })
}
