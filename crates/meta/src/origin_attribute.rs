//! A cache's notes on other storage: extended attributes of its origin's directory.
//!
//! Anyone who may write to a directory may set its `user.` attributes, and the contents of these drop bytes of the
//! cache or refuse mounts. Only root can set a `trusted.` attribute, which is used if possible: for root, on file
//! systems that support it. In addition, root trusts a `user.` one, as earlier versions wrote it, if no one else may
//! write to the directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Limit for a list of names: the kernel's own.
const NAMES_BYTES_MAX: usize = 1 << 16;

/// Write permissions of others.
const OTHERS_WRITE: u32 = 0o022;

/// An attribute of one cache; hidden from programs on a mount.
#[derive(Debug)]
pub(super) struct OriginAttribute {
    dir: File,
    /// The attribute that we write.
    attribute: String,
    /// The attribute that users other than root, and earlier versions, write, if it is another one.
    users: Option<String>,
    /// Whether only this process's user can have written that one.
    are_users_believed: bool,
}

impl OriginAttribute {
    /// The attribute of `dir` for the subject `what` and the cache with this id.
    pub(super) fn new(dir: File, what: &str, cache_id: &str) -> io::Result<Self> {
        let [trusted, user] =
            ["trusted", "user"].map(|class| format!("{class}.halocline.{what}.{cache_id}"));
        // Replacing a missing attribute shows whether writing is allowed, and writes nothing.
        let probe = fsetxattr(&dir, "trusted.halocline.probe", &[], XattrFlags::REPLACE);
        let is_privileged = match probe {
            Ok(()) | Err(Errno::NODATA) => true,
            Err(Errno::PERM | Errno::OPNOTSUPP) => false,
            // For example on a file system that is currently read-only.
            Err(_) => geteuid().is_root(),
        };
        if !is_privileged {
            return Ok(Self { dir, attribute: user, users: None, are_users_believed: true });
        }
        let found = dir.metadata()?;
        let is_ours = found.uid() == geteuid().as_raw() && found.mode() & OTHERS_WRITE == 0;
        Ok(Self { dir, attribute: trusted, users: Some(user), are_users_believed: is_ours })
    }

    /// The contents, at most `bytes_max` of each attribute.
    pub(super) fn read(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        for name in self.names() {
            all.append(&mut self.value(name, bytes_max)?);
        }
        Ok(all)
    }

    /// The same, only from the attribute that we write.
    pub(super) fn read_own(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.value(&self.attribute, bytes_max)
    }

    /// The same, only from the attribute of other users, and whether it may be trusted.
    pub(super) fn read_of_users(&self, bytes_max: usize) -> io::Result<(Vec<u8>, bool)> {
        let value = self.users.as_ref().map_or(Ok(Vec::new()), |name| self.value(name, bytes_max));
        Ok((value?, self.are_users_believed))
    }

    /// The name of an attribute that may be trusted and whose value is `right`, if there is one.
    pub(super) fn believed(
        &self,
        bytes_max: usize,
        right: impl Fn(&[u8]) -> bool,
    ) -> Option<String> {
        // A longer value is not ours.
        let mut names = self.names();
        names
            .find(|name| right(&self.value(name, bytes_max).unwrap_or_default()))
            .map(str::to_owned)
    }

    fn value(&self, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut value = vec![0; bytes_max];
        match fgetxattr(&self.dir, name, &mut value) {
            Ok(len) => value.truncate(len),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => value.clear(),
            Err(errno) => return Err(errno.into()),
        }
        Ok(value)
    }

    /// Replaces the contents by `value`, durably.
    pub(super) fn write(&self, value: &[u8]) -> io::Result<()> {
        fsetxattr(&self.dir, &*self.attribute, value, XattrFlags::empty())?;
        self.dir.sync_all()
    }

    /// Writes it also where other users see it.
    pub(super) fn write_for_users(&self, value: &[u8]) -> io::Result<()> {
        let Some(name) = &self.users else { return Ok(()) };
        Ok(fsetxattr(&self.dir, name, value, XattrFlags::empty())?)
    }

    /// Removes it, durably.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.remove(self.names())
    }

    /// Removes both attributes, durably.
    pub(super) fn clear_everywhere(&self) -> io::Result<()> {
        self.remove(self.users.iter().chain([&self.attribute]).map(String::as_str))
    }

    fn remove<'a>(&self, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
        for name in names {
            match fremovexattr(&self.dir, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.dir.sync_all()
    }

    /// The ids of all caches with an attribute of `dir` for the subject `what`.
    pub(super) fn caches(dir: &File, what: &str) -> io::Result<BTreeSet<String>> {
        let mut names = vec![0; NAMES_BYTES_MAX];
        let len = match flistxattr(dir, &mut names) {
            Err(Errno::OPNOTSUPP) => return Ok(BTreeSet::new()),
            other => other?,
        };
        Ok(subjects_in(&names[..len], what))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let users = self.users.iter().filter(|_| self.are_users_believed);
        users.chain([&self.attribute]).map(String::as_str)
    }
}

/// The ids of the caches that a list of names of attributes, ended by NUL each, has for the subject `what`.
pub(crate) fn subjects_in(names: &[u8], what: &str) -> BTreeSet<String> {
    let prefixes = ["trusted", "user"].map(|class| format!("{class}.halocline.{what}."));
    let ids = names.split(|&byte| byte == 0).filter_map(|name| {
        let name = std::str::from_utf8(name).ok()?;
        prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_str()))
    });
    ids.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn witness(dir: &tempfile::TempDir) -> OriginAttribute {
        OriginAttribute::new(File::open(dir.path()).unwrap(), "distrust", "id").unwrap()
    }

    /// Regression: one line dropped all dirty bytes of root's cache if others could write to the origin's directory.
    #[test]
    fn root_believes_nothing_that_others_can_write() {
        let dir = tempfile::tempdir().unwrap();
        let is_privileged = witness(&dir).attribute.starts_with("trusted.");
        let by_others = "user.halocline.distrust.id";
        let plant = || {
            let at = File::open(dir.path()).unwrap();
            fsetxattr(&at, by_others, b"all\n", XattrFlags::empty()).unwrap();
        };
        plant();
        assert_eq!(witness(&dir).read(100).unwrap(), b"all\n", "an earlier version's");
        witness(&dir).clear().unwrap();
        assert_eq!(witness(&dir).read(100).unwrap(), b"");
        plant();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let said: &[u8] = if is_privileged { b"" } else { b"all\n" };
        assert_eq!(witness(&dir).read(100).unwrap(), said);
        witness(&dir).write(b"clean\n").unwrap();
        assert_eq!(witness(&dir).read(100).unwrap(), b"clean\n", "its own is read in any case");
    }
}
