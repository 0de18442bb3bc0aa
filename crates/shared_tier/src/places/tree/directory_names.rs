//! Names of directories on disks that end with the directories' own numbers.
//!
//! A directory lies beside its name, with its number behind that, if something else is there; and users may give a directory
//! such a name. What must hold: wherever one of ours lies at such a name, its own name is recorded with it before. Where it is not
//! (an earlier version put it there, or attributes of programs leave no room), it counts as one that lies beside its name, if that
//! is a name and free.

use std::os::fd::AsFd;

use halocline_os::error::Result;

use super::Tree;
use crate::places::DirectoryStep;
use crate::places::own_xattrs;

/// The name to which a directory's number was appended, if it ends with that.
pub(crate) fn without_number(shown: &[u8], number: u64) -> Option<&[u8]> {
    shown.strip_suffix(format!("~{number}").as_bytes())
}

/// Records the name of a directory that is about to be put at a name on the disk, or lies there, if it does not follow from
/// that.
///
/// # Errors
/// Those of `setxattr(2)`, except for one that finds no room.
pub(crate) fn record(
    tree: &Tree,
    fd: &impl AsFd,
    step: &DirectoryStep,
    shown: &[u8],
) -> Result<()> {
    let of = (step.number, step.name.clone());
    if without_number(shown, step.number).is_none() || own_xattrs::directory_name(fd) == Some(of) {
        return Ok(());
    }
    let set = || own_xattrs::set_directory_name(fd, (step.number, &step.name));
    match tree.step("recording a directory's name", set) {
        // A former name would be wrong.
        Err(error) if own_xattrs::is_without_room(&error) => own_xattrs::clear_directory_name(fd),
        set => set,
    }
}
