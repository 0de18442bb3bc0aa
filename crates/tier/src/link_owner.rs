//! Whether a link on the SSD is ours: if so, it says where a file is, and what happens to that file.
//!
//! Somebody may be able to write to a directory of the SSD past the mount, or to make a link through it whose target
//! will one day be a tier. What must hold: such a link gives nobody access to another's file. Our links belong to the
//! user who mounts, to whom nobody else can give a link. A second name of one of them (a hard link) is believed only if
//! it is the file's own path, so that copies made of hard links do no harm, or if the link is that of a file with
//! several names: then it is one of these names, as it would be for any file. A link and its owner are read through one
//! descriptor: nobody can show us one link and make us follow another.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, readlinkat};

use super::inode::Away;
use super::tier_links::Target;
use super::tiers::{Entry, Tiers};
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{Vnode, stat_descriptor};

/// A link in the form of ours.
#[derive(Debug)]
pub(super) struct ParsedLink {
    /// The place that it names.
    pub(super) away: Away,
    /// Its attributes.
    pub(super) stat: Stat,
    /// Whether it is ours.
    pub(super) ours: bool,
    /// Whether it names the root of an earlier mount.
    pub(super) former: bool,
}

/// The place that a name's link gives, with the link's identity, if it is ours.
pub(super) fn away(tiers: &Tiers, parent: &Vnode, name: &OsStr) -> Result<Option<(Away, Entry)>> {
    let link = parsed(tiers, parent, name)?.filter(|link| link.ours);
    Ok(link.map(|link| (link.away, link.stat.key())))
}

/// The link with this name, if it has the form of ours. Most links of users are recognised by their target alone.
pub(super) fn parsed(tiers: &Tiers, parent: &Vnode, name: &OsStr) -> Result<Option<ParsedLink>> {
    let dir = tiers.tree().descriptor(parent)?;
    let target = readlinkat(&*dir, name, Vec::new())?;
    if let Target::Users(_) = tiers.links().read(target.as_bytes()) {
        return Ok(None);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(&*dir, name, flags, Mode::empty())?;
    parsed_from(tiers, &link, || tiers.tree().path_of(parent).join(name))
}

/// An open link, if it has the form of ours; `path` gives the path of its name.
pub(super) fn parsed_from(
    tiers: &Tiers,
    link: &OwnedFd,
    path: impl FnOnce() -> PathBuf,
) -> Result<Option<ParsedLink>> {
    let stat = stat_descriptor(link)?;
    if stat.kind() != libc::S_IFLNK {
        return Ok(None);
    }
    let target = readlinkat(link, "", Vec::new())?;
    Ok(match tiers.links().read(target.as_bytes()) {
        Target::Users(_) => None,
        Target::Away(tier, place) => {
            let shared = tiers.links().is_shared(target.as_bytes());
            let ours = is_ours(tiers, &stat, (&place, shared), path);
            let present = if shared {
                tiers.links().to_shared(tier, &place)
            } else {
                tiers.links().to(tier, &place)
            };
            let former = target.as_bytes() != present.as_encoded_bytes();
            Some(ParsedLink { away: Away { tier, path: place, shared }, stat, ours, former })
        }
    })
}

/// Whether a link with these attributes, which names `place` and may be `shared`, is ours.
fn is_ours(
    tiers: &Tiers,
    link: &Stat,
    (place, shared): (&Path, bool),
    path: impl FnOnce() -> PathBuf,
) -> bool {
    link.raw.st_uid == tiers.uid() && (link.raw.st_nlink == 1 || shared || path() == place)
}
