//! Has the shared disk keep one inode of a link, pipe, socket or device that has got a second name ([`several_names`]).
//!
//! What must hold: no inode is kept for two numbers, though many look alike. An inode that is found at a name is kept only if
//! that is its only name, and if it is still there after it got one more: whoever gave it to another name before that
//! compared it when it had that alone, and whoever does later sees that it is kept ([`proofs`]).

use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::Attributes;
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::stat_descriptor;

use super::{Inode, make_unnamed, proofs, several_names};
use crate::places::tree::{FoundDirectory, Tree, candidates, fresh};

/// Opens the inode that the disk keeps for a number, with `O_PATH`; has one kept if there is none: what is at one of its
/// names, or else one that is made.
///
/// # Errors
/// Those of `link(2)` and `mknod(2)`.
pub(crate) fn open_or_make(
    tree: &Tree,
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
) -> Result<OwnedFd> {
    if let Some(found) = several_names::open(tree, number)? {
        return Ok(found);
    }
    let temporary = fresh("o", number);
    let is_found = match proofs::open(tree, above, (name, number), of)? {
        Some(found) => {
            tree.step("finding a link or device", || {
                several_names::link(tree, &found, &temporary)
            })?;
            // Another node may have given it another name just now, and looked whether it has that alone before it got
            // this one.
            let is_still = is_at(above, (name, number), &found)
                .and_then(|is_at| Ok(is_at && stat_descriptor(&found)?.raw.st_nlink == 2));
            if !matches!(is_still, Ok(true)) {
                several_names::drop_temporary(tree, &temporary);
            }
            is_still?
        }
        None => false,
    };
    if !is_found {
        tree.step("making a link or device", || make_unnamed(&tree.tmp, &temporary, of))?;
    }
    several_names::keep(tree, &temporary, number)
}

/// As [`open_or_make`] while no node is mounted: what is at the name may have several names, but only if it is free.
///
/// # Errors
/// As [`open_or_make`].
pub(crate) fn keep_alone(
    tree: &Tree,
    above: &FoundDirectory,
    (name, number): (&Name, u64),
    of: &Attributes,
    is_free: impl Fn(Inode) -> bool,
) -> Result<OwnedFd> {
    let temporary = fresh("o", number);
    let found = proofs::look_alike(above, (name, number), of)?;
    match found.map(|found| Ok::<_, Error>((stat_descriptor(&found)?.key(), found))).transpose()? {
        Some((inode, found)) if is_free(inode) => {
            tree.step("finding a link or device", || {
                several_names::link(tree, &found, &temporary)
            })?;
        }
        _ => tree.step("making a link or device", || make_unnamed(&tree.tmp, &temporary, of))?,
    }
    several_names::keep(tree, &temporary, number)
}

/// Whether an inode is at a name or beside that.
fn is_at(above: &FoundDirectory, (name, number): (&Name, u64), inode: &OwnedFd) -> Result<bool> {
    for name in candidates(name, number) {
        if let Some(found) = proofs::at((above, &name))?
            && several_names::are_one(&found, inode)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}
