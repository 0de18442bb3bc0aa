//! Exchanges of two directories on the shared disk.

use halocline_model::namespace::ROOT;
use halocline_os::error::{Error, Result};
use rustix::fs::{RenameFlags, renameat_with};

use super::SharedDisk;
use crate::entry_names::os;
use crate::places::DirectoryStep;
use crate::places::found_directory::is_at;
use crate::places::tree::directory_names::record;
use crate::places::tree::{below, child};

/// Follows the store's exchange of two directories, in one step, if they are where these steps lead.
pub(crate) fn exchange(
    disk: &SharedDisk,
    one: &[DirectoryStep],
    other: &[DirectoryStep],
) -> Result<bool> {
    let (Some((one, one_near)), Some((other, other_near))) = (one.split_last(), other.split_last())
    else {
        return Ok(false);
    };
    let above = |near: &[DirectoryStep]| {
        disk.find(near.last().map_or(ROOT.0, |step| step.number), Some(near))
    };
    let (one_above, other_above) = (above(one_near)?, above(other_near)?);
    let are_there = |here: u64, there: u64| {
        Ok::<_, Error>(
            is_at(&one_above.0, &one.name, here)? && is_at(&other_above.0, &other.name, there)?,
        )
    };
    if !are_there(one.number, other.number)? {
        return Ok(false);
    }
    for (above, it, to) in [(&one_above, one, other), (&other_above, other, one)] {
        if let Some((fd, _)) = child(above, it)? {
            let step = DirectoryStep { number: it.number, name: to.name.clone() };
            record(&disk.tree, &fd, &step, to.name.as_bytes())?;
        }
    }
    let exchange = || {
        let (one, other) = (os(&one.name), os(&other.name));
        renameat_with(&one_above.0, one, &other_above.0, other, RenameFlags::EXCHANGE)
    };
    match disk.tree.step("exchanging two directories", exchange) {
        Err(error) if is_no_exchange(&error) => return Ok(false),
        done => done?,
    }
    if are_there(other.number, one.number)? {
        disk.remember(one.number, below(other_above.1.as_ref(), &other.name)?);
        disk.remember(other.number, below(one_above.1.as_ref(), &one.name)?);
        return Ok(true);
    }
    // Another directory had one of these names by then: undo the exchange, if the directory is still there.
    disk.tree.step("exchanging two directories", exchange)?;
    Ok(false)
}

/// Whether the file system refuses the exchange, or one of the two is elsewhere by now.
pub(super) fn is_no_exchange(error: &Error) -> bool {
    matches!(error.errno(), libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOENT)
}
