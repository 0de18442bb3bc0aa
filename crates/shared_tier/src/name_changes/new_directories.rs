//! Attributes that a new directory inherits, on the shared disk.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::namespace::Failure;
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;

use crate::base::Base;
use crate::errors::of_names;
use crate::places::{DirectoryStep, own_xattrs};
use crate::renames::follow;

/// Sets the extended attributes of a directory that the store has made. If the disk has no room for them, the directory
/// is taken away again, unless others use it by now: they would be lost if the names were rebuilt from the disk.
///
/// # Errors
/// `ENOSPC`, and those of the store.
pub(super) fn set_xattrs(
    base: &Base,
    (name, number): (&EntryName, InodeNumber),
    of: &Attributes,
    steps: impl Fn() -> Result<Vec<DirectoryStep>>,
) -> Result<()> {
    let set = of.xattrs.iter().try_for_each(|(xattr, value)| {
        base.places.set_directory_xattr(number.0, OsStr::from_bytes(xattr), value, 0)
    });
    match set {
        Err(error) if own_xattrs::is_without_room(&error) => {
            match base.names.remove_directory_of(name, Some(number)) {
                Ok(_) => {}
                Err(Failure::Refused(_)) => return follow("mkdir", name, Err(error)),
                Err(failure) => return Err(of_names(failure)),
            }
            let removed = steps().and_then(|steps| base.places.remove_directory(&steps));
            follow("mkdir", name, removed)?;
            Err(error)
        }
        set => follow("mkdir", name, set),
    }
}
