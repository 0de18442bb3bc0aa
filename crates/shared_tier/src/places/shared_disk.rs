//! Directories on the shared disk, which are renamed there as in the store, and are known by their numbers.
//!
//! What must hold: a directory that a node was renaming when it died is still found. Before it is renamed, a link in
//! `.halocline/renaming`, whose name is its number, leads to where it was.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Uid, chmodat, chownat, mknodat, readlinkat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::tree::{FoundDirectory, Tree, candidates, kind};
use super::{Directories, DirectoryStep, marks};

/// The most paths of directories that are remembered.
const REMEMBERED_MAX: usize = 1 << 16;
/// How often a directory is looked for that others rename meanwhile: two seconds in all.
const TRIES: u32 = 40;
/// How long it is waited the first time; then twice as long each time, up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The shared disk.
#[derive(Debug)]
pub(crate) struct SharedDisk {
    pub(crate) tree: Tree,
    renaming: PrivateDir,
    directories: Arc<dyn Directories>,
    /// Where directories were seen last. What is here may be wrong: the number is compared at each use.
    remembered: Mutex<FxHashMap<u64, RelativePath>>,
}

impl SharedDisk {
    pub(crate) fn new(tree: Tree, directories: Arc<dyn Directories>) -> Result<Self> {
        let renaming = tree.private.sub("renaming")?;
        Ok(Self { tree, renaming, directories, remembered: Mutex::default() })
    }

    /// The directory with a number. `near` are the steps to it, if the caller knows some.
    ///
    /// # Errors
    /// `ENOENT` if there is none in the store; `EIO` if it is in the store and not on the disk.
    pub(crate) fn find(
        &self,
        number: u64,
        near: Option<&[DirectoryStep]>,
    ) -> Result<FoundDirectory> {
        if number == ROOT.0 {
            return Ok((self.tree.look(None)?, None));
        }
        if let Some(found) = self.look(number, near)? {
            return Ok(found);
        }
        // Others may rename it, or one above, again and again meanwhile.
        for again in 0..TRIES {
            if again > 0 {
                thread::sleep(PAUSE.saturating_mul(1 << again.min(16)).min(PAUSE_MAX));
            }
            let steps = self.directories.steps(number)?;
            if let Some(found) = self.look(number, Some(&steps))? {
                return Ok(found);
            }
            if let Some(found) = self.being_renamed(number)? {
                return Ok(found);
            }
            // One above it may be where a rename that was not finished has left it.
            if let Some((at, above)) = self.below_one_being_renamed(&steps)? {
                let found = self.tree.find_below(above, &steps[at..])?;
                if let Some(found) = found {
                    return Ok(found);
                }
            }
        }
        Err(Error::Cluster {
            what: format!(
                "{}: directory {number} of the store is not on the shared disk",
                self.tree.path.display()
            ),
            remedy: "have them compared: halocline cluster fsck --tier".to_owned(),
        })
    }

    fn look(&self, number: u64, near: Option<&[DirectoryStep]>) -> Result<Option<FoundDirectory>> {
        let remembered = self.remembered.lock().get(&number).cloned();
        if let Some(path) = remembered
            && let Some(fd) = self.tree.directory_at(Some(&path), number)?
        {
            return Ok(Some((fd, Some(path))));
        }
        let Some(near) = near.filter(|near| near.last().is_some_and(|step| step.number == number))
        else {
            return Ok(None);
        };
        let found = self.tree.find(near)?;
        if let Some((_, Some(path))) = &found {
            self.remember(number, path.clone());
        }
        Ok(found)
    }

