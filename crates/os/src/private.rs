//! Directories and files that only this program may use: caches, and what a tier keeps beside its files.
//!
//! Anyone who can prepare or change such a directory could make us read, write and remove files of their choice. What
//! must hold: nothing is opened through a symbolic link; a directory belongs to the user as whom we act and is closed
//! to all others; a file is a regular one of the same user, and has no other name. A directory or file that is merely
//! too open, as earlier versions made it, is closed.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, fsync, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::beneath;
use crate::bounded;
use crate::error::{Error, Result};
use crate::process_user::own_uid;

/// Permissions of everyone except the owner.
const OTHERS: u32 = 0o077;
/// Bits of a mode by which others change something.
const CHANGE: u32 = 0o022;
/// Deepest tree that is checked.
const DEPTH_MAX: usize = 16;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Reading.
    Read,
    /// Reading and writing; created if missing.
    Write,
    /// Appending; created if missing.
    Append,
    /// Reading and writing a file that must not exist yet.
    New,
}

impl Use {
    const fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::RDWR.union(OFlags::CREATE),
            Self::Append => OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::CREATE),
            Self::New => OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL),
        }
    }
}

/// An open directory that belongs to us alone.
#[derive(Debug)]
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
    /// Whether it, and files in it, stay as they are.
    is_to_read: bool,
}

impl PrivateDir {
    /// Opens the directory at `path`; creates it, and those above it, if missing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it belongs to someone else, is a link, or cannot be trusted.
    pub fn make(path: &Path) -> Result<Self> {
        Self::look_or_make(path)?.closed()
    }

