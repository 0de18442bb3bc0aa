//! The bytes of a renamed file with one name follow it to their place there; until then they stay at the old one.

use halocline_cluster::names::attributes::Open;
use halocline_cluster::names::namespace::StoredInode;
use halocline_model::namespace::EntryName;
use halocline_os::error::Result;

use crate::base::Base;
use crate::files::place_of;
use crate::places::SSD;
use crate::places::ssd_directories::TOO_DEEP;
use crate::renames;

/// Moves the bytes of a file that the store has `found` at a name to the place of that name.
///
/// # Errors
/// Those of the store, and of the disk that they are on.
pub(super) fn follow_name(
    base: &Base,
    found: &StoredInode,
    (from, to): (&EntryName, &EntryName),
) -> Result<()> {
    let (number, old) = (found.inode, place_of(&found.attributes)?.clone());
    let places = &base.places;
    let near = base.near(to.directory)?;
    let new = match places.link(&old, number.0, &near, &to.name) {
        // Its new directory is too deep for an SSD: there it keeps the place of its old name.
        Err(error) if old.tier == SSD && error.errno() == TOO_DEEP => {
            return base.tell_names(number, Ok(&old), (&[to], &[from]));
        }
        linked => linked?,
    };
    let [was, is] = [from, to].map(|name| [(name.directory.0, name.name.clone())]);
    let of = &found.attributes;
    let is_own = |open: &Open| open.session == base.sessions.own();
    let told = if of.many_opens || !of.opens.iter().all(is_own) {
        places.listed_names().tell(&new, number.0, (&is, &was))
    } else {
        places.listed_names().change(&new, number.0, (&is, &was))
    };
    let swapped = told.and_then(|()| renames::set_place(base, (to, number), &old, &new));
    match swapped {
        Ok(now) => {
            places.remove(&old, number.0)?;
            // Another node may have added a name meanwhile, maybe the old one; or it took one away, and did not find the
            // file any more to record that with it.
            let names = places.listed_names().of(&new, number.0);
            if now.links == 1 && names.is_ok_and(|names| names == is) {
                Ok(())
            } else {
                base.tell_names(number, Ok(&new), (&[to], &[from]))
            }
        }
        Err(error) => {
            // If the store's answer was lost, it may have the new place: then neither is removed.
            if error.errno() != libc::EIO {
                // At the new place: the old one is gone if others renamed or moved the file.
                let told = base.tell_names(number, Ok(&new), (&[to], &[from]));
                // The store does not have it, and nobody else takes it away.
                places.remove(&new, number.0).and(told)?;
            }
            Err(error)
        }
    }
}
