//! The part of a striped file on one server: a local file that may not exist yet.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::server::Server;
use crate::device::ServerFile;

/// One server's local file. It is opened when it is first read and created when it is first written, so that a small
/// file needs only one inode, however many servers there are.
#[derive(Debug)]
pub(super) struct LazyFile {
    pub(super) server: Arc<Server>,
    path: PathBuf,
    /// To read and write.
    file: OnceLock<ServerFile>,
    /// To read alone: it could not be opened for writing, as on a file system that became read-only.
    to_read: OnceLock<ServerFile>,
    /// Whether the directory entry may not be durable: it was not synced here, and its creator may have been killed
    /// before syncing it.
    name_unsynced: AtomicBool,
}

impl LazyFile {
    /// The local file at `path` below `server`, opened on demand.
    pub(super) fn lazy(server: Arc<Server>, path: PathBuf) -> Self {
        let (file, to_read) = (OnceLock::new(), OnceLock::new());
        Self { server, path, file, to_read, name_unsynced: AtomicBool::new(true) }
    }

    /// A local file that is already open.
    pub(super) fn open(server: Arc<Server>, file: ServerFile) -> Self {
        let path = PathBuf::new();
        let (file, to_read) = (OnceLock::from(file), OnceLock::new());
        Self { server, path, file, to_read, name_unsynced: AtomicBool::new(false) }
    }

    /// The local file to read, unless it does not exist.
    pub(super) fn existing(&self) -> io::Result<Option<&ServerFile>> {
        if let Some(file) = self.file.get().or_else(|| self.to_read.get()) {
            return Ok(Some(file));
        }
        match self.existing_to_write() {
            Err(error) if is_not_to_be_written(&error) => {
                let opened = self.server.directory().open_to_read(&self.path)?;
                Ok(opened.map(|file| self.to_read.get_or_init(|| file)))
            }
            other => other,
        }
    }

    /// The local file to read and write, unless it does not exist.
    pub(super) fn existing_to_write(&self) -> io::Result<Option<&ServerFile>> {
        if let Some(file) = self.file.get() {
            return Ok(Some(file));
        }
        let opened = self.server.directory().open(&self.path)?;
        Ok(opened.map(|file| self.file.get_or_init(|| file)))
    }

    /// The local file, created if necessary.
    pub(super) fn created(&self) -> io::Result<&ServerFile> {
        if let Some(file) = self.existing_to_write()? {
            return Ok(file);
        }
        let file = self.server.directory().create(&self.path)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Makes the local file durable, the first time including its name.
    pub(super) fn sync(&self, data_only: bool) -> io::Result<()> {
        let Some(file) = self.existing()? else { return Ok(()) };
        self.server.device().sync(file, data_only)?;
        if self.name_unsynced.load(Ordering::Acquire) {
            self.server.directory().sync_parents(&self.path)?;
            self.name_unsynced.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Makes the local file's data and length durable, if it has a name after a power loss.
    pub(super) fn sync_contents(&self) -> io::Result<()> {
        self.existing()?.map_or(Ok(()), |file| self.server.device().sync(file, true))
    }

    /// Bytes of blocks that the local file uses.
    pub(super) fn allocated(&self) -> io::Result<u64> {
        let Some(file) = self.existing()? else { return Ok(0) };
        file.allocated()
    }
}

/// Whether it may be possible to read what gave this error when it was opened to read and write.
fn is_not_to_be_written(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ROFS | Errno::ACCESS | Errno::PERM))
}
