//! The directory of a striped volume, where others may have put things.
//!
//! What must hold: nothing in it is opened, created, truncated or given away through a symbolic link; a label, a server
//! and the tree are trusted only if they belong to the user as whom we act, to root, or to the directory's own owner,
//! whose data it is. The root of the tree may be given to anybody, as that of any file system: then it is trusted where nobody
//! else could have put it, or where the label knows it.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::identity::by_descriptor;
use halocline_os::beneath;
use halocline_os::bounded;
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::open_at;
use halocline_os::lost_and_found;

/// Bits of a mode by which others than the owner change a directory; with an ACL those of the group are its mask.
const CHANGE: u32 = 0o022;

/// An open directory that is, or becomes, a striped volume.
#[derive(Debug)]
pub(super) struct VolumeDir {
    fd: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

impl VolumeDir {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || -> rustix::io::Result<_> {
            let fd = openat(CWD, path, flags, Mode::empty())?;
            let stat = fstat(&fd)?;
            Ok(Self { fd, path: path.to_owned(), stat })
        };
        open().map_err(|errno| Error::at(path, "open the directory")(errno.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory in it.
    pub(super) fn directory(&self, name: &str) -> Result<File> {
        self.entry(name, OFlags::DIRECTORY, FileType::Directory)
    }

    /// Opens a file in it for reading; `None` if there is none.
    pub(super) fn file(&self, name: &str) -> Result<Option<File>> {
        // Without `NONBLOCK`, opening a pipe would wait for a writer.
        match self.entry(name, OFlags::NONBLOCK, FileType::RegularFile) {
            Err(error) if error.errno() == libc::ENOENT => Ok(None),
            other => other.map(Some),
        }
    }

    /// Opens the directory with the volume's names; `is_known` says whether the label has this inode number.
    pub(super) fn tree(&self, name: &str, is_known: impl Fn(u64) -> bool) -> Result<File> {
        let (opened, found) = self.found(name, OFlags::DIRECTORY, FileType::Directory)?;
        let is_closed = self.stat.st_mode & CHANGE == 0;
        if self.is_trusted(found.st_uid) || is_closed || is_known(found.st_ino) {
            return Ok(opened.into());
        }
        let (path, dir) = (self.path.join(name), self.path.display());
        Err(Error::invalid(
            format!(
                "{}: it belongs to user {}, others may write to {dir}, and it is not the directory in which the volume's \
                 names were",
                path.display(),
                found.st_uid
            ),
            format!(
                "look for the volume's own one, which may lie beside it, and move that there; if this is it, as in a copy of \
                 the volume, close the other: chmod go-w {dir}"
            ),
        ))
    }

    fn entry(&self, name: &str, extra: OFlags, kind: FileType) -> Result<File> {
        let (opened, found) = self.found(name, extra, kind)?;
        if !self.is_trusted(found.st_uid) {
            let own = geteuid().as_raw();
            return Err(Error::invalid(
                format!(
                    "{}: user {} made it, not user {own}",
                    self.path.join(name).display(),
                    found.st_uid
                ),
                format!(
                    "if it is the volume's own and was given away, take it back: chown {own}; else move it away"
                ),
            ));
        }
        Ok(opened.into())
    }

    /// Whether this user is one of those whose data the volume may be.
    fn is_trusted(&self, owner: u32) -> bool {
        [geteuid().as_raw(), 0, self.stat.st_uid].contains(&owner)
    }

    /// Opens what is there, if it is of this kind, and looks at it.
    fn found(&self, name: &str, extra: OFlags, kind: FileType) -> Result<(OwnedFd, Stat)> {
        let path = self.path.join(name);
        let refuse = |what: &str| {
            let remedy = "find out who made it, and move it away: a volume's own are not like that";
            Error::invalid(format!("{}: {what}", path.display()), remedy)
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
        let opened = match openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => {
                Err(refuse("a link, or no such kind of file"))
            }
            Err(Errno::NOENT) if kind == FileType::Directory => Err(Error::invalid(
                format!("{}: this directory of the volume is not there", path.display()),
                "move it there, or restore it from a backup",
            )),
            other => other.map_err(|errno| Error::at(&path, "open")(errno.into())),
        }?;
        let found = fstat(&opened).map_err(|errno| Error::at(&path, "look at")(errno.into()))?;
        if FileType::from_raw_mode(found.st_mode) != kind {
            return Err(refuse("not the kind of file that a volume has here"));
        }
        if kind == FileType::RegularFile && found.st_nlink != 1 {
            return Err(refuse("a file with another name"));
        }
        Ok((opened, found))
    }

    /// The content of a small file in it; `None` if there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let text = bounded::read_from(file, bounded::SMALL_FILE_BYTES_MAX).and_then(|bytes| {
            String::from_utf8(bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        });
        text.map(Some).map_err(Error::at(self.path.join(name), "read"))
    }