    /// The same, but an existing directory stays as open to others as it is.
    pub fn look_or_make(path: &Path) -> Result<Self> {
        if let Err(Errno::NOENT) = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(Error::at(path, "create the directory"))?;
        }
        Self::look(path)
    }

    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// As [`PrivateDir::make`]; [`Error::Path`] if it does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        Self::look(path)?.closed()
    }

    /// Opens the directory at `path`, and leaves it as open to others as it is.
    ///
    /// # Errors
    /// As [`PrivateDir::open`].
    pub fn look(path: &Path) -> Result<Self> {
        Self::ours(open_directory(CWD, path.as_os_str(), path)?, path.to_owned())
    }

    /// Opens the directory at `path` to read alone: it, and files that are opened in it, stay as they are, also on a file
    /// system that cannot be written.
    ///
    /// # Errors
    /// As [`PrivateDir::open`], and if others may change the directory.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let dir = Self { is_to_read: true, ..Self::look(path)? };
        dir.check_unchangeable().map(|()| dir)
    }

    /// Opens the directory `name` in `parent`, whose path is `above`; creates it if missing.
    pub fn make_in(parent: impl AsFd, above: &Path, name: &str) -> Result<Self> {
        let path = above.join(name);
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::at(path, "create the directory")(errno.into())),
        }
        Self::ours(open_directory(parent.as_fd(), name.as_ref(), &path)?, path)?.closed()
    }

    /// Opens or creates a directory in this one.
    pub fn sub(&self, name: &str) -> Result<Self> {
        Self::make_in(&self.fd, &self.path, name)
    }

    fn ours(fd: OwnedFd, path: PathBuf) -> Result<Self> {
        let dir = Self { fd, path, is_to_read: false };
        let (found, own) = (dir.stat()?.st_uid, own_uid());
        if found == own {
            return Ok(dir);
        }
        let remedy = match own {
            0 => format!(
                "run this as that user (setpriv --reuid {found}), or name a directory of root"
            ),
            _ => "run this as that user, or name a directory of your own".to_owned(),
        };
        Err(Error::invalid(
            format!("{} belongs to user {found}, not to user {own}", dir.path.display()),
            format!("{remedy}: whoever owns it could change what is in it"),
        ))
    }

    /// Closes it to others.
    ///
    /// # Errors
    /// [`Error::Invalid`] if anyone could put things there and someone did.
    pub fn closed(self) -> Result<Self> {
        let mode = self.stat()?.st_mode;
        if mode & 0o002 != 0 && !self.names()?.is_empty() {
            return Err(Error::invalid(
                format!("{}: anybody may write to this directory", self.path.display()),
                "make sure that everything in it is yours, then close it: chmod 0700",
            ));
        }
        if mode & OTHERS == 0 {
            return Ok(self);
        }
        match fchmod(&self.fd, Mode::from_raw_mode(mode & 0o7700)) {
            Ok(()) => Ok(self),
            // It stays as open to others as it is, so they must not be able to change it where it can be written.
            Err(Errno::ROFS) => self.check_unchangeable().map(|()| self),
            Err(errno) => Err(Error::at(&self.path, "close to others")(errno.into())),
        }
    }

    /// Checks that nobody else may put things into it, and leaves it as it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] where somebody may.
    pub fn check_unchangeable(&self) -> Result<()> {
        if self.stat()?.st_mode & CHANGE == 0 {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{}: others may write to this directory", self.path.display()),
            "close it to others: chmod 0700",
        ))
    }

    fn stat(&self) -> Result<Stat> {
        fstat(&self.fd).map_err(|errno| Error::at(&self.path, "look at")(errno.into()))
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names in it, unordered.
    pub fn names(&self) -> Result<Vec<OsString>> {
        beneath::names(&self.fd).map_err(|errno| Error::at(&self.path, "list")(errno.into()))
    }

    /// Opens a file in it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if what is there is not ours; [`Error::Path`] if it cannot be opened.
    pub fn file(&self, name: impl AsRef<OsStr>, using: Use) -> Result<File> {
        let path = self.path.join(name.as_ref());
        let opened = match (self.is_to_read, using) {
            (false, _) => open_checked(&self.fd, name.as_ref(), using),
            (true, Use::Read) => open_unchanged(&self.fd, name.as_ref()),
            (true, _) => Err(Refusal::System(Errno::ROFS)),
        };
        opened.map_err(|failed| failed.told(&path))
    }

    /// The content of a file in it; `None` if there is none.
    ///
    /// # Errors
    /// As [`PrivateDir::file`], and if it has more than `bytes_max` bytes.
    pub fn read(&self, name: impl AsRef<OsStr>, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(name.as_ref());
        let file = match self.file(name, Use::Read) {
            Err(error) if error.errno() == libc::ENOENT => return Ok(None),
            other => other?,
        };
        bounded::read_from(file, bytes_max).map(Some).map_err(Error::at(path, "read"))
    }

    /// Atomically and durably replaces whatever has this name by a file with these bytes.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let fresh = format!("{name}.new");
        self.remove(&fresh)?;
        let mut file = self.file(&fresh, Use::New)?;
        let mut write = || -> io::Result<()> {
            file.write_all(bytes)?;
            file.sync_all()?;
            renameat(&self.fd, &fresh, &self.fd, name)?;
            Ok(fsync(&self.fd)?)
        };
        // Where there is no room, nothing is to stay of the attempt.
        let written = write().inspect_err(|_| drop(self.remove(&fresh)));
        written.map_err(Error::at(self.path.join(name), "write"))
    }

    /// Writes a file in it, which is created or truncated first; not durably.
    pub fn overwrite(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.file(name, Use::Write)?;
        let mut write = || file.set_len(0).and_then(|()| file.write_all(bytes));
        write().map_err(Error::at(self.path.join(name), "write"))
    }

    /// Removes a file in it; a missing file is not an error.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let path = self.path.join(name.as_ref());
        match unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::at(path, "remove")(errno.into())),
        }
    }

    /// Checks everything below, and closes it to others, before a library opens it by path.
    pub fn check_below(&self) -> Result<()> {
        self.check_to_depth(DEPTH_MAX)
    }

    /// Checks the directories in this one whose names `is_ours` accepts, and closes them to others.
    pub fn check_directories(&self, is_ours: impl Fn(&OsStr) -> bool) -> Result<()> {
        for name in self.names()?.into_iter().filter(|name| is_ours(name)) {
            let path = self.path.join(&name);
            Self::ours(open_directory(self.fd.as_fd(), &name, &path)?, path)?.closed()?;
        }
        Ok(())
    }

    fn check_to_depth(&self, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(Error::invalid(
                format!("{}: directories too deep in each other", self.path.display()),
                "no version made them: move them away",
            ));
        }
        for name in self.names()? {
            let path = self.path.join(&name);
            let found = statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
            let found = found.map_err(|errno| Error::at(&path, "look at")(errno.into()))?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                let fd = open_directory(self.fd.as_fd(), &name, &path)?;
                Self::ours(fd, path)?.closed()?.check_to_depth(depth - 1)?;
            } else {
                self.file(&name, Use::Read)?;
            }
        }
        Ok(())
    }
}

impl AsFd for PrivateDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why a file was not opened.
#[derive(Debug)]
pub enum Refusal {
    /// The system call failed.
    System(Errno),
    /// Someone else may have prepared it; the text says what is wrong.
    NotOurs(String),
}

impl Refusal {
    /// The error for the file at `path`.
    pub(crate) fn told(self, path: &Path) -> Error {
        match self {
            Self::System(errno) => Error::at(path, "open")(errno.into()),
            Self::NotOurs(what) => Error::invalid(
                format!("{} {what}", path.display()),
                "find out who put it there, and move it away",
            ),
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::System(errno) => errno.into(),
            Refusal::NotOurs(what) => {
                Self::new(io::ErrorKind::PermissionDenied, format!("it {what}"))
            }
        }
    }
}

/// Opens `name` in a directory and checks that it is a file of ours. Does not block if something else has the name,
/// such as a FIFO.
pub(crate) fn open_checked(
    dir: impl AsFd,
    name: &OsStr,
    using: Use,
) -> std::result::Result<File, Refusal> {
    let file = open_file(dir, name, using)?;
    check_file(&file).map(|()| file)
}

/// The same to read alone: a file that is merely too open stays so.
fn open_unchanged(dir: impl AsFd, name: &OsStr) -> std::result::Result<File, Refusal> {
    let file = open_file(dir, name, Use::Read)?;
    check_unchangeable(&file).map(|()| file)
}

