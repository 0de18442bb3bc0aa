//! One storage target: a directory, its device and its worker threads.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::queue::Queue;
use super::{Decorate, objects};
use crate::beneath;
use crate::device::local::LocalDevice;
use crate::device::{Device, ServerFile};
use crate::error::{Error, Result};
use crate::private::{self, PrivateDir};

/// A storage target. The directory tree goes through descriptors; data goes through the device.
#[derive(Debug)]
pub struct Server {
    name: String,
    dir: PathBuf,
    root: File,
    /// Whether everything here is to be ours alone.
    is_private: bool,
    device: Arc<dyn Device>,
    queue: Queue,
}

impl Server {
    /// The server `name` over a directory that is ours alone, as its directories and files must be.
    pub(super) fn private(
        dir: &PrivateDir,
        name: &str,
        index: usize,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        let path = dir.path();
        if dir.names()?.iter().any(|name| name == objects::ROOT) {
            // Other names there are left alone.
            dir.sub(objects::ROOT)?.check_directories(|name| name.len() == 2)?;
        }
        let device = decorate(index, Arc::new(LocalDevice::open(path)?));
        let root = dir.as_fd().try_clone_to_owned();
        let root = root.map_err(Error::at(path, "open the server's directory"))?.into();
        let (name, dir, queue) = (name.to_owned(), path.to_owned(), Queue::new(name));
        Ok(Arc::new(Self { name, dir, root, is_private: true, device, queue }))
    }

    /// The server `name` over the existing directory `dir`, on its file system's own device
    /// inside the decorators that `decorate` gives the server of this index.
    pub fn local(
        dir: &Path,
        name: &str,
        index: usize,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        let root = File::open(dir).map_err(Error::at(dir, "open the server's directory"))?;
        if !root.metadata().map_err(Error::at(dir, "stat the server's directory"))?.is_dir() {
            return Err(Error::invalid(
                format!("{}: not a directory", dir.display()),
                "give a directory for each server",
            ));
        }
        let device = decorate(index, Arc::new(LocalDevice::open(dir)?));
        let (name, dir, queue) = (name.to_owned(), dir.to_owned(), Queue::new(name));
        Ok(Arc::new(Self { name, dir, root, is_private: false, device, queue }))
    }

    /// Name, for reports and threads.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the data operations go.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Parts of requests that wait for one of the server's workers.
    pub(crate) fn waiting(&self) -> u64 {
        self.queue.len() as u64
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Opens the file at `path` below the server for reading and writing, or `None` where there
    /// is none.
    pub(super) fn open_object(&self, path: &Path) -> io::Result<Option<ServerFile>> {
        self.open_with(path, OFlags::empty()).map_or_else(
            |errno| if errno == Errno::NOENT { Ok(None) } else { Err(errno.into()) },
            |file| self.checked(file).map(Some),
        )
    }

    /// Opens the file at `path` below the server, creating it and its directories, private to
    /// the owner.
    pub(super) fn create_object(&self, path: &Path) -> io::Result<ServerFile> {
        let file = match self.open_with(path, OFlags::CREATE) {
            Err(Errno::NOENT) => {
                self.create_directories(path.parent().unwrap_or(Path::new("")))?;
                self.open_with(path, OFlags::CREATE)
            }
            other => other,
        };
        self.checked(file?)
    }

    /// Not a file that was put here to be written to in place of another.
    fn checked(&self, file: File) -> io::Result<ServerFile> {
        if self.is_private {
            private::check_file(&file)?;
        }
        ServerFile::new(file)
    }

    fn open_with(&self, path: &Path, extra: OFlags) -> rustix::io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | extra;
        let creates = extra.contains(OFlags::CREATE);
        let mode = if creates { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        beneath::open(&self.root, path, flags, mode).map(File::from)
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

    /// Removes the file at `path` below the server; it is no error where there is none.
    pub(super) fn remove_object(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = match beneath::parent(self.root.as_fd(), path) {
            Err(Errno::NOENT) => return Ok(()),
            parent => parent?,
        };
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the file `from` below the server the name `to` in the same directory, unless that is
    /// taken.
    pub(super) fn rename_object(&self, from: &Path, to: &Path) -> io::Result<()> {
        debug_assert_eq!(from.parent(), to.parent(), "one directory");
        let (parent, name) = beneath::parent(self.root.as_fd(), from)?;
        let to = to.file_name().ok_or(Errno::INVAL)?;
        Ok(renameat_with(&parent, name, &parent, to, RenameFlags::NOREPLACE)?)
    }

    /// Makes everything on the server's file system durable.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    /// Makes the entries of every directory from the server's root down to `path`'s durable.
    pub(super) fn sync_parents(&self, path: &Path) -> io::Result<()> {
        for parent in path.ancestors().skip(1) {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let dir = open_directory(&self.root, parent)?;
            rustix::fs::fsync(&dir)?;
        }
        Ok(())
    }

    /// Names in the directory at `path` below the server; none where there is no directory.
    pub(super) fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let dir = match open_directory(&self.root, path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other?,
        };
        Ok(beneath::names(dir)?)
    }

    /// Bytes of blocks that the file at `path` below the server uses; 0 where there is none.
    pub(super) fn blocks_of(&self, path: &Path) -> io::Result<u64> {
        match rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(stat.st_blocks.cast_unsigned() * BLOCK),
            Err(Errno::NOENT) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The unit of `st_blocks`, whatever the file system's own block is.
pub(super) const BLOCK: u64 = 512;

fn open_directory(root: &File, path: &Path) -> rustix::io::Result<File> {
    beneath::open(root, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(File::from)
}
