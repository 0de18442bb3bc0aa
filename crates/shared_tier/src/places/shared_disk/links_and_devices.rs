//! Things without bytes or numbers on the shared disk: symbolic links, pipes, sockets and devices. They are made
//! after the store has them, and are identified by their names.

use std::os::fd::AsFd;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, RenameFlags, Uid, chmodat, chownat, mknodat, readlinkat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::{SharedDisk, is_no_exchange};
use crate::entry_names::os;
use crate::places::DirectoryStep;
use crate::places::tree::{FoundDirectory, Tree, below, candidates, fresh, kind};
use crate::stat_conversion::file_type;

impl SharedDisk {
    /// Makes a symbolic link, pipe, socket or device with these attributes, if it is not there.
    pub(crate) fn make_other(
        &self,
        near: &[DirectoryStep],
        name: (&Name, u64),
        of: &Attributes,
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        if is_as_in_store(&above, name.0, of)? {
            return Ok(());
        }
        make_other_in(&self.tree, &above, name, of)
    }

    /// Renames a symbolic link, pipe, socket or device in one step, to a free name, or to that of another one, which then
    /// has the old name and must be removed there: so neither is without a name at any moment. Returns whether the new
    /// name is now as it should be; if not, it must be made there.
    pub(crate) fn rename_other(
        &self,
        (from_near, from): (&[DirectoryStep], &Name),
        (to_near, to): (&[DirectoryStep], &Name),
        (inode, of): (u64, &Attributes),
    ) -> Result<bool> {
        let [from_above, to_above] = [from_near, to_near].map(|near| {
            let number = near.last().map_or(ROOT.0, |step| step.number);
            self.find(number, Some(near))
        });
        let (from_above, to_above) = (from_above?, to_above?);
        for name in candidates(from, inode) {
            if !is_as_in_store(&from_above, &name, of)? {
                continue;
            }
            // A file that lies at its name, but has others, stays there: then it gets the other name.
            for to in candidates(to, inode) {
                if self.rename_to((&from_above, &name), (&to_above, &to))? {
                    // Another one may have taken the old name, and may now have the new name.
                    return is_as_in_store(&to_above, &to, of);
                }
            }
            return Ok(false);
        }
        Ok(false)
    }

    /// Renames something without a number to a free name, or that of another one. Returns whether it did.
    fn rename_to(
        &self,
        from: (&FoundDirectory, &Name),
        to: (&FoundDirectory, &Name),
    ) -> Result<bool> {
        let path = below(from.0.1.as_ref(), from.1)?;
        match self.tree.rename(&path, to.0, to.1) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == libc::EEXIST => self.exchange_others(from, to),
            Err(error) if error.errno() == libc::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Exchanges two things without numbers. Returns whether it did.
    fn exchange_others(
        &self,
        (one_above, one): (&FoundDirectory, &Name),
        (other_above, other): (&FoundDirectory, &Name),
    ) -> Result<bool> {
        let is_numbered = |above, name| {
            Ok::<_, Error>(matches!(kind(above, name)?, Some(libc::S_IFREG | libc::S_IFDIR)))
        };
        if is_numbered(other_above, other)? {
            return Ok(false);
        }
        let exchange = || {
            let (one, other) = (os(one), os(other));
            renameat_with(&one_above.0, one, &other_above.0, other, RenameFlags::EXCHANGE)
        };
        match self.tree.step("exchanging two links or devices", exchange) {
            Err(error) if is_no_exchange(&error) => return Ok(false),
            done => done?,
        }
        if is_numbered(one_above, one)? {
            // A file or directory had the name by then: back to its place.
            self.tree.step("exchanging two links or devices", exchange)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Removes a symbolic link, pipe, socket or device, but nothing else; a missing one is no error.
    pub(crate) fn remove_other(
        &self,
        near: &[DirectoryStep],
        (name, inode): (&Name, u64),
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        for name in candidates(name, inode) {
            remove_other_in(&self.tree, &above, &name)?;
        }
        Ok(())
    }
}

/// Makes a symbolic link, pipe, socket or device among the temporary files, and names it. It replaces whatever has the
/// name, except for a file or directory, which have numbers; then it gets the other name.
pub(crate) fn make_other_in(
    tree: &Tree,
    above: &FoundDirectory,
    (name, inode): (&Name, u64),
    of: &Attributes,
) -> Result<()> {
    let temporary = fresh("o", inode);
    tree.step("making a link or device", || make(&tree.tmp, &temporary, of))?;
    let mut named = Err(Errno::EXIST.into());
    for name in candidates(name, inode) {
        remove_other_in(tree, above, &name)?;
        named = tree.settle_other(&temporary, above, &name);
        if !named.as_ref().is_err_and(|error| error.errno() == libc::EEXIST) {
            break;
        }
    }
    named.inspect_err(|_| {
        let _gone = unlinkat(&tree.tmp, &temporary, AtFlags::empty());
    })
}

fn make(dir: &PrivateDir, fresh: &str, of: &Attributes) -> Result<()> {
    let owner = (of.uid, of.gid);
    if of.kind == Kind::Symlink {
        symlinkat(of.target.as_slice(), dir, fresh)?;
        return own_other(dir, fresh, owner);
    }
    let (kind, bits) = (file_type(of.kind), Mode::from_raw_mode(of.mode & 0o7777));
    mknodat(dir, fresh, FileType::from_raw_mode(kind), bits, of.rdev)?;
    own_other(dir, fresh, owner)?;
    // `mknod` applies the umask.
    Ok(chmodat(dir, fresh, bits, AtFlags::empty())?)
}

fn remove_other_in(tree: &Tree, above: &FoundDirectory, name: &Name) -> Result<()> {
    let path = below(above.1.as_ref(), name)?;
    match kind(above, name)? {
        None | Some(libc::S_IFREG | libc::S_IFDIR) => Ok(()),
        Some(_) => match tree.unlink(&path, AtFlags::empty()) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        },
    }
}

/// Whether a name on the disk is neither a file nor a directory, and is what the store says.
fn is_as_in_store(above: &FoundDirectory, name: &Name, of: &Attributes) -> Result<bool> {
    let found = match statat(&above.0, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        found => found?,
    };
    let is_of = (found.st_uid, found.st_gid) == (of.uid, of.gid)
        && found.st_mode & libc::S_IFMT == file_type(of.kind);
    if !is_of || matches!(of.kind, Kind::File | Kind::Directory) {
        return Ok(false);
    }
    if of.kind != Kind::Symlink {
        return Ok(found.st_mode & 0o7777 == of.mode && found.st_rdev == of.rdev);
    }
    match readlinkat(&above.0, os(name), Vec::new()) {
        Err(Errno::NOENT | Errno::INVAL) => Ok(false),
        target => Ok(target?.as_bytes() == of.target),
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
