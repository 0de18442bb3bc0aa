//! The directory tree of one tier on one node, with directories identified by number.
//!
//! What must hold: nothing is found through a symbolic link, and no directory is taken for one with another number.

pub(crate) mod directory_names;
mod durable_directories;

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use halocline_api::control::tier::PRIVATE;
use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_cluster::names::attributes::RelativePath;
use halocline_model::namespace::{Name, ROOT};
use halocline_os::beneath;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_os::rename_new::rename_new;
use halocline_os::write_lease::is_exclusive;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::{stat_descriptor, statx::statfs};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::descriptor_path::proc_path;
use super::room::Room;
use super::steps::Steps;
use super::{DirectoryStep, own_xattrs};
use crate::entry_names::os;
use durable_directories::DurableDirectories;

/// A directory and its path from the root; `None` for the root itself.
pub(crate) type FoundDirectory = (OwnedFd, Option<RelativePath>);

/// Owner and mode of something new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Something that counts for a user's quota.
#[derive(Debug)]
pub(crate) struct Quota<'a, F> {
    pub(crate) of: &'a F,
    /// Whose it becomes; without it, it stays whose it is.
    pub(crate) user: Option<u32>,
}

/// One tier's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// For messages.
    pub(crate) path: PathBuf,
    pub(crate) private: PrivateDir,
    /// Where things are made before they get a name.
    pub(crate) tmp: PrivateDir,
    steps: Steps,
    pub(super) room: Room,
    durable: DurableDirectories,
}

/// The names under which something may be found: its own, or with its number appended if that is taken.
pub(crate) fn candidates(name: &Name, number: u64) -> [Name; 2] {
    let suffix = format!("~{number}");
    let name_bytes = name.as_bytes();
    let kept = &name_bytes[..name_bytes.len().min(NAME_BYTES_MAX - suffix.len())];
    [name.clone(), Name::from([kept, suffix.as_bytes()].concat().as_slice())]
}

/// In the private directory of a disk: what people are to look at, and remove.
pub(crate) const LEFTOVERS: &str = "leftovers";
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Puts a file at a name in its directory.
type PutAt<'a> = &'a dyn Fn(&Name) -> rustix::io::Result<()>;

