//! Clean copies go before their files change, and follow their names (`crate::places::copies`).

use halocline_cluster::names::attributes::{Attributes, CleanCopy, Kind};
use halocline_cluster::names::namespace::{self, Failure, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;
use rustix::io::Errno;

use crate::base::Base;
use crate::errors::of_names;
use crate::places::Places;
use crate::places::copies::{Copies, CopyName};

/// Removes the clean copy of a file that has these attributes in the store, before the file is changed, once the file itself
/// has been found on its SSD. Its mark may stay: alone it is nothing. Returns the mark.
///
/// # Errors
/// If the file is not reached: then the copy may be all that is left of it. `ENOENT` if it is not there (any more). If the
/// shared disk refuses it: then the file must not be changed, because the copy would be taken for it later.
pub(crate) fn take_away(
    places: &Places,
    of: &Attributes,
    number: InodeNumber,
) -> Result<Option<CleanCopy>> {
    if let Some((copy, place)) = CopyName::of(of, number.0).zip(of.location.as_ref()) {
        Copies::of(places).remove_seen(places, &copy, place)?;
    }
    Ok(of.copy)
}

/// Removes the clean copy of a file that has lost its last name.
///
/// # Errors
/// If the shared disk refuses it: the copy stays until its node mounts again, or until a check.
pub(crate) fn removed(places: &Places, gone: &StoredInode) -> Result<()> {
    match CopyName::of(&gone.attributes, gone.inode.0) {
        Some(copy) => Copies::of(places).unlink(&copy).map(drop),
        None => Ok(()),
    }
}

/// Refuses to go on if a file has another mark than the one whose copy was taken away: it was copied meanwhile.
pub(crate) fn check_taken(of: &Attributes, taken: Option<CleanCopy>) -> namespace::Result<()> {
    if of.copy.is_none() || of.copy == taken { Ok(()) } else { Err(Failure::Refused(Errno::STALE)) }
}

/// A file, as it was `before` that, was renamed: its copy gets the name, too. So it has that in names that are rebuilt without its SSD.
///
/// # Errors
/// If the copy cannot follow, nor be removed, or the store does not answer.
pub(crate) fn renamed(base: &Base, before: &StoredInode, to: &EntryName) -> Result<()> {
    let number = before.inode;
    if before.attributes.copy.is_none() {
        return Ok(());
    }
    let names = || match base.names.lookup(to) {
        Ok(found) if found.inode == number && found.attributes.kind == Kind::File => {
            Ok(Some(found))
        }
        // Whoever renamed or removed it since does this.
        Ok(_) | Err(Failure::Refused(_)) => Ok(None),
        Err(failure) => Err(of_names(failure)),
    };
    let Some(found) = names()? else { return Ok(()) };
    let of = &found.attributes;
    let Some((copy, place)) = CopyName::of(of, number.0).zip(of.location.as_ref()) else {
        return Ok(());
    };
    let name = (to.directory.0, to.name.clone());
    let followed = Copies::of(&base.places).renamed(&copy, &name, place);
    // Nodes that rename it at once may have written over each other's names.
    let is_same = names()?.is_some_and(|now| now.attributes.location.as_ref() == Some(place));
    if followed.is_err() || found.links > 1 || !is_same {
        // Where the file is not reached, the copy may be all that is left of it.
        if let Err(error) = Copies::of(&base.places).remove_seen(&base.places, &copy, place) {
            tracing::debug!(%error, ?copy, "a clean copy stays under an old name");
            return followed;
        }
    }
    Ok(())
}
