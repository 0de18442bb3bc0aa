//! What has no bytes and no number on the shared disk: symbolic links, pipes, sockets and devices. They are made after the store has
//! them, and are known by their names.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Uid, chmodat, chownat, mknodat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::SharedDisk;
use crate::places::DirectoryStep;
use crate::places::tree::{FoundDirectory, below, candidates, fresh, kind};

impl SharedDisk {
    /// Makes a symbolic link.
    pub(crate) fn make_link(
        &self,
        near: &[DirectoryStep],
        name: (&Name, u64),
        target: &OsStr,
        owner: (u32, u32),
    ) -> Result<()> {
        self.make_other(near, name, |dir, fresh| {
            symlinkat(target, dir, fresh)?;
            own_other(dir, fresh, owner)
        })
    }

    /// Makes a pipe, socket or device; `mode` has its kind.
    pub(crate) fn make_special(
        &self,
        near: &[DirectoryStep],
        name: (&Name, u64),
        (mode, uid, gid, device): (u32, u32, u32, u64),
    ) -> Result<()> {
        self.make_other(near, name, |dir, fresh| {
            let bits = Mode::from_raw_mode(mode & 0o7777);
            mknodat(dir, fresh, FileType::from_raw_mode(mode), bits, device)?;
            own_other(dir, fresh, (uid, gid))?;
            // `mknod` leaves out what the umask says.
            Ok(chmodat(dir, fresh, bits, AtFlags::empty())?)
        })
    }

    /// Makes a symbolic link, pipe, socket or device by `make`, which gets the directory and name of a temporary file. What
    /// has the name goes, unless it is a file or directory, which have numbers; then it gets the other name.
    fn make_other(
        &self,
        near: &[DirectoryStep],
        (name, inode): (&Name, u64),
        make: impl FnOnce(&PrivateDir, &str) -> Result<()>,
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        let temporary = fresh("o", inode);
        self.tree.step("making a link or device", || make(&self.tree.tmp, &temporary))?;
        let mut named = Err(Errno::EXIST.into());
        for name in candidates(name, inode) {
            self.remove_other_at(&above, &name)?;
            named = self.tree.settle_other(&temporary, &above, &name);
            if !named.as_ref().is_err_and(|error| error.errno() == libc::EEXIST) {
                break;
            }
        }
        named.inspect_err(|_| {
            let _gone = unlinkat(&self.tree.tmp, &temporary, AtFlags::empty());
        })
    }

    /// Removes a symbolic link, pipe, socket or device; nothing else, and it is no error if it is gone.
    pub(crate) fn remove_other(
        &self,
        near: &[DirectoryStep],
        (name, inode): (&Name, u64),
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        for name in candidates(name, inode) {
            self.remove_other_at(&above, &name)?;
        }
        Ok(())
    }

    fn remove_other_at(&self, above: &FoundDirectory, name: &Name) -> Result<()> {
        let path = below(above.1.as_ref(), name)?;
        match kind(above, name)? {
            None | Some(libc::S_IFREG | libc::S_IFDIR) => Ok(()),
            Some(_) => match self.tree.unlink(&path, AtFlags::empty()) {
                Err(error) if error.errno() == libc::ENOENT => Ok(()),
                other => other,
            },
        }
    }
}

fn own_other(dir: &impl AsFd, name: &str, (uid, gid): (u32, u32)) -> Result<()> {
    let now = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (now.st_uid, now.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}
