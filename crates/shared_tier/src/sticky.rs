//! Directories with the sticky bit, where only the owner of something, or of the directory, may take its name away.
//!
//! The kernel compares the owner of what a name leads to before it asks for the removal or the rename, and another node
//! may give the name to something else in that moment. So the owner is compared here again, and the store takes the name
//! away only from what that owner was compared of.

use std::sync::atomic::Ordering;

use halocline_cluster::names::namespace::{self, Failure, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;
use halocline_vfs::Caller;
use halocline_vfs::ownership::{FOWNER, Owner, acts_for};
use rustix::io::Errno;

use crate::base::Base;
use crate::errors::of_names;
use crate::inodes::Vnode;

/// How often a name that other nodes give to something else is compared again.
pub(crate) const TRIES: usize = 16;

/// For each directory of a rename: the caller, if what its name leads to must be compared with it.
///
/// # Errors
/// If the store does not answer.
pub(crate) fn compared(
    base: &Base,
    directories: [&Vnode; 2],
    by: Caller,
) -> Result<[Option<Caller>; 2]> {
    let [old, new] = directories.map(|directory| is_anothers(base, directory, by));
    Ok([old?, new?].map(|is_anothers| is_anothers.then_some(by)))
}

/// What the names of a rename must lead to, given what was found under them; `None` if nothing is compared.
///
/// # Errors
/// `EPERM` if a name leads to what the caller may not take it from.
pub(crate) fn expected(
    compared: [Option<Caller>; 2],
    found: [&Option<StoredInode>; 2],
) -> Result<Option<[Option<InodeNumber>; 2]>> {
    for (found, by) in found.into_iter().zip(compared) {
        if let Some(by) = by {
            check(found.as_ref(), by)?;
        }
    }
    let numbers = found.map(|found| found.as_ref().map(|found| found.inode));
    Ok(compared.iter().any(Option::is_some).then_some(numbers))
}

/// Whether only owners may take names away in a directory, and it is not the caller's own. The kernel compares if it was
/// last told of the bit; then the store is asked whether it is still there.
///
/// # Errors
/// If the store does not answer.
fn is_anothers(base: &Base, directory: &Vnode, by: Caller) -> Result<bool> {
    if by.uid == 0 || !directory.0.is_sticky.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let of = base.names.directory(directory.0.number).map_err(of_names)?.attributes;
    Ok(of.mode & libc::S_ISVTX != 0 && of.uid != by.uid)
}

/// Refuses to take a name away from what was found under it in such a directory.
///
/// # Errors
/// `EPERM` unless the caller owns it, or may act for its owner.
fn check(found: Option<&StoredInode>, by: Caller) -> Result<()> {
    let acts = |of: &StoredInode| {
        acts_for(by, Owner { uid: of.attributes.uid, gid: of.attributes.gid }, FOWNER)
    };
    if found.is_none_or(acts) { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Takes a name away by `take`, which gets the only inode that may lose it, if that matters.
///
/// # Errors
/// Those of `take`; `EPERM` if the name leads to what the caller may not take it from.
pub(crate) fn take_away<T>(
    base: &Base,
    (directory, name): (&Vnode, &EntryName),
    by: Caller,
    take: impl Fn(Option<InodeNumber>) -> namespace::Result<T>,
) -> Result<T> {
    if !is_anothers(base, directory, by)? {
        return take(None).map_err(of_names);
    }
    for _ in 0..TRIES {
        let found = base.names.lookup(name).map_err(of_names)?;
        check(Some(&found), by)?;
        match take(Some(found.inode)) {
            // It leads to something else by now.
            Err(Failure::Refused(Errno::STALE)) => {}
            taken => return taken.map_err(of_names),
        }
    }
    Err(Errno::BUSY.into())
}
