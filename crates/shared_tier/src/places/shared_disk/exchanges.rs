//! Exchanges of two directories on the shared disk.

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::ROOT;
use halocline_os::error::{Error, Result};
use rustix::fs::{RenameFlags, renameat_with};

use super::SharedDisk;
use crate::entry_names::os;
use crate::places::DirectoryStep;
use crate::places::tree::directory_names::record;
use crate::places::tree::{FoundDirectory, below};

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
    let path = |above: &FoundDirectory, step: &DirectoryStep| below(above.1.as_ref(), &step.name);
    let above = |near: &[DirectoryStep]| {
        disk.find(near.last().map_or(ROOT.0, |step| step.number), Some(near))
    };
    let (one_above, other_above) = (above(one_near)?, above(other_near)?);
    let [one_path, other_path] = [path(&one_above, one)?, path(&other_above, other)?];
    let are_at = |one: &RelativePath, other: &RelativePath, numbers: [u64; 2]| {
        let is_at = |path, number| disk.tree.directory_at(Some(path), number);
        Ok::<_, Error>(is_at(one, numbers[0])?.is_some() && is_at(other, numbers[1])?.is_some())
    };
    let numbers = [one.number, other.number];
    if !are_at(&one_path, &other_path, numbers)? {
        return Ok(false);
    }
    for (at, it, to) in [(&one_path, one, other), (&other_path, other, one)] {
        if let Some(fd) = disk.tree.directory_at(Some(at), it.number)? {
            let to = DirectoryStep { number: it.number, name: to.name.clone() };
            record(&disk.tree, &fd, &to, to.name.as_bytes())?;
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
    if are_at(&other_path, &one_path, numbers)? {
        disk.remember(one.number, other_path);
        disk.remember(other.number, one_path);
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