    pub(crate) fn remember(&self, number: u64, path: RelativePath) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(number, path);
    }

    /// A directory that somebody was renaming, where it was before.
    fn being_renamed(&self, number: u64) -> Result<Option<FoundDirectory>> {
        let Some(path) = self.renamed_from(number)? else { return Ok(None) };
        let found = self.tree.directory_at(Some(&path), number)?;
        Ok(found.map(|fd| (fd, Some(path))))
    }

    /// The lowest directory of some steps that somebody was renaming, and how many steps lead to it.
    fn below_one_being_renamed(
        &self,
        steps: &[DirectoryStep],
    ) -> Result<Option<(usize, FoundDirectory)>> {
        for (at, step) in steps.iter().enumerate().rev() {
            if let Some(found) = self.being_renamed(step.number)? {
                return Ok(Some((at + 1, found)));
            }
        }
        Ok(None)
    }

    /// Where a directory was before it was renamed by somebody who has not finished.
    fn renamed_from(&self, number: u64) -> Result<Option<RelativePath>> {
        match readlinkat(&self.renaming, number.to_string(), Vec::new()) {
            Ok(target) => Ok(RelativePath::new(target.as_bytes())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory.
    pub(crate) fn make(
        &self,
        near: &[DirectoryStep],
        step: &DirectoryStep,
        owner: super::tree::Owner,
    ) -> Result<()> {
        let number = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(number, Some(near))?;
        let (_, path) = self.tree.make_directory(&above, step, owner)?;
        if let Some(path) = path {
            self.remember(step.number, path);
        }
        Ok(())
    }

    /// Before the store's rename: the directory is found afterwards, whatever happens.
    pub(crate) fn begin_rename(&self, number: u64, near: Option<&[DirectoryStep]>) -> Result<()> {
        let (_, path) = self.find(number, near)?;
        let path = path.ok_or(Errno::BUSY)?;
        let name = number.to_string();
        for _ in 0..TRIES {
            let link = || symlinkat(path.as_path(), &self.renaming, &name);
            match self.tree.step("noting a directory's old path", link) {
                Ok(()) => return Ok(()),
                Err(error) if error.errno() == libc::EEXIST => {}
                Err(error) => return Err(error),
            }
            // Somebody else renames it, or died when doing so: what is noted is right, or is put right.
            match self.renamed_from(number)? {
                Some(noted) if noted == path => return Ok(()),
                _ => self.end_rename(number)?,
            }
        }
        Err(Errno::BUSY.into())
    }

    /// The rename was not made, or is done.
    pub(crate) fn end_rename(&self, number: u64) -> Result<()> {
        let remove = || unlinkat(&self.renaming, number.to_string(), AtFlags::empty());
        match self.tree.step("forgetting a directory's old path", remove) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        }
    }

    /// After the store's rename: the directory gets its name on the disk, too. `replaced` is the number of the empty
    /// directory that had the name.
    pub(crate) fn rename(
        &self,
        number: u64,
        near: &[DirectoryStep],
        name: &Name,
        replaced: Option<u64>,
    ) -> Result<()> {
        let to = near.last().map_or(ROOT.0, |step| step.number);
        let above = self.find(to, Some(near))?;
        let there = DirectoryStep { number, name: name.clone() };
        if let Some((_, Some(path))) = self.tree.child(&above, &there)? {
            // It was done already, by whoever met it half done.
            self.remember(number, path);
            return self.end_rename(number);
        }
        let (_, from) = match self.being_renamed(number)? {
            Some(found) => found,
            None => self.find(number, None)?,
        };
        let from = from.ok_or(Errno::BUSY)?;
        if let Some(replaced) = replaced {
            let gone = DirectoryStep { number: replaced, name: name.clone() };
            if let Some((_, Some(path))) = self.tree.child(&above, &gone)? {
                self.remove_at(&path)?;
            }
        }
        let mut tried = Err(Errno::EXIST.into());
        for name in candidates(name, number) {
            tried = self.tree.rename(&from, &above, &name);
            if !tried.as_ref().is_err_and(|error| error.errno() == libc::EEXIST) {
                break;
            }
        }
        self.remember(number, tried?);
        self.end_rename(number)
    }

    /// Removes a directory. One in which something is left that no name leads to stays, for a check.
    pub(crate) fn remove(&self, number: u64, near: &[DirectoryStep]) -> Result<()> {
        if let Some((_, Some(path))) = self.look(number, Some(near))? {
            self.remove_at(&path)?;
        }
        self.remembered.lock().remove(&number);
        Ok(())
    }

    fn remove_at(&self, path: &RelativePath) -> Result<()> {
        match self.tree.unlink(path, AtFlags::REMOVEDIR) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            Err(error) if matches!(error.errno(), libc::ENOTEMPTY | libc::EEXIST) => {
                tracing::warn!(
                    directory = %path,
                    "a directory that was removed has something left in it on the shared disk; \
                     halocline cluster fsck --tier says what"
                );
                Ok(())
            }
            other => other,
        }
    }

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
        let fresh = super::tree::fresh("o", inode);
        self.tree.step("making a link or device", || make(&self.tree.tmp, &fresh))?;
        let mut named = Err(Errno::EXIST.into());
        for name in candidates(name, inode) {
            self.remove_other_at(&above, &name)?;
            named = self.tree.settle_other(&fresh, &above, &name);
            if !named.as_ref().is_err_and(|error| error.errno() == libc::EEXIST) {
                break;
            }
        }
        named.inspect_err(|_| {
            let _gone = unlinkat(&self.tree.tmp, &fresh, AtFlags::empty());
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
        let path = super::tree::below(above.1.as_ref(), name)?;
        match kind(above, name)? {
            None | Some(libc::S_IFREG | libc::S_IFDIR) => Ok(()),
            Some(_) => match self.tree.unlink(&path, AtFlags::empty()) {
                Err(error) if error.errno() == libc::ENOENT => Ok(()),
                other => other,
            },
        }
    }

    /// A directory's descriptor and the number that it has on the disk.
    pub(crate) fn descriptor(&self, number: u64) -> Result<OwnedFd> {
        let (fd, _) = self.find(number, None)?;
        debug_assert!(number == ROOT.0 || marks::number(&fd, marks::DIRECTORY) == Some(number));
        Ok(fd)
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
