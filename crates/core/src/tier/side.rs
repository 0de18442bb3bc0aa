//! One lower tier: a directory with ordinary files, reached by descriptors.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, linkat, mkdirat, openat, openat2,
    renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::PRIVATE;
use super::steps::Steps;
use crate::error::{Error, Result};
use crate::namespace::attributes::statfs;
use crate::namespace::stat_descriptor;

/// Bytes of a tier that stay free: its file system needs some for its own metadata.
const MARGIN: u64 = 1 << 20;

/// A tier's directory.
#[derive(Debug)]
pub(super) struct Side {
    root: OwnedFd,
    /// Its absolute path, for messages and links.
    pub(super) path: PathBuf,
    /// Where copies grow, on the same file system.
    tmp: OwnedFd,
    /// Changes of this tier.
    pub(super) steps: Arc<Steps>,
    /// Device number of the root.
    pub(super) device: u64,
}

impl Side {
    /// Opens the `tier`th tier at `path`, making its private directories.
    pub(super) fn open(path: &Path, tier: usize) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = |errno: Errno| Error::at(path, "open the tier")(errno.into());
        let root = openat(CWD, path, flags, Mode::empty()).map_err(at)?;
        for name in [PRIVATE.into(), format!("{PRIVATE}/tmp")] {
            match mkdirat(&root, &name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => {
                    return Err(Error::at(path.join(name), "create the directory")(errno.into()));
                }
            }
        }
        let tmp = openat(&root, format!("{PRIVATE}/tmp"), flags, Mode::empty()).map_err(at)?;
        let device = stat_descriptor(&root)?.raw.st_dev;
        let steps = Arc::new(Steps::new(tier));
        Ok(Self { root, path: path.to_owned(), tmp, steps, device })
    }

    /// An `O_PATH` descriptor of the file at `place`.
    ///
    /// # Errors
    /// [`Error::Path`] with `EIO` where the file is gone although a link names it.
    pub(super) fn find(&self, place: &Path) -> Result<OwnedFd> {
        match self.look(place) {
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let lost = std::io::Error::from_raw_os_error(libc::EIO);
                Err(Error::at(self.path.join(place), "find the file (is its tier mounted?)")(lost))
            }
            other => Ok(other?),
        }
    }

    /// The same; any error as it is.
    pub(super) fn look(&self, place: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, place, flags, Mode::empty(), how)
    }

    /// A new file that nobody sees yet.
    pub(super) fn temporary(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        self.steps.step("creating a copy", || {
            Ok(File::from(openat(&self.tmp, name, flags, Mode::RUSR | Mode::WUSR)?))
        })
    }

    /// The directory of temporary names.
    pub(super) fn tmp(&self) -> &OwnedFd {
        &self.tmp
    }

    /// Removes a temporary name, if it is there.
    pub(super) fn drop_temporary(&self, name: &str) {
        let drop = || Ok(unlinkat(&self.tmp, name, AtFlags::empty())?);
        if let Err(error) = self.steps.step("dropping a copy", drop) {
            tracing::debug!(%error, "a temporary file is removed at the next mount");
        }
    }

    /// Gives a temporary file its place, not durably yet; `EEXIST` where something is there.
    pub(super) fn settle(&self, name: &str, place: &Path) -> Result<()> {
        self.steps.step("placing a copy", || {
            Ok(renameat_with(&self.tmp, name, &self.root, place, RenameFlags::NOREPLACE)?)
        })
    }

    /// Gives the file at `from` a second place, not durably yet.
    pub(super) fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.steps.step("linking a second place", || {
            Ok(linkat(&self.root, from, &self.root, to, AtFlags::empty())?)
        })
    }

    /// Removes the file at `place`; what is gone already is no error.
    pub(super) fn remove(&self, place: &Path) -> Result<()> {
        self.steps.step("removing a file", || match unlinkat(&self.root, place, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(Error::at(self.path.join(place), "remove")(errno.into())),
        })
    }

    /// Makes the directory of `place` durable: `what` says in which step.
    pub(super) fn sync_parent(&self, what: &'static str, place: &Path) -> Result<()> {
        let parent = place.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.root, parent, flags, Mode::empty()) {
            Ok(dir) => self.steps.sync(what, &dir),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes everything here durable.
    pub(super) fn sync_all(&self) -> Result<()> {
        let root = openat(&self.root, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.steps.sync_all("syncing the file system", &root)
    }

    /// Removes a directory, if it is empty.
    pub(super) fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.steps
            .step("removing a directory", || Ok(unlinkat(&self.root, dir, AtFlags::REMOVEDIR)?))
    }

    /// Makes the directories above `place`; `liken` makes each, which it is given with its path,
    /// like that of the SSD.
    pub(super) fn make_parents(
        &self,
        place: &Path,
        liken: &mut dyn FnMut(&Path, &OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let Some(parent) = place.parent().filter(|parent| *parent != Path::new("")) else {
            return Ok(());
        };
        if self.look(parent).is_ok() {
            return Ok(());
        }
        self.make_parents(parent, liken)?;
        let made = self.steps.step("making a directory", || {
            match mkdirat(&self.root, parent, Mode::RWXU) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(errno) => {
                    Err(Error::at(self.path.join(parent), "create the directory")(errno.into()))
                }
            }
        })?;
        if !made {
            return Ok(());
        }
        let like = || liken(parent, &self.look(parent)?);
        self.steps.step("setting a directory's attributes", like)?;
        self.sync_parent("syncing a directory", parent)
    }

    /// The last part of its directory's path.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Whether the directory still is where it was opened.
    pub(super) fn is_there(&self) -> Result<()> {
        let now = std::fs::symlink_metadata(&self.path);
        let now = now.map_err(Error::at(&self.path, "reach the tier (is its device mounted?)"))?;
        let own = stat_descriptor(&self.root)?.raw;
        if (now.dev(), now.ino()) != (own.st_dev, own.st_ino) {
            return Err(Error::invalid(
                format!("{}: another directory is there now", self.path.display()),
                "unmount, bring the tier's device back, and mount again",
            ));
        }
        Ok(())
    }

    /// Bytes that can still be written here.
    pub(super) fn room(&self) -> Result<u64> {
        let totals = self.totals()?;
        Ok(totals.f_bavail.saturating_mul(totals.f_frsize).saturating_sub(MARGIN))
    }

    /// Totals of its file system.
    pub(super) fn totals(&self) -> Result<libc::statvfs64> {
        statfs(self.root.as_fd())
    }

    /// Removes every temporary file: copies that never got a place.
    pub(super) fn drop_temporaries(&self) -> Result<usize> {
        let dir = self.path.join(PRIVATE).join("tmp");
        let mut count = 0;
        for entry in std::fs::read_dir(&dir).map_err(Error::at(&dir, "list"))? {
            let name = entry.map_err(Error::at(&dir, "list"))?.file_name();
            self.steps.step("dropping a copy", || {
                Ok(unlinkat(&self.tmp, OsStr::new(&name), AtFlags::empty())?)
            })?;
            count += 1;
        }
        Ok(count)
    }
}