impl Tree {
    /// Opens the tier at `path`, and makes its private directories if they are missing.
    ///
    /// # Errors
    /// If it cannot be opened, or its private directories are not ours alone.
    pub(crate) fn open(path: &Path, steps: Steps) -> Result<Self> {
        let flags = DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| Error::at(path, "open the tier (is it mounted?)")(errno.into()))?;
        let private = PrivateDir::make_in(&root, path, PRIVATE)?;
        let tmp = private.sub("tmp")?;
        let (path, durable) = (path.to_owned(), DurableDirectories::default());
        Ok(Self { root, path, private, tmp, steps, room: Room::default(), durable })
    }

    /// Makes a step. Where something on this disk gives way, a full one is no error.
    pub(crate) fn step<T, E: Into<Error>>(
        &self,
        what: &'static str,
        act: impl FnMut() -> Result<T, E>,
    ) -> Result<T> {
        self.steps.step(what, act, |_| self.room.make(|| self.totals()))
    }

    /// The same, with whose quota may be used up.
    pub(crate) fn step_for<T, E: Into<Error>>(
        &self,
        quota: &Quota<'_, impl AsFd>,
        what: &'static str,
        act: impl FnMut() -> Result<T, E>,
    ) -> Result<T> {
        self.steps.step(what, act, |full| match (full.errno(), stat_descriptor(quota.of)) {
            (libc::EDQUOT, Ok(now)) => {
                let user = quota.user.unwrap_or(now.raw.st_uid);
                self.room.make_in_quota(user, now.disk_bytes())
            }
            _ => self.room.make(|| self.totals()),
        })
    }

    /// Refuses a file system that keeps no extended attributes.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(crate) fn check_attributes(&self) -> Result<()> {
        let name = format!("attributes-{}", std::process::id());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let at = |errno: Errno| Error::at(self.tmp.path(), "make a file in")(errno.into());
        let file = match openat(&self.tmp, &name, flags, Mode::RUSR | Mode::WUSR) {
            // A full disk is fine: it has kept attributes before.
            Err(Errno::NOSPC | Errno::DQUOT) => return Ok(()),
            made => made.map_err(at)?,
        };
        let set = own_xattrs::set_number(&file, own_xattrs::INODE, 2);
        let _gone = unlinkat(&self.tmp, &name, AtFlags::empty());
        match set {
            Err(error) if error.is_full() => Ok(()),
            Err(_) => Err(Error::invalid(
                format!(
                    "{}: its file system keeps no extended attributes (user.*), by which files keep their numbers",
                    self.path.display()
                ),
                "use another file system, or switch them on (NFS: version 4.2 on Linux 5.9 or later)",
            )),
            Ok(()) => Ok(()),
        }
    }

    /// Whether its file system grants write leases.
    pub(crate) fn grants_leases(&self) -> bool {
        let name = fresh("l", 0);
        let Ok(file) = self.temporary(&name) else { return false };
        let grants = is_exclusive(&File::from(file));
        self.drop_temporary(&name);
        grants
    }

    /// Whether less than 2% of its file system is free.
    pub(crate) fn is_nearly_full(&self) -> bool {
        statfs(self.root.as_fd()).is_ok_and(|totals| totals.f_bavail < totals.f_blocks / 50)
    }

    /// Totals of its file system.
    pub(crate) fn totals(&self) -> Result<libc::statvfs64> {
        statfs(self.root.as_fd())
    }

    /// Opens something by its path below the root, with [`OFlags::PATH`].
    pub(crate) fn look(&self, path: Option<&RelativePath>) -> rustix::io::Result<OwnedFd> {
        let path = path.map_or(Path::new(""), RelativePath::as_path);
        beneath::open(&self.root, path, OFlags::PATH, Mode::empty())
    }

    /// As [`look`](Self::look), but the last component may be a symbolic link.
    pub(crate) fn look_at_link(&self, path: &RelativePath) -> rustix::io::Result<OwnedFd> {
        let (above, name) = beneath::parent(self.root.as_fd(), path.as_path())?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&above, name, flags, Mode::empty())
    }

    /// The directory at `path`, if it has that number.
    pub(crate) fn directory_at(
        &self,
        path: Option<&RelativePath>,
        number: u64,
    ) -> Result<Option<OwnedFd>> {
        let below = path.map_or(Path::new(""), RelativePath::as_path);
        match beneath::open(&self.root, below, DIRECTORY, Mode::empty()) {
            Ok(fd)
                if path.is_none()
                    || own_xattrs::number(&fd, own_xattrs::DIRECTORY) == Some(number) =>
            {
                Ok((path.is_none() == (number == ROOT.0)).then_some(fd))
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The directory to which steps from the root lead; `None` if it is missing.
    pub(crate) fn find(&self, steps: &[DirectoryStep]) -> Result<Option<FoundDirectory>> {
        let Some(last) = steps.last() else { return Ok(Some((self.look(None)?, None))) };
        let names: Vec<&[u8]> = steps.iter().map(|step| step.name.as_bytes()).collect();
        let path = RelativePath::new(&names.join(&b'/')).ok_or(Errno::INVAL)?;
        if let Some(fd) = self.directory_at(Some(&path), last.number)? {
            return Ok(Some((fd, Some(path))));
        }
        find_below((self.look(None)?, None), steps)
    }

    /// Names something without a number that was made among the temporary files.
    pub(crate) fn settle_other(
        &self,
        fresh: &str,
        above: &FoundDirectory,
        name: &Name,
    ) -> Result<()> {
        below(above.1.as_ref(), name)?;
        self.step("naming a link or device", || rename_new(&self.tmp, fresh, &above.0, os(name)))
    }

    /// Makes a subdirectory.
    ///
    /// # Errors
    /// `EEXIST` if both its names are taken.
    pub(crate) fn make_directory(
        &self,
        above: &FoundDirectory,
        step: &DirectoryStep,
        owner: Owner,
    ) -> Result<FoundDirectory> {
        let fresh = fresh("d", step.number);
        self.step("making a directory", || mkdirat(&self.tmp, &fresh, Mode::RWXU))?;
        let made = || {
            let flags = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(&self.tmp, &fresh, flags, Mode::empty())?;
            let quota = Quota { of: &fd, user: Some(owner.uid) };
            self.step_for(&quota, "numbering a directory", || {
                own_xattrs::set_number(&fd, own_xattrs::DIRECTORY, step.number)?;
                own(&fd, owner)
            })?;
            for name in candidates(&step.name, step.number) {
                let path = below(above.1.as_ref(), &name)?;
                directory_names::record(self, &fd, step, name.as_bytes())?;
                let named = self.step("naming a directory", || {
                    rename_new(&self.tmp, &fresh, &above.0, os(&name))
                });
                match named {
                    Err(error) if error.errno() == libc::EEXIST => {}
                    named => return named.map(|()| (fd, Some(path))),
                }
            }
            Err(Errno::EXIST.into())
        };
        made().inspect_err(|_| {
            let _gone = unlinkat(&self.tmp, &fresh, AtFlags::REMOVEDIR);
        })
    }

    /// Makes a file in a directory; it is named once it has its number and owner. Also returns its path, and whether
    /// it got the name itself.
    pub(crate) fn make_file(
        &self,
        above: &FoundDirectory,
        (directory, name): (u64, &Name),
        inode: u64,
        owner: Owner,
    ) -> Result<(OwnedFd, RelativePath)> {
        let fresh = fresh("f", inode);
        let fd = self.temporary(&fresh)?;
        let make = || {
            let quota = Quota { of: &fd, user: Some(owner.uid) };
            self.step_for(&quota, "numbering a file", || {
                own_xattrs::set_number(&fd, own_xattrs::INODE, inode)?;
                own(&fd, owner)
            })?;
            self.settle(&fd, &fresh, above, (directory, name), inode)
        };
        match make() {
            Ok(path) => Ok((fd, path)),
            Err(error) => {
                self.drop_temporary(&fresh);
                Err(error)
            }
        }
    }

    /// Names a file that was made among the temporary files.
    pub(crate) fn settle(
        &self,
        fd: &impl AsFd,
        fresh: &str,
        above: &FoundDirectory,
        (directory, name): (u64, &Name),
        inode: u64,
    ) -> Result<RelativePath> {
        let rename = |name: &Name| rename_new(&self.tmp, fresh, &above.0, os(name));
        self.place_beside(fd, above, (directory, name), inode, ("naming a file", &rename))
    }

    /// Puts a file at its name, or beside it if that is taken: then the name is listed first. A copy that was moved
    /// here may have several names, which are listed already.
    fn place_beside(
        &self,
        fd: &impl AsFd,
        above: &FoundDirectory,
        (directory, name): (u64, &Name),
        inode: u64,
        (step, put): (&'static str, PutAt<'_>),
    ) -> Result<RelativePath> {
        let [plain, numbered] = candidates(name, inode);
        let path = below(above.1.as_ref(), &plain)?;
        match self.step(step, || put(&plain)) {
            Err(error) if error.errno() == libc::EEXIST => {}
            placed => return placed.map(|()| path),
        }
        let path = below(above.1.as_ref(), &numbered)?;
        self.step("listing a file's name", || {
            let are_listed = !own_xattrs::names(fd).is_empty();
            if are_listed { Ok(()) } else { own_xattrs::add_name(fd, directory, name) }
        })?;
        self.step(step, || put(&numbered)).map(|()| path)
    }

    /// Removes temporary files that never got a name.
    pub(crate) fn drop_temporaries(&self) -> Result<usize> {
        let names = self.tmp.names()?;
        for name in &names {
            if unlinkat(&self.tmp, name, AtFlags::empty()) == Err(Errno::ISDIR) {
                unlinkat(&self.tmp, name, AtFlags::REMOVEDIR)?;
            }
        }
        Ok(names.len())
    }

    /// Makes a temporary file, without a name in the tree.
    pub(crate) fn temporary(&self, fresh: &str) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = || openat(&self.tmp, fresh, flags, Mode::RUSR | Mode::WUSR);
        self.step("making a file", open)
    }

    /// Removes a temporary file.
    pub(crate) fn drop_temporary(&self, fresh: &str) {
        let _gone = unlinkat(&self.tmp, fresh, AtFlags::empty());
    }

    /// Makes new names in a directory durable, and those above it that may be new, too.
    pub(crate) fn sync_names(&self, directory: &OwnedFd) -> Result<()> {
        self.durable.sync(self, directory)
    }

    /// Gives an open file a second place. If that is not at the name itself, the name is listed first, as for a new
    /// file: a file without listed names has the name of its place.
    pub(crate) fn link(
        &self,
        fd: &OwnedFd,
        above: &FoundDirectory,
        (directory, name): (u64, &Name),
        inode: u64,
    ) -> Result<RelativePath> {
        // By descriptor: a name could lead to another file by now.
        let link =
            |name: &Name| linkat(CWD, proc_path(fd), &above.0, os(name), AtFlags::SYMLINK_FOLLOW);
        own_xattrs::clear_other_renaming(fd, &[(directory, name.clone())])?;
        self.place_beside(fd, above, (directory, name), inode, ("linking a file", &link))
    }

    /// Removes what is at a path.
    pub(crate) fn unlink(&self, path: &RelativePath, flags: AtFlags) -> Result<()> {
        self.step("removing a name", || {
            let (above, name) = beneath::parent(self.root.as_fd(), path.as_path())?;
            unlinkat(&above, name, flags)
        })
    }

    /// The parent directory of a path.
    pub(crate) fn parent_of(&self, path: &RelativePath) -> Result<OwnedFd> {
        let parent = path.as_path().parent().unwrap_or(Path::new(""));
        Ok(beneath::open(&self.root, parent, DIRECTORY, Mode::empty())?)
    }

    /// Renames something from one open directory to a free name in another.
    pub(crate) fn rename_between(
        &self,
        from: (&OwnedFd, &Name),
        to: (&OwnedFd, &Name),
    ) -> Result<()> {
        self.step("renaming", || rename_new(from.0, os(from.1), to.0, os(to.1)))
    }

    /// Moves something to a name in a private directory.
    pub(crate) fn rename_to(&self, from: &RelativePath, to: &PrivateDir, name: &str) -> Result<()> {
        self.step("setting a file aside", || {
            let (from_dir, from) = beneath::parent(self.root.as_fd(), from.as_path())?;
            rename_new(&from_dir, from, to, name)
        })
    }

    /// Renames anything in the tree to a free path.
    pub(crate) fn rename(
        &self,
        from: &RelativePath,
        above: &FoundDirectory,
        name: &Name,
    ) -> Result<RelativePath> {
        let path = below(above.1.as_ref(), name)?;
        self.step("renaming", || {
            let (from_dir, from) = beneath::parent(self.root.as_fd(), from.as_path())?;
            rename_new(&from_dir, from, &above.0, os(name))
        })?;
        Ok(path)
    }
}

/// The directory to which steps from another one lead.
pub(crate) fn find_below(
    (mut found, path): FoundDirectory,
    steps: &[DirectoryStep],
) -> Result<Option<FoundDirectory>> {
    let mut names: Vec<Vec<u8>> = path.iter().map(|path| path.as_bytes().to_vec()).collect();
    for step in steps {
        let Some((below, name)) = subdirectory(&found, step)? else { return Ok(None) };
        names.push(name.as_bytes().to_vec());
        found = below;
    }
    Ok(Some((found, RelativePath::new(&names.join(&b'/')))))
}

/// A subdirectory.
pub(crate) fn child(
    above: &FoundDirectory,
    step: &DirectoryStep,
) -> Result<Option<FoundDirectory>> {
    let Some((fd, name)) = subdirectory(&above.0, step)? else { return Ok(None) };
    Ok(Some((fd, Some(below(above.1.as_ref(), &name)?))))
}

/// A subdirectory and the name that it has.
fn subdirectory(above: &OwnedFd, step: &DirectoryStep) -> Result<Option<(OwnedFd, Name)>> {
    for name in candidates(&step.name, step.number) {
        match beneath::open(above, Path::new(os(&name)), DIRECTORY, Mode::empty()) {
            Ok(fd) if own_xattrs::number(&fd, own_xattrs::DIRECTORY) == Some(step.number) => {
                return Ok(Some((fd, name)));
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

/// A temporary name that no other process or thread uses.
pub(crate) fn fresh(what: &str, number: u64) -> String {
    format!("{what}-{number}-{:x}", RandomState::new().hash_one(number))
}

/// The path of a name in a directory.
pub(crate) fn below(directory: Option<&RelativePath>, name: &Name) -> Result<RelativePath> {
    match RelativePath::below(directory, name.as_bytes()) {
        Some(path) if path.as_bytes() == PRIVATE.as_bytes() => Err(Errno::PERM.into()),
        Some(path) => Ok(path),
        None => Err(Errno::INVAL.into()),
    }
}

/// Gives something new its owner and mode.
fn own(fd: &impl AsFd, owner: Owner) -> Result<()> {
    let raw = stat_descriptor(fd)?.raw;
    let change = SetAttr {
        mode: Some(owner.mode),
        uid: (raw.st_uid != owner.uid).then_some(owner.uid),
        gid: (raw.st_gid != owner.gid).then_some(owner.gid),
        ..SetAttr::default()
    };
    own_xattrs::owner_permissions::set_attr(fd, &change).map(drop)
}

/// A path from a directory.
pub(crate) fn below_path(
    directory: Option<&RelativePath>,
    path: &RelativePath,
) -> Result<RelativePath> {
    if directory.is_none() && path.first() == PRIVATE.as_bytes() {
        return Err(Errno::NOENT.into());
    }
    RelativePath::below(directory, path.as_bytes()).ok_or(Errno::INVAL.into())
}

/// The type of what has a name in a directory (`S_IFREG` or another `S_IF*`); `None` if there is nothing.
pub(crate) fn kind(above: &FoundDirectory, name: &Name) -> Result<Option<u32>> {
    match statat(&above.0, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.st_mode & libc::S_IFMT)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
