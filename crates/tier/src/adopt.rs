//! Entries that were put on a lower tier by hand and are not regular files: they are brought to the SSD, where all
//! names are.
//!
//! Symbolic links and special files have no bytes: they are created on the SSD, durably, and then removed below, so
//! that one that is removed on the mount does not come back. Directories that contain no file are adopted only at the
//! first mount of a set: later, they cannot be distinguished from directories that were created for files and are left
//! over.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, chmodat, chownat, mknodat, readlinkat,
    utimensat,
};
use rustix::io::Errno;

use super::mirror::make_like;
use super::tier_dir::check_new;
use super::tiers::Tiers;
use halocline_api::control::tier::PRIVATE;
use halocline_os::error::Result;
use halocline_os::rename_new::rename_new;
use halocline_vfs::Stat;
use halocline_vfs::namespace::statx::stat_at;
use halocline_vfs::namespace::{Namespace, Vnode};

/// The result for an entry that is not a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adopted {
    /// It is on the SSD now.
    Now,
    /// It was there already: a mount was killed before it removed the entry below.
    Before,
    /// The next mount adopts it.
    Later,
    /// The SSD has something else at its path.
    Taken,
    /// This user may not create it.
    Refused,
}

/// Brings a symbolic link or special file at `path` of a lower tier, in the directory `from`, to
/// the SSD.
pub(super) fn special(
    tiers: &Tiers,
    tree: &Namespace,
    (tier, path): (usize, &Path),
    from: &OwnedFd,
    mend: bool,
) -> Result<Adopted> {
    if path.starts_with(PRIVATE) {
        return Ok(Adopted::Refused);
    }
    let name = path.file_name().unwrap_or_default();
    let there = stat_at(from.as_fd(), name)?;
    let target = match there.kind() {
        libc::S_IFLNK => {
            let target = readlinkat(from, name, Vec::new())?;
            Some(tiers.links().stored(OsStr::from_bytes(target.as_bytes())))
        }
        _ => None,
    };
    let outcome = match tiers.walk(path) {
        Some(here) if !is_same(tiers, &here, &there, target.as_deref())? => Adopted::Taken,
        _ if !mend => Adopted::Later,
        Some(_) => Adopted::Before,
        None => make_special(tiers, tree, path, &there, target.as_deref())?,
    };
    if matches!(outcome, Adopted::Now | Adopted::Before) {
        let tier_dir = &tiers.dirs()[tier];
        if let Err(error) = tier_dir.remove(path) {
            tracing::warn!(%error, "an adopted link is removed there at the next mount");
        }
    }
    Ok(outcome)
}

/// Whether the SSD has the same link or special file.
fn is_same(tiers: &Tiers, here: &Vnode, there: &Stat, target: Option<&OsStr>) -> Result<bool> {
    let stat = tiers.tree().stat(here)?;
    let alike = (stat.kind(), stat.raw.st_rdev) == (there.kind(), there.raw.st_rdev);
    Ok(alike
        && match target {
            Some(target) => tiers.tree().read_link(here)? == target,
            None => true,
        })
}

fn make_special(
    tiers: &Tiers,
    tree: &Namespace,
    path: &Path,
    there: &Stat,
    target: Option<&OsStr>,
) -> Result<Adopted> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let Some(dir) = parents(tiers, tree, parent)? else { return Ok(Adopted::Taken) };
    let (temporary, tier_dir) = (tiers.fresh_name(), &tiers.ssd());
    let made = match target {
        Some(target) => tiers.make_link(&temporary, target, None),
        None => tier_dir.steps.step("making a special file", || {
            let kind = FileType::from_raw_mode(there.kind());
            Ok(mknodat(tier_dir.tmp(), &temporary, kind, Mode::RUSR, there.raw.st_rdev)?)
        }),
    };
    let made = made.and_then(|()| like_special(tiers, &temporary, there));
    if let Err(error) = made {
        tier_dir.drop_temporary(&temporary);
        tracing::warn!(%error, "{} stays where it is", path.display());
        return Ok(Adopted::Refused);
    }
    let (to, name) = (tiers.tree().descriptor(&dir)?, path.file_name().unwrap_or_default());
    let place = || Ok(rename_new(tier_dir.tmp(), &temporary, &*to, name)?);
    tier_dir.steps.step("adopting a file", place)?;
    // Durable before it is removed below.
    tiers.sync_directory(&dir)?;
    Ok(Adopted::Now)
}

/// Gives a temporary link or special file owner, mode and times.
fn like_special(tiers: &Tiers, temporary: &str, there: &Stat) -> Result<()> {
    let (tier_dir, raw) = (&tiers.ssd(), &there.raw);
    let at = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps {
        last_access: at(raw.st_atime, raw.st_atime_nsec),
        last_modification: at(raw.st_mtime, raw.st_mtime_nsec),
    };
    tier_dir.steps.step("giving a file its attributes", || {
        let tmp = tier_dir.tmp();
        let owner = (Uid::from_raw(raw.st_uid), Gid::from_raw(raw.st_gid));
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        match chownat(tmp, temporary, Some(owner.0), Some(owner.1), nofollow) {
            // An ordinary user's files belong to that user.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        if there.kind() != libc::S_IFLNK {
            let mode = Mode::from_raw_mode(raw.st_mode & 0o7777);
            chmodat(tmp, temporary, mode, AtFlags::empty())?;
        }
        Ok(utimensat(tmp, temporary, &times, nofollow)?)
    })
}

/// The SSD's directory at `path`, created like that of the other tier if necessary; `None` if something else is in the
/// way.
pub(super) fn parents(tiers: &Tiers, tree: &Namespace, path: &Path) -> Result<Option<Vnode>> {
    let (mut here, mut there) = (tiers.tree().root(), tree.root());
    for name in path {
        there = tree.lookup(&there, name)?.0;
        let fd = tiers.tree().descriptor(&here)?;
        if let Ok((found, stat)) = tiers.tree().lookup(&here, name) {
            if stat.kind() != libc::S_IFDIR {
                return Ok(None);
            }
            here = found;
            continue;
        }
        let make = || Ok(rustix::fs::mkdirat(&*fd, name, rustix::fs::Mode::RWXU)?);
        tiers.ssd().steps.step("making a directory", make)?;
        here = tiers.tree().lookup(&here, name)?.0;
        let (old, new) = (tree.descriptor(&there)?, tiers.tree().descriptor(&here)?);
        let like = || {
            check_new(&new, tiers.uid())?;
            make_like(&*old, &*new)
        };
        tiers.ssd().steps.step("setting a directory's attributes", like)?;
    }
    Ok(Some(here))
}
