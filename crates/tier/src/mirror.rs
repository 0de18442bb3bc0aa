//! Directories of the tree and their mirrors on lower tiers.
//!
//! What must hold: a mirrored directory admits nobody whom the directory keeps out. It has the owner, mode and access
//! ACL of the directory at its path, even after these change; files that are elsewhere since a directory above them was
//! renamed are as accessible as the place where they are.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;

use super::inode::Place;
use super::tiers::Tiers;
use halocline_os::error::{Error, Result};
use halocline_os::posix_acl;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::{stat_descriptor, xattr};

/// The extended attribute that contains an ACL.
pub(super) const ACL: &str = posix_acl::ACCESS;
/// Permissions of a directory's group.
const GROUP: u32 = 0o070;
/// How often permissions are set again because they changed meanwhile.
const LOOKS_MAX: usize = 100;

/// Gives `to`, a directory on a lower tier, the permissions of the directory of the tree at `path`, if there is one.
pub(super) fn directory(tiers: &Tiers, path: &Path, to: &impl AsFd) -> Result<()> {
    match tiers.walk(path) {
        Some(vnode) => make_like(&*tiers.tree().descriptor(&vnode)?, to),
        None => Ok(()),
    }
}

/// Called when the directory at `place`, which user `before` owned, may have other permissions: its mirrors get them,
/// too. Somebody else's directory is not a mirror.
pub(super) fn permissions_changed(tiers: &Tiers, place: &Place, before: u32) -> Result<()> {
    let dir = tiers.tree().descriptor(&place.entry)?;
    let owners = [before, stat_descriptor(&*dir)?.raw.st_uid, tiers.uid()];
    let path = tiers.tree().path_of(&place.entry);
    for tier_dir in tiers.dirs().iter().skip(1).filter(|_| !path.as_os_str().is_empty()) {
        let Ok(mirror) = tier_dir.look(&path) else { continue };
        let found = stat_descriptor(&mirror)?;
        let is_dir = found.kind() == libc::S_IFDIR;
        if is_dir && !owners.contains(&found.raw.st_uid) {
            let path = tier_dir.path.join(&path);
            tracing::warn!("{} is another user's and keeps its permissions", path.display());
            continue;
        }
        let like = || if is_dir { make_like(&*dir, &mirror) } else { Ok(()) };
        if let Err(error) = tier_dir.steps.step("setting a directory's attributes", like) {
            let path = tier_dir.path.join(&path);
            tracing::warn!(%error, "{} keeps its old permissions", path.display());
        }
    }
    Ok(())
}

/// What determines who may enter a directory or open a file.
#[derive(Debug, PartialEq, Eq)]
struct Permissions {
    owner: (u32, u32),
    mode: u32,
    acl: Option<Vec<u8>>,
}

impl Permissions {
    fn of(fd: &impl AsFd) -> Result<Self> {
        let raw = stat_descriptor(fd)?.raw;
        let acl = match xattr::get_on(fd, OsStr::new(ACL)) {
            Err(error) if has_none(&error) => None,
            other => Some(other?),
        };
        Ok(Self { owner: (raw.st_uid, raw.st_gid), mode: raw.st_mode & 0o7777, acl })
    }

    fn give(&self, to: &impl AsFd) -> Result<()> {
        // Setting the owner drops capabilities, even if the owner stays the same.
        if owner(to)? != self.owner {
            let (uid, gid) = self.owner;
            set_attr_on(to, &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })?;
        }
        let mut mode = self.mode;
        match &self.acl {
            Some(acl) => match xattr::set_on(to, OsStr::new(ACL), acl, 0) {
                // What looks like the group's permissions is the most that any named user or group has.
                Err(error) if error.errno() == libc::EOPNOTSUPP => mode &= !GROUP,
                other => other?,
            },
            None => match xattr::remove_on(to, OsStr::new(ACL)) {
                Err(error) if !has_none(&error) => return Err(error),
                _ => {}
            },
        }
        set_attr_on(to, &SetAttr { mode: Some(mode), ..SetAttr::default() }).map(drop)
    }
}

fn owner(fd: &impl AsFd) -> Result<(u32, u32)> {
    let raw = stat_descriptor(fd)?.raw;
    Ok((raw.st_uid, raw.st_gid))
}

fn has_none(error: &Error) -> bool {
    matches!(error.errno(), libc::ENODATA | libc::EOPNOTSUPP)
}

/// Gives a file or directory the owner, mode and access ACL of another. Several threads may do so at the same time,
/// after changes of the other one: permissions that were read too early do not remain.
pub(super) fn make_like(from: &impl AsFd, to: &impl AsFd) -> Result<()> {
    let mut wanted = Permissions::of(from)?;
    for _ in 0..LOOKS_MAX {
        wanted.give(to)?;
        let now = Permissions::of(from)?;
        if now == wanted {
            return Ok(());
        }
        wanted = now;
    }
    Err(Errno::AGAIN.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions as Mode};
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use super::*;

    /// Regression: a move that had examined a directory before its mode changed opened its mirror again.
    #[test]
    fn the_last_permissions_stay_whoever_gives_them() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            File::open(dir.path().join(name)).unwrap()
        };
        let (from, to) = (make("from"), make("to"));
        for round in 0..300 {
            let mode = if round % 2 == 0 { 0o700 } else { 0o755 };
            thread::scope(|scope| {
                scope.spawn(|| make_like(&from, &to).unwrap());
                scope.spawn(|| {
                    from.set_permissions(Mode::from_mode(mode)).unwrap();
                    make_like(&from, &to).unwrap();
                });
            });
            assert_eq!(to.metadata().unwrap().permissions().mode() & 0o7777, mode, "{round}");
        }
    }
}
