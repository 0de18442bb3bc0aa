//! The part of a striped file on one server: a local file that may not exist yet.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::server::Server;
use crate::device::ServerFile;

/// One server's local file. It is opened when it is first read and created when it is first written, so that a small
/// file needs only one inode, however many servers there are.
#[derive(Debug)]
pub(super) struct LazyFile {
    pub(super) server: Arc<Server>,
    path: PathBuf,
    file: OnceLock<ServerFile>,
    /// Whether the directory entry may not be durable: it was not synced here, and its creator may have been killed
    /// before syncing it.
    name_unsynced: AtomicBool,
}

impl LazyFile {
    /// The local file at `path` below `server`, opened on demand.
    pub(super) fn lazy(server: Arc<Server>, path: PathBuf) -> Self {
        Self { server, path, file: OnceLock::new(), name_unsynced: AtomicBool::new(true) }
    }

    /// A local file that is already open.
    pub(super) fn open(server: Arc<Server>, file: ServerFile) -> Self {
        let path = PathBuf::new();
        Self { server, path, file: OnceLock::from(file), name_unsynced: AtomicBool::new(false) }
    }

    /// The local file, unless it does not exist.
    pub(super) fn existing(&self) -> io::Result<Option<&ServerFile>> {
        if let Some(file) = self.file.get() {
            return Ok(Some(file));
        }
        let opened = self.server.directory().open(&self.path)?;
        Ok(opened.map(|file| self.file.get_or_init(|| file)))
    }

    /// The local file, created if necessary.
    pub(super) fn created(&self) -> io::Result<&ServerFile> {
        if let Some(file) = self.existing()? {
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

    /// Bytes of blocks that the local file uses.
    pub(super) fn allocated(&self) -> io::Result<u64> {
        let Some(file) = self.existing()? else { return Ok(0) };
        file.allocated()
    }
}
