//! Where the bytes of a file with several names are on the shared disk: in the directory of one of its names.
//!
//! A file's place is the number of a directory and a name in it. A directory that the store no longer has is not found
//! again, so the bytes must have left it before its last name there is gone for good, and it can be removed.

use halocline_cluster::names::attributes::{Kind, Location};
use halocline_cluster::names::namespace::{Failure, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber, ROOT};
use halocline_os::error::Result;

use crate::base::Base;
use crate::errors::of_names;
use crate::files::place_of;
use crate::places::SSD;
use crate::renames;

/// After a file has lost a name: moves its bytes on the shared disk to the place of a name that it has, if it has none
/// in the directory where they are. No byte is copied.
pub(super) fn follow_names(base: &Base, of: &StoredInode, lost: &EntryName) -> Result<()> {
    let Some(new) = leave(base, of, lost)? else { return Ok(()) };
    // Nodes that changed other names meanwhile may not have found the file any more, to record that with it.
    base.tell_names(of.inode, Ok(&new), (&[], &[lost]))
}

/// The same, but leaves the names that are recorded with the file as they are: what is to get the lost name does not
/// have it on the disk yet. Returns the new place.
pub(super) fn leave(base: &Base, of: &StoredInode, lost: &EntryName) -> Result<Option<Location>> {
    if of.attributes.kind != Kind::File || of.links == 0 {
        return Ok(None);
    }
    let place = place_of(&of.attributes)?;
    if place.tier == SSD || place.base == ROOT.0 {
        return Ok(None);
    }
    let names = match base.places.listed_names().of(place, of.inode.0) {
        // Whoever took its last name meanwhile has removed it, or others have put it elsewhere.
        Err(error) if error.errno() == libc::ENOENT => return Ok(None),
        names => names?.into_iter(),
    };
    let names = names.map(|(number, name)| EntryName { directory: InodeNumber(number), name });
    let names: Vec<EntryName> = names.filter(|name| name != lost).collect();
    if names.iter().any(|name| name.directory.0 == place.base) {
        return Ok(None);
    }
    for name in &names {
        match base.names.lookup(name) {
            Ok(found) if found.inode == of.inode => {
                return put_at(base, (name, of.inode), place).map(Some);
            }
            // Another node removed that one, or gave it to something else.
            Ok(_) | Err(Failure::Refused(_)) => {}
            Err(failure) => return Err(of_names(failure)),
        }
    }
    Ok(None)
}

/// Moves the bytes from a place on the shared disk to that of a name.
fn put_at(
    base: &Base,
    (name, number): (&EntryName, InodeNumber),
    old: &Location,
) -> Result<Location> {
    let near = base.near(name.directory)?;
    let new = base.places.link(old, number.0, &near, &name.name)?;
    match renames::set_place(base, (name, number), old, &new) {
        Ok(_) => base.places.remove(old, number.0).map(|()| new),
        Err(error) => {
            // If the store's answer was lost, it may have the new place: then neither is removed.
            if error.errno() != libc::EIO {
                base.places.remove(&new, number.0)?;
            }
            Err(error)
        }
    }
}
