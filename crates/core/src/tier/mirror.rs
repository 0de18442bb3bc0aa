//! Directories of the tree and their mirrors on lower tiers.
//!
//! What must hold: a mirrored directory lets nobody in whom the directory keeps out. It has owner, mode and
//! access ACL of the directory at its path, also after these change; files that lie elsewhere since
//! a directory above them was renamed are as open as the place they are at.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use super::copy::owned;
use super::inode::Place;
use super::tiers::Tiers;
use crate::engine::SetAttr;
use crate::error::Result;
use crate::namespace::attributes::set_attr_on;
use crate::namespace::{stat_descriptor, xattr};

/// The extended attribute in which an ACL is.
pub(super) const ACL: &str = "system.posix_acl_access";
/// Permissions of a directory's group.
const GROUP: u32 = 0o070;

/// Makes `to`, a directory on a lower tier, as open as the one of the tree at `path`, if there
/// is one.
pub(super) fn directory(tiers: &Tiers, path: &Path, to: &impl AsFd) -> Result<()> {
    match tiers.walk(path) {
        Some(node) => make_like(&*tiers.tree().descriptor(&node)?, to),
        None => Ok(()),
    }
}

/// The directory at `place`, which user `before` owned, may have other permissions now: so have
/// its mirrors. One of somebody else is none.
pub(super) fn permissions_changed(tiers: &Tiers, place: &Place, before: u32) -> Result<()> {
    let dir = tiers.tree().descriptor(&place.entry)?;
    let owners = [before, stat_descriptor(&*dir)?.raw.st_uid, tiers.uid()];
    let path = tiers.tree().path_of(&place.entry);
    for side in tiers.sides().iter().skip(1).filter(|_| !path.as_os_str().is_empty()) {
        let Ok(mirror) = side.look(&path) else { continue };
        let found = stat_descriptor(&mirror)?;
        let is_dir = found.kind() == libc::S_IFDIR;
        if is_dir && !owners.contains(&found.raw.st_uid) {
            let path = side.path.join(&path);
            tracing::warn!("{} is another user's and keeps its permissions", path.display());
            continue;
        }
        let like = || if is_dir { make_like(&*dir, &mirror) } else { Ok(()) };
        if let Err(error) = side.steps.step("setting a directory's attributes", like) {
            let path = side.path.join(&path);
            tracing::warn!(%error, "{} keeps its old permissions", path.display());
        }
    }
    Ok(())
}

/// Gives a directory owner, mode and access ACL of another.
pub(super) fn make_like(from: &impl AsFd, to: &impl AsFd) -> Result<()> {
    let raw = stat_descriptor(from)?.raw;
    let owner = SetAttr { uid: Some(raw.st_uid), gid: Some(raw.st_gid), ..SetAttr::default() };
    match set_attr_on(to, &owner) {
        // An unprivileged daemon's directories are its own.
        Err(error) if error.errno() == libc::EPERM && owned(to, &raw)? => {}
        other => drop(other?),
    }
    let mut mode = raw.st_mode & 0o7777;
    let has_none = |errno| matches!(errno, libc::ENODATA | libc::EOPNOTSUPP);
    match xattr::get_on(from, OsStr::new(ACL)) {
        Ok(acl) => match xattr::set_on(to, OsStr::new(ACL), &acl, 0) {
            // What looks like the group's permissions is the most that anybody named has.
            Err(error) if error.errno() == libc::EOPNOTSUPP => mode &= !GROUP,
            other => other?,
        },
        Err(error) if has_none(error.errno()) => match xattr::remove_on(to, OsStr::new(ACL)) {
            Err(error) if !has_none(error.errno()) => return Err(error),
            _ => {}
        },
        Err(error) => return Err(error),
    }
    set_attr_on(to, &SetAttr { mode: Some(mode), ..SetAttr::default() }).map(drop)
}