fn open_file(dir: impl AsFd, name: &OsStr, using: Use) -> std::result::Result<File, Refusal> {
    let flags =
        using.flags() | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let not_ours = |what: &str| Refusal::NotOurs(what.to_owned());
    let file = openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| match errno {
        Errno::LOOP => not_ours("is a symbolic link"),
        // A socket, or a FIFO or directory being opened for writing.
        Errno::NXIO | Errno::ISDIR => not_ours("is not a regular file"),
        errno => Refusal::System(errno),
    })?;
    Ok(File::from(file))
}

/// Checks that an open file is a regular file of ours with one name, and closes it to others.
pub fn check_file(file: &File) -> std::result::Result<(), Refusal> {
    let mode = check_ours(file)?;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    match fchmod(file, Mode::from_raw_mode(mode & 0o700)) {
        Err(Errno::ROFS) => check_unchangeable(file),
        closed => closed.map_err(Refusal::System),
    }
}

/// Checks that an open file is a regular one of ours with one name that nobody else may change, and leaves it as it is.
pub fn check_unchangeable(file: &File) -> std::result::Result<(), Refusal> {
    if check_ours(file)? & CHANGE != 0 {
        return Err(Refusal::NotOurs("may be changed by others".into()));
    }
    Ok(())
}

/// Checks that an open file is a regular one of ours with one name; its mode.
fn check_ours(file: &File) -> std::result::Result<u32, Refusal> {
    let stat = fstat(file).map_err(Refusal::System)?;
    let not_ours = |what: String| Err(Refusal::NotOurs(what));
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return not_ours("is not a regular file".into());
    }
    if stat.st_uid != own_uid() {
        return not_ours(format!("belongs to user {}, not to user {}", stat.st_uid, own_uid()));
    }
    if stat.st_nlink > 1 {
        return not_ours("has another name (a hard link)".into());
    }
    Ok(stat.st_mode)
}

/// Opens a file with a secret, written for this process by the user or root. Unlike our own files it is not changed,
/// and may be reached through links; does not block if it is something else, such as a FIFO.
///
/// # Errors
/// If it is not a regular file, belongs to someone else, or others may read it.
pub fn open_secret(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| Error::at(path, "open")(errno.into()))?);
    let stat = fstat(&file).map_err(|errno| Error::at(path, "look at")(errno.into()))?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    if !is_regular || !is_trusted || stat.st_mode & OTHERS != 0 {
        return Err(Error::invalid(
            format!("{}: others may read this secret, or have prepared it", path.display()),
            "make it a file of yours with mode 0600",
        ));
    }
    Ok(file)
}

fn open_directory(parent: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => Error::invalid(
            format!("{} is a symbolic link or not a directory", path.display()),
            "find out who put it there, and move it away",
        ),
        errno => Error::at(path, "open the directory")(errno.into()),
    })
}

/// The content of `name` in the private directory `dir`; `None` if either is missing.
///
/// # Errors
/// As [`PrivateDir::read`].
pub fn read(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    match PrivateDir::look(dir) {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        dir => dir?.read(name, bounded::SMALL_FILE_BYTES_MAX),
    }
}

/// Refuses a directory that a user other than root could replace by another while root uses it, because someone else
/// may rename or remove a directory above it. An ordinary user may share directories with whomever that user likes.
///
/// # Errors
/// [`Error::Invalid`] names the directory.
pub fn check_above(dir: &Path) -> Result<()> {
    if own_uid() != 0 || !is_initial_namespace() {
        return Ok(());
    }
    let (real, own) = match std::fs::canonicalize(dir) {
        // It is about to be created.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let there = dir.ancestors().skip(1).find_map(|above| std::fs::canonicalize(above).ok());
            (there.unwrap_or_else(|| "/".into()), 0)
        }
        real => (real.map_err(Error::at(dir, "look at"))?, 1),
    };
    for above in real.ancestors().skip(own) {
        let found = statat(CWD, above, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| Error::at(above, "look at")(errno.into()))?;
        let group = if found.st_gid == 0 { 0 } else { 0o020 };
        let is_open = found.st_mode & (0o002 | group) != 0 && found.st_mode & 0o1000 == 0;
        if found.st_uid != 0 || is_open {
            let who = if is_open { "others may write to" } else { "another user owns" };
            return Err(Error::invalid(
                format!("{}: {who} {}, above it", dir.display(), above.display()),
                "as root, name a directory that only root can move",
            ));
        }
    }
    Ok(())
}

/// Whether users other than root and this one can reach the contents of `dir`, an absolute path without links: that is,
/// no directory above it is closed to them. Its own mode does not count.
///
/// # Errors
/// If the directories above cannot be examined.
pub fn others_reach(dir: &Path) -> Result<bool> {
    /// Search permission for the group and for all; an ACL that gives it to anyone shows as the group's.
    const PASS: u32 = 0o011;
    for above in dir.ancestors().skip(1) {
        let found = statat(CWD, above, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| Error::at(above, "look at")(errno.into()))?;
        if found.st_mode & PASS == 0 && [0, own_uid()].contains(&found.st_uid) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether user ids are those of the machine: in other namespaces the owners of directories above are unknown.
fn is_initial_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests;
