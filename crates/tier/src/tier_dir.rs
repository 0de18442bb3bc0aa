//! The directory of one tier, the SSD or a lower one, and the files in it, accessed by descriptors.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, fstatfs, linkat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use super::steps::Steps;
use super::watcher::Watcher;
use halocline_api::control::tier::PRIVATE;
use halocline_meta::owner::Owner;
use halocline_os::beneath::{self, Parent};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_os::process_user::own_uid;
use halocline_os::rename_new::rename_new;
use halocline_os::timed_calls::TimedCalls;
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::statfs;

/// Bytes of a tier that stay free: its file system needs some for its own metadata.
const MARGIN: u64 = 1 << 20;

/// How long a tier's directory may take to answer: far longer than a busy disk needs.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// A tier's directory.
#[derive(Debug)]
pub(super) struct TierDir {
    root: OwnedFd,
    /// Its absolute path, for messages and links.
    pub(super) path: PathBuf,
    private: PrivateDir,
    /// The directory in which copies are made, on the same file system.
    tmp: PrivateDir,
    /// Steps of this tier.
    pub(super) steps: Arc<Steps>,
    /// Device number of the root.
    pub(super) device: u64,
    calls: TimedCalls,
}

impl TierDir {
    /// Opens the `tier`th tier at `path`, creating its private directories; `watcher` is told of its steps.
    ///
    /// # Errors
    /// [`Error::Invalid`] if these are not ours alone.
    pub(super) fn open(
        path: &Path,
        tier: usize,
        watcher: Option<Arc<dyn Watcher>>,
    ) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = |errno: Errno| Error::at(path, "open the tier")(errno.into());
        let root = openat(CWD, path, flags, Mode::empty()).map_err(at)?;
        let private = PrivateDir::make_in(&root, path, PRIVATE)?;
        let tmp = private.sub("tmp")?;
        let device = stat_descriptor(&root)?.raw.st_dev;
        let steps = Arc::new(Steps::new(tier, watcher));
        let calls = TimedCalls::default();
        Ok(Self { root, path: path.to_owned(), private, tmp, steps, device, calls })
    }

    /// Whether a sync of the whole file system makes everything on it durable and is no more than one commit: other
    /// file systems may leave this to their servers, or do nothing.
    pub(super) fn syncs_whole(&self) -> bool {
        const EXT4: i64 = 0xef53;
        const XFS: i64 = 0x5846_5342;
        const BTRFS: i64 = 0x9123_683e;
        const F2FS: i64 = 0xf2f5_2010;
        const TMPFS: i64 = 0x0102_1994;
        self.kind().is_some_and(|kind| [EXT4, XFS, BTRFS, F2FS, TMPFS].contains(&kind))
    }

    /// The engine's own directory.
    pub(super) const fn private(&self) -> &PrivateDir {
        &self.private
    }

    /// Refuses the tier if its private directory is not the one that `owner` has locked.
    pub(super) fn check_private(&self, owner: &Owner) -> Result<()> {
        if stat_descriptor(&self.private)?.key() == stat_descriptor(owner)?.key() {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{}: somebody replaces it", self.private.path().display()),
            "close the directories above the tier to other users: chmod 0700",
        ))
    }

    /// The tree of this tier.
    pub(super) fn tree(&self) -> Result<Namespace> {
        let root = self.root.try_clone().map_err(Error::at(&self.path, "open the tier"))?;
        Namespace::of(root)
    }

    /// An `O_PATH` descriptor of the file at `place`.
    ///
    /// # Errors
    /// [`Error::Path`] with `EIO` if the file is gone although a link names it.
    pub(super) fn find(&self, place: &Path) -> Result<OwnedFd> {
        match self.look(place) {
            // A link that somebody put in the way leads nowhere.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                let lost = std::io::Error::from_raw_os_error(libc::EIO);
                Err(Error::at(self.path.join(place), "find the file (is its tier mounted?)")(lost))
            }
            other => Ok(other?),
        }
    }

    /// The same; passes on every error unchanged.
    pub(super) fn look(&self, place: &Path) -> rustix::io::Result<OwnedFd> {
        beneath::open(&self.root, place, OFlags::PATH, Mode::empty())
    }

    /// The directory of a place and the name in it, for changes of that name.
    fn parent<'p>(&self, place: &'p Path) -> rustix::io::Result<(Parent<'_>, &'p OsStr)> {
        beneath::parent(self.root.as_fd(), place)
    }

    /// A new file that nobody sees yet.
    pub(super) fn temporary(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        self.steps.step("creating a copy", || {
            Ok(File::from(openat(&self.tmp, name, flags, Mode::RUSR | Mode::WUSR)?))
        })
    }

    /// The directory of temporary names.
    pub(super) const fn tmp(&self) -> &PrivateDir {
        &self.tmp
    }

    /// Removes a temporary name, if it is there.
    pub(super) fn drop_temporary(&self, name: &str) {
        let drop = || Ok(unlinkat(&self.tmp, name, AtFlags::empty())?);
        if let Err(error) = self.steps.step("dropping a copy", drop) {
            tracing::debug!(%error, "a temporary file is removed at the next mount");
        }
    }

    /// Gives a temporary file its place, not durably yet; `EEXIST` if something is there.
    pub(super) fn settle(&self, name: &str, place: &Path) -> Result<()> {
        self.steps.step("placing a copy", || {
            let (dir, to) = self.parent(place)?;
            Ok(rename_new(&self.tmp, name, &dir, to)?)
        })
    }

    /// Puts a temporary file in the place of the file that has it, not durably yet.
    pub(super) fn replace(&self, name: &str, place: &Path) -> Result<()> {
        self.steps.step("replacing a copy", || {
            let (dir, to) = self.parent(place)?;
            Ok(renameat(&self.tmp, name, &dir, to)?)
        })
    }

    /// Gives the file at `from` another place, not durably yet; `EEXIST` if something is there.
    pub(super) fn shift(&self, from: &Path, to: &Path) -> Result<()> {
        self.steps.step("moving a copy", || {
            let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
            Ok(rename_new(&from_dir, from, &to_dir, to)?)
        })
    }

    /// Gives the file at `from` a second place, not durably yet.
    pub(super) fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.steps.step("linking a second place", || {
            let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
            Ok(linkat(&from_dir, from, &to_dir, to, AtFlags::empty())?)
        })
    }

    /// Removes the file at `place`; it is not an error if it is gone already.
    pub(super) fn remove(&self, place: &Path) -> Result<()> {
        let remove = || {
            let (dir, name) = self.parent(place)?;
            unlinkat(&dir, name, AtFlags::empty())
        };
        self.steps.step("removing a file", || match remove() {
            // If a directory was replaced by a link, the file is not there either.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(Error::at(self.path.join(place), "remove")(errno.into())),
        })
    }

    /// Makes the directory of `place` durable: `what` says in which step.
    pub(super) fn sync_parent(&self, what: &'static str, place: &Path) -> Result<()> {
        let parent = place.parent().unwrap_or(Path::new(""));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match beneath::open(&self.root, parent, flags, Mode::empty()) {
            Ok(dir) => self.steps.sync(what, &dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes everything here durable.
    pub(super) fn sync_all(&self) -> Result<()> {
        self.steps.sync_all("syncing the file system", &self.whole()?)
    }

    /// A descriptor by which to sync the whole file system: the sync reports each write that has failed since it was
    /// opened.
    pub(super) fn whole(&self) -> Result<OwnedFd> {
        Ok(openat(&self.root, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The magic number of its file system.
    pub(super) fn kind(&self) -> Option<i64> {
        fstatfs(&self.root).ok().map(|totals| totals.f_type)
    }

    /// Removes a directory, if it is empty.
    pub(super) fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.steps.step("removing a directory", || {
            let (above, name) = self.parent(dir)?;
            Ok(unlinkat(&above, name, AtFlags::REMOVEDIR)?)
        })
    }

    /// Creates the directories above `place`; `mirror` gets each with its path, and makes it like that of the SSD.
    pub(super) fn make_parents(
        &self,
        place: &Path,
        mirror: &mut dyn FnMut(&Path, &OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let Some(parent) = place.parent().filter(|parent| *parent != Path::new("")) else {
            return Ok(());
        };
        if self.look(parent).is_ok() {
            return Ok(());
        }
        self.make_parents(parent, mirror)?;
        let made = self.steps.step("making a directory", || {
            let (above, name) = self.parent(parent)?;
            match mkdirat(&above, name, Mode::RWXU) {
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
        let like = || {
            let made = self.look(parent)?;
            check_new(&made, own_uid())?;
            mirror(parent, &made)
        };
        self.steps.step("setting a directory's attributes", like)?;
        self.sync_parent("syncing a directory", parent)
    }

    /// The last part of its directory's path.
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Whether the directory is still where it was opened.
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

    /// Whether its file system answers at all.
    ///
    /// # Errors
    /// `ETIMEDOUT` if a look at it has not ended after [`ANSWER_TIMEOUT`].
    pub(super) fn check_answers(&self) -> Result<()> {
        let root = self.root.try_clone().map_err(Error::at(&self.path, "open the tier"))?;
        let look = move || {
            // An error is an answer.
            let _answered = statfs(root.as_fd());
        };
        self.calls.within(ANSWER_TIMEOUT, look).ok_or_else(|| Error::Refused {
            message: format!(
                "{}: the directory does not answer: its device or server hangs, and what needs it waits; \
                 `umount --force` waits for nothing",
                self.path.display()
            ),
            errno: libc::ETIMEDOUT,
        })
    }

    /// Refuses a file system on which naming a file always risks replacing another: no file could come here.
    ///
    /// # Errors
    /// [`Error::Invalid`]. If this cannot be determined, as on a full or read-only file system, that is not an error.
    pub(super) fn check_renames(&self) -> Result<()> {
        let (from, to) = ("rename-from", "rename-to");
        let made = openat(&self.tmp, from, OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR);
        if made.is_err() {
            return Ok(());
        }
        let renamed = rename_new(&self.tmp, from, &self.tmp, to);
        for name in [from, to] {
            // If it stays, it is removed with the other temporary files at the next mount.
            let _dropped = unlinkat(&self.tmp, name, AtFlags::empty());
        }
        if renamed != Err(Errno::INVAL) {
            return Ok(());
        }
        Err(Error::invalid(
            format!(
                "{}: its file system knows neither renames that replace nothing (RENAME_NOREPLACE) nor hard links, so \
                 no file can come to this tier safely",
                self.path.display()
            ),
            "use a directory on another file system for it",
        ))
    }

    /// Bytes that can still be written here, or `None` if its file system does not report them within
    /// [`ANSWER_TIMEOUT`].
    pub(super) fn room_in_time(&self) -> Option<u64> {
        let root = self.root.try_clone().ok()?;
        let totals =
            self.calls.within(ANSWER_TIMEOUT, move || statfs(root.as_fd()).ok()).flatten()?;
        Some(room_of(&self.steps.room(totals)))
    }

    /// Bytes that can still be written here.
    pub(super) fn room(&self) -> Result<u64> {
        Ok(room_of(&self.totals()?))
    }

    /// Totals of its file system.
    pub(super) fn totals(&self) -> Result<libc::statvfs64> {
        Ok(self.steps.room(statfs(self.root.as_fd())?))
    }

    /// Removes every temporary file: copies that never got a place.
    pub(super) fn drop_temporaries(&self) -> Result<usize> {
        let mut count = 0;
        for name in self.tmp.names()? {
            let drop = || Ok(unlinkat(&self.tmp, &name, AtFlags::empty())?);
            self.steps.step("dropping a copy", drop)?;
            count += 1;
        }
        Ok(count)
    }
}

/// Bytes that can still be written to a file system with these totals.
const fn room_of(totals: &libc::statvfs64) -> u64 {
    totals.f_bavail.saturating_mul(totals.f_frsize).saturating_sub(MARGIN)
}

/// Refuses a directory that is not the one just created: somebody has put another in its place.
pub(super) fn check_new(made: &impl AsFd, uid: u32) -> Result<()> {
    let stat = stat_descriptor(made)?;
    let is_ours = stat.kind() == libc::S_IFDIR && stat.raw.st_uid == uid;
    if is_ours { Ok(()) } else { Err(Errno::STALE.into()) }
}
