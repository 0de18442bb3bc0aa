//! The names of one server: a tree of files, most of which are objects of a cache or of a striped origin.
//!
//! A [`Directory`] is for names what a [`Device`](super::Device) is for data. The two of a server belong together: a
//! device accepts the files that its server's directory opened.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat};
use rustix::io::Errno;

use super::{SECTOR, ServerFile};
use halocline_os::beneath;
use halocline_os::error::Result;
use halocline_os::private::{self, PrivateDir, Refusal};
use halocline_os::rename_new::rename_new;

/// The names of one server. Paths are relative to it, and must not contain links.
pub trait Directory: Send + Sync + Debug {
    /// Opens the file at `path` for reading and writing; `None` if there is none.
    fn open(&self, path: &Path) -> io::Result<Option<ServerFile>>;

    /// Opens the file at `path` for reading alone, as is possible where nothing can be written; `None` if there is none.
    fn open_to_read(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.open(path)
    }

    /// Opens the file at `path`, creating it and its directories.
    fn create(&self, path: &Path) -> io::Result<ServerFile>;

    /// Removes the file at `path`; a missing file is not an error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Renames the file `from` to `to` in the same directory, unless that exists (`EEXIST`).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Names in the directory at `path`; none if the directory does not exist.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Bytes of blocks that the file at `path` uses; 0 if there is none.
    fn allocated_of(&self, path: &Path) -> io::Result<u64>;

    /// Makes the entries of every directory from the root down to that of `path` durable.
    fn sync_parents(&self, path: &Path) -> io::Result<()>;

    /// Makes everything on the server durable.
    fn sync_all(&self) -> io::Result<()>;

    /// Content of the small file `name` that identifies the owner of the server.
    fn label(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Replaces this file atomically and durably.
    fn set_label(&self, name: &str, bytes: &[u8]) -> Result<()>;
}

/// A directory of a mounted file system.
#[derive(Debug)]
pub struct LocalDirectory {
    root: File,
    path: PathBuf,
    /// Whether everything here must belong to us alone.
    is_private: bool,
    /// Whether files are opened to read only, and as they are.
    is_to_read: bool,
}

impl LocalDirectory {
    /// The names below `root`, which was opened at `path`. If `is_private`, files that others may have put there are
    /// refused.
    pub const fn new(root: File, path: PathBuf, is_private: bool) -> Self {
        Self { root, path, is_private, is_to_read: false }
    }

    /// The names of a cache that another process owns: its files can be read, and nothing is made or changed.
    pub const fn to_read(root: File, path: PathBuf) -> Self {
        Self { root, path, is_private: true, is_to_read: true }
    }

    /// The file that was opened at `path`; refuses one that someone put here so that we write to it instead of another.
    fn checked(&self, path: &Path, opened: rustix::io::Result<File>) -> io::Result<ServerFile> {
        let file = match opened {
            // A link, a directory, or a socket. From a search for data the last of these errors would say that there is none.
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(self.not_regular(path)),
            opened => opened?,
        };
        if self.is_private && !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
            return Err(self.not_regular(path));
        }
        let checked = match (self.is_to_read, self.is_private) {
            (true, _) => private::check_unchangeable(&file),
            (false, true) => private::check_file(&file),
            (false, false) => Ok(()),
        };
        checked.map_err(|refusal| match refusal {
            Refusal::System(errno) => errno.into(),
            Refusal::NotOurs(what) => {
                let path = self.path.join(path);
                let what = format!(
                    "{} {what}: find out who put it there, and move it away",
                    path.display()
                );
                io::Error::new(io::ErrorKind::PermissionDenied, what)
            }
        })?;
        ServerFile::new(file)
    }

    /// The error names the path: of a file's many objects, who reads the file knows none.
    fn not_regular(&self, path: &Path) -> io::Error {
        let what = format!(
            "{} is not a regular file: move it away, and restore the one that was there from a backup; without it the \
             data has a hole",
            self.path.join(path).display()
        );
        io::Error::new(io::ErrorKind::InvalidInput, what)
    }

    fn open_with(&self, path: &Path, access: OFlags) -> rustix::io::Result<File> {
        let creates = access.contains(OFlags::CREATE);
        if self.is_to_read && creates {
            return Err(Errno::ROFS);
        }
        let mode = if creates { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        beneath::open(&self.root, path, access | OFlags::NONBLOCK, mode).map(File::from)
    }

    fn open_existing(&self, path: &Path, access: OFlags) -> io::Result<Option<ServerFile>> {
        match self.open_with(path, access) {
            Err(Errno::NOENT) => Ok(None),
            opened => self.checked(path, opened).map(Some),
        }
    }

    fn create_directories(&self, path: &Path) -> io::Result<()> {
        let mut made = PathBuf::new();
        for part in path {
            made.push(part);
            let (parent, name) = beneath::parent(self.root.as_fd(), &made)?;
            match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn directory(&self, path: &Path) -> rustix::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        beneath::open(&self.root, path, flags, Mode::empty()).map(File::from)
    }
}

impl Directory for LocalDirectory {
    fn open(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.open_existing(path, if self.is_to_read { OFlags::RDONLY } else { OFlags::RDWR })
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.open_existing(path, OFlags::RDONLY)
    }

    /// Private to the owner.
    fn create(&self, path: &Path) -> io::Result<ServerFile> {
        let access = OFlags::RDWR | OFlags::CREATE;
        let file = match self.open_with(path, access) {
            Err(Errno::NOENT) => {
                self.create_directories(path.parent().unwrap_or(Path::new("")))?;
                self.open_with(path, access)
            }
            other => other,
        };
        self.checked(path, file)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.is_to_read {
            return Err(Errno::ROFS.into());
        }
        let (parent, name) = match beneath::parent(self.root.as_fd(), path) {
            Err(Errno::NOENT) => return Ok(()),
            parent => parent?,
        };
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // Where nothing can be changed, the system says so before it looks.
            Err(Errno::ROFS)
                if rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map(drop)
                    == Err(Errno::NOENT) =>
            {
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        debug_assert_eq!(from.parent(), to.parent(), "one directory");
        if self.is_to_read {
            return Err(Errno::ROFS.into());
        }
        let (parent, name) = beneath::parent(self.root.as_fd(), from)?;
        let to = to.file_name().ok_or(Errno::INVAL)?;
        Ok(rename_new(&parent, name, &parent, to)?)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let dir = match self.directory(path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other?,
        };
        Ok(beneath::names(dir)?)
    }

    fn allocated_of(&self, path: &Path) -> io::Result<u64> {
        match rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(stat.st_blocks.cast_unsigned() * SECTOR),
            Err(Errno::NOENT) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    fn sync_parents(&self, path: &Path) -> io::Result<()> {
        for parent in path.ancestors().skip(1) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            rustix::fs::fsync(self.directory(parent)?)?;
        }
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn label(&self, name: &str) -> Result<Option<Vec<u8>>> {
        private::read(&self.path, name)
    }

    fn set_label(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if self.is_to_read {
            return Err(Errno::ROFS.into());
        }
        PrivateDir::open(&self.path)?.replace(name, bytes)
    }
}
