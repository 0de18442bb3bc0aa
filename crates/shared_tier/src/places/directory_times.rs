//! When the names in a directory were changed last, as a rebuild finds it on the disks.
//!
//! File systems keep that of what lies on them: the directory on the shared disk, and its mirrors on SSDs, as far as files
//! there have changed their names. So the newest of these times is right, except where a program has set another one, as
//! `tar` and `rsync` do, or files of the directory have moved between disks, which changes no name. Then a note on the
//! directory of the shared disk says which time was right, and when. A mirror that is made changes nothing: it is not
//! younger than its directory.

use std::time::UNIX_EPOCH;

use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::{set_attr_on, system_time};
use halocline_vfs::{SetAttr, SetTime, Stat};

use super::own_xattrs::owner_permissions::set_attr;
use super::own_xattrs::{self, Dated};
use super::tree::{FoundDirectory, Owner, Tree};
use super::{DirectoryStep, Places};
use crate::stat_conversion::joined;

/// Changes a directory's attributes on the shared disk.
pub(super) fn set_attributes(places: &Places, directory: u64, change: &SetAttr) -> Result<Stat> {
    let (fd, tree) = (places.shared.descriptor(directory)?, &places.shared.tree);
    let stat = tree.step("setting a directory's attributes", || set_attr(&fd, change))?;
    if change.mtime.is_some() {
        let raw = &stat.raw;
        let mtime_ns = joined(raw.st_mtime, raw.st_mtime_nsec);
        let dated = Dated { mtime_ns, as_of_ns: joined(raw.st_ctime, raw.st_ctime_nsec) };
        // Where it finds no room, a rebuild takes the time at which files on SSDs got their names, if that is newer.
        let noted = tree.step("noting a directory's time", || own_xattrs::set_dated(&fd, dated));
        own_xattrs::unless_without_room(noted)?;
    }
    Ok(stat)
}

/// Notes that a directory has this time at `now_ns`, whatever the disks say.
///
/// # Errors
/// If it is not found.
pub(crate) fn date(places: &Places, directory: u64, (mtime_ns, now_ns): (i64, i64)) -> Result<()> {
    let (fd, tree) = (places.shared.descriptor(directory)?, &places.shared.tree);
    let raw = stat_descriptor(&fd)?.raw;
    let as_of_ns = now_ns.max(joined(raw.st_ctime, raw.st_ctime_nsec));
    let dated = Dated { mtime_ns, as_of_ns };
    let noted = tree.step("noting a directory's time", || own_xattrs::set_dated(&fd, dated));
    own_xattrs::unless_without_room(noted)
}

/// Makes a mirror, and leaves the one above as old as it was.
pub(super) fn make_mirror(
    ssd: &Tree,
    above: &FoundDirectory,
    step: &DirectoryStep,
    owner: Owner,
) -> Result<FoundDirectory> {
    let raw = stat_descriptor(&above.0)?.raw;
    let made = ssd.make_directory(above, step, owner)?;
    let before = system_time((raw.st_mtime, raw.st_mtime_nsec));
    for (fd, time) in [(&above.0, before), (&made.0, UNIX_EPOCH)] {
        let change = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        let set = ssd.step("setting a mirror's time", || set_attr_on(fd, &change));
        // The operator's root may be another user's.
        if let Err(error) = set {
            tracing::debug!(%error, "a mirror is younger than its directory");
        }
    }
    Ok(made)
}

/// The newest of the times that copies of a directory have, if a date is noted.
pub(crate) fn newest(dated: Option<Dated>, times: impl Iterator<Item = i64>) -> Option<i64> {
    let later = times.filter(|time| dated.is_none_or(|dated| *time > dated.as_of_ns));
    later.chain(dated.map(|dated| dated.mtime_ns)).max()
}
