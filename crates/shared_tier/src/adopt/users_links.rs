//! Symbolic links of users, pipes, sockets and devices are made on the shared disk, with all attributes and times. Names
//! of one inode are that there, too.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_os::error::{Error, Result};
use halocline_os::rename_new::rename_new;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{AtFlags, CWD, linkat, readlinkat, unlinkat};
use rustix::io::Errno;

use super::{OnSsd, stopped_at};
use crate::places::descriptor_path::proc_path;
use crate::places::shared_disk::links_and_devices::make_unnamed;
use crate::places::tree::{Tree, fresh};
use crate::stat_conversion::file_type;

/// Makes all on the shared disk, and then removes them from the SSD. The attributes are those that they get.
pub(super) fn make((ssd, shared): (&Tree, &Tree), all: Vec<(OnSsd<'_>, Attributes)>) -> Result<()> {
    let mut by_inode: BTreeMap<(u64, u64), Vec<_>> = BTreeMap::new();
    for (item, of) in all {
        by_inode.entry(item.key).or_default().push((item, of));
    }
    for names in by_inode.into_values() {
        // A run that was killed has made some of its names.
        let mut made = None;
        let at = |item: &OnSsd<'_>, tree: &Tree, error: Error| {
            stopped_at(tree, &item.scanned.shown(item.at), error)
        };
        for (item, of) in &names {
            let found = made.map_or_else(|| open(shared, *item, of), |made| Ok(Some(made)));
            made = found.map_err(|error| at(item, shared, error))?;
        }
        for (item, of) in &names {
            let named = name(shared, (*item, of), made);
            made = Some(named.map_err(|error| at(item, shared, error))?);
        }
        for (item, _) in &names {
            let gone = ssd.unlink(&item.path(), AtFlags::empty());
            gone.map_err(|error| at(item, ssd, error))?;
        }
    }
    Ok(())
}

/// Gives it one of its names, if it has not got that, and returns it.
fn name(
    shared: &Tree,
    (item, of): (OnSsd<'_>, &Attributes),
    made: Option<OwnedFd>,
) -> Result<OwnedFd> {
    let above = shared.parent_of(&item.path())?;
    let called = OsStr::from_bytes(item.name.as_bytes());
    let Some(made) = made else {
        let temporary = fresh("o", 0);
        let put = shared.step("making a link or device", || {
            make_unnamed(&shared.tmp, &temporary, of)?;
            rename_new(&shared.tmp, &temporary, &above, called).map_err(Error::from)
        });
        put.inspect_err(|_| {
            let _gone = unlinkat(&shared.tmp, &temporary, AtFlags::empty());
        })?;
        return Ok(shared.look_at_link(&item.path())?);
    };
    let link = || linkat(CWD, proc_path(&made), &above, called, AtFlags::SYMLINK_FOLLOW);
    match shared.step("making one more name of a link or device", link) {
        Err(error) if error.errno() == libc::EEXIST => {
            let there = shared.look_at_link(&item.path())?;
            if stat_descriptor(&there)?.key() != stat_descriptor(&made)?.key() {
                return Err(error);
            }
        }
        done => done?,
    }
    Ok(made)
}

/// Opens what is at its name on the shared disk, if it is the same.
fn open(shared: &Tree, item: OnSsd<'_>, of: &Attributes) -> Result<Option<OwnedFd>> {
    let there = match shared.look_at_link(&item.path()) {
        Err(Errno::NOENT) => return Ok(None),
        there => there?,
    };
    let raw = stat_descriptor(&there)?.raw;
    let is_same = raw.st_mode & libc::S_IFMT == file_type(of.kind)
        && (raw.st_uid, raw.st_gid, raw.st_rdev) == (of.uid, of.gid, of.rdev)
        && (of.kind != Kind::Symlink
            || readlinkat(&there, "", Vec::new())?.as_bytes() == of.target);
    Ok(is_same.then_some(there))
}

/// Whether both are the same link or device.
pub(super) fn is_same(one: &Attributes, other: &Attributes) -> bool {
    let what = |of: &Attributes| (of.kind, of.rdev, of.uid, of.gid);
    what(one) == what(other) && one.target == other.target
}