    /// Writes a file with this text, atomically and durably. Where there is no room, a single byte is changed in its place.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let fresh = format!("{name}.new");
        let write = || -> io::Result<()> {
            match unlinkat(&self.fd, &fresh, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(0o644);
            let mut file = File::from(openat(&self.fd, &fresh, flags | OFlags::CLOEXEC, mode)?);
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            renameat(&self.fd, &fresh, &self.fd, name)?;
            Ok(fsync(&self.fd)?)
        };
        let Err(error) = write() else { return Ok(()) };
        let _ = unlinkat(&self.fd, &fresh, AtFlags::empty());
        let is_full = [Some(libc::ENOSPC), Some(libc::EDQUOT)].contains(&error.raw_os_error());
        if is_full && self.change_byte(name, text)? {
            return Ok(());
        }
        Err(Error::at(self.path.join(name), "write")(error))
    }

    /// Changes the only byte in which a file differs from `text`, durably: no power loss leaves half of that, and it takes no
    /// room. False if they differ in more.
    fn change_byte(&self, name: &str, text: &str) -> Result<bool> {
        let (Some(old), Some(file)) = (self.read(name)?, self.file(name)?) else {
            return Ok(false);
        };
        let bytes = old.bytes().zip(text.bytes()).zip(0..);
        let mut changed = bytes.filter(|((old, new), _)| old != new);
        let (Some(((_, byte), at)), None) = (changed.next(), changed.next()) else {
            return Ok(false);
        };
        if old.len() != text.len() {
            return Ok(false);
        }
        let change = || -> io::Result<()> {
            // The file that was checked, whatever has its name by now.
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = File::from(open_at(CWD, &*by_descriptor(&file), flags, Mode::empty())?);
            file.write_all_at(&[byte], at)?;
            file.sync_all()
        };
        change().map_err(Error::at(self.path.join(name), "change"))?;
        Ok(true)
    }

    /// Creates a directory in it, private to the owner, unless it exists and has nothing but names for which `is_ours` is
    /// true, and what a new file system has.
    pub(super) fn make_directory(
        &self,
        name: &str,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<File> {
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(Error::at(self.path.join(name), "create the directory")(errno.into()));
            }
        }
        let made = self.directory(name)?;
        match beneath::names(&made) {
            Ok(names) => {
                let is_foreign = |entry: &&OsString| {
                    !entry.to_str().is_some_and(&is_ours) && !lost_and_found::is_it(&made, entry)
                };
                match names.iter().find(is_foreign) {
                    None => Ok(made),
                    Some(other) => Err(self.not_empty(&Path::new(name).join(other))),
                }
            }
            Err(errno) => Err(Error::at(self.path.join(name), "list")(errno.into())),
        }
    }

    /// Gives a directory in it, which was just created, the owner and mode of the volume's directory. An ordinary user cannot give
    /// it a group to which he does not belong, such as that of a directory that root has made for him: then it has his own, which
    /// may do no more than everybody.
    pub(super) fn liken(&self, dir: &File, name: &str) -> Result<()> {
        let (uid, gid) = (self.stat.st_uid, self.stat.st_gid);
        let mut mode = self.stat.st_mode & 0o7777;
        let mut like = || {
            match fchown(dir, Some(uid), Some(gid)) {
                Err(error) if is_foreign_group(&error) && dir.metadata()?.uid() == uid => {
                    mode = mode & !0o2070 | (mode & 0o007) << 3;
                }
                given => given?,
            }
            dir.set_permissions(Permissions::from_mode(mode))
        };
        like().map_err(Error::at(self.path.join(name), "set mode and owner"))
    }

    /// Fails if it contains any name for which `is_ours` is false; our own names are checked when they are created.
    pub(super) fn check_empty(&self, is_ours: impl Fn(&str) -> bool) -> Result<()> {
        let names = beneath::names(&self.fd);
        let names = names.map_err(|errno| Error::at(&self.path, "list")(errno.into()))?;
        match names.iter().find(|name| !name.to_str().is_some_and(&is_ours)) {
            None => Ok(()),
            Some(other) => Err(self.not_empty(Path::new(other))),
        }
    }

    /// `other` is the path in it of what is in the way.
    fn not_empty(&self, other: &Path) -> Error {
        // Others may have chosen the name, so it is escaped for the message.
        let shown = other.to_string_lossy();
        Error::invalid(
            format!(
                "{}: cannot become a striped volume, it has files ({})",
                self.path.display(),
                shown.escape_debug()
            ),
            "give an empty directory, or leave the origin plain",
        )
    }
}

/// Whether a group could not be given because the user is no member of it; `EINVAL` where the user namespace does not have it.
fn is_foreign_group(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL))
}
