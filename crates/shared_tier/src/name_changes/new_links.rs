//! Further names of a file, link or device: in the store, and recorded on the disks.

use halocline_cluster::names::attributes::{Kind, Location};
use halocline_cluster::names::namespace::{Failure, StoredInode};
use halocline_model::namespace::EntryName;
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::base::Base;
use crate::clean_copies;
use crate::errors::of_names;
use crate::files::place_of;
use crate::inodes::Vnode;
use crate::late_names::Late;
use crate::lookup::Lookup;
use crate::places::own_xattrs;
use crate::places::users_xattrs::are_too_many_names;
use crate::renames::{changed_at, follow};
use crate::sticky::TRIES;

/// A file with fewer names than this has room for more: what is full is its disk.
const MANY_NAMES: u32 = 8;

/// Gives an inode one more name. `remove` takes what has lost its last name from the disks.
///
/// # Errors
/// `EEXIST`, `EMLINK`; `ENOENT` if it has lost its last name, `ESTALE` if its present one is not known.
pub(super) fn link(
    (base, lookup): (&Base, &Lookup),
    vnode: &Vnode,
    to: &EntryName,
    remove: impl FnOnce(&StoredInode) -> Result<()>,
) -> Result<StoredInode> {
    let (from, linked) = named(base, lookup, vnode, to)?;
    let at = (to, vnode.0.number);
    let linked = match base.names.attributes().update_of(at, changed_at(base.now_ns())) {
        // Others have taken the name away since, or given it to something else, and follow that on the disks.
        Err(Failure::Refused(Errno::STALE | Errno::NOENT)) => linked,
        changed => changed.map_err(of_names)?,
    };
    // It may have been copied again in between.
    match clean_copies::take_away(&base.places, &linked.attributes, vnode.0.number) {
        // Others have moved the file since; a rename takes the copy away, too.
        Err(error) if error.errno() == libc::ENOENT => {}
        taken => drop(taken?),
    }
    vnode.0.add_name(to.clone());
    let followed = match linked.attributes.kind {
        Kind::File => {
            base.tell_names(linked.inode, place_of(&linked.attributes), (&[&from, to], &[]))
        }
        _ => base.late.add(base.disk().linked((&from, to), &linked), || {
            vec![Late::Other(to.clone(), linked.inode)]
        }),
    };
    follow_link(base, (to, &linked), followed, remove)?;
    Ok(linked)
}

/// Gives an inode one more name in the store, and no other one that has got its known name meanwhile: whoever then takes
/// away the last name of that would not know that it is the last one.
fn named(
    base: &Base,
    lookup: &Lookup,
    vnode: &Vnode,
    to: &EntryName,
) -> Result<(EntryName, StoredInode)> {
    for _ in 0..TRIES {
        let (from, found) = lookup.find_named(&vnode.0)?;
        if are_too_many_names(&found.attributes, found.links.saturating_add(1)) {
            return Err(Errno::MLINK.into());
        }
        // A file with several names has no copy.
        match clean_copies::take_away(&base.places, &found.attributes, vnode.0.number) {
            // It has another place by now, or is lost.
            Err(error) if error.errno() == libc::ENOENT => continue,
            taken => drop(taken?),
        }
        match base.names.link_told(&from, to, Some(vnode.0.number)) {
            // It may have another name.
            Err(Failure::Refused(Errno::STALE)) => {}
            linked => return linked.map(|linked| (from, linked)).map_err(of_names),
        }
    }
    Err(Errno::BUSY.into())
}

/// As [`follow`] after a file got one more name; but if there is no room to record the name with the file, takes it away
/// again: it would be lost if the names were rebuilt from the disks. If the others are gone by now, so is the file.
///
/// # Errors
/// That of the store; `EMLINK` where a file has more names than its file system keeps with it.
fn follow_link(
    base: &Base,
    (name, linked): (&EntryName, &StoredInode),
    done: Result<()>,
    remove: impl FnOnce(&StoredInode) -> Result<()>,
) -> Result<()> {
    // Then what is full are the file's attributes: with small blocks a few long names fill them. Of another node's disk
    // that is not known.
    let has_room = |place: &Location| {
        let is_near = place.node.as_deref().is_none_or(|node| node == base.places.node());
        is_near && base.places.free_bytes(place.tier).is_ok_and(|bytes| bytes > 0)
    };
    let error = match done {
        Err(error) if own_xattrs::is_without_room(&error) => error,
        done => return follow("link", name, done),
    };
    let Some(left) = base.names.unlink_of(name, linked.inode).map_err(of_names)? else {
        return follow("link", name, Err(error));
    };
    if left.links == 0 {
        remove(&left)?;
    }
    let of = &linked.attributes;
    let has_many = linked.links > MANY_NAMES || of.location.as_ref().is_some_and(has_room);
    Err(if of.kind == Kind::File && has_many { Errno::MLINK.into() } else { error })
}
