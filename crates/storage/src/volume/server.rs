//! One storage target: a directory, its device and its worker threads.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::queue::Queue;
use super::{Decorate, object_paths};
use crate::device::directory::LocalDirectory;
use crate::device::local::LocalDevice;
use crate::device::{Device, Directory};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// A storage target: names are accessed through its directory, data through its device.
#[derive(Debug)]
pub struct Server {
    name: String,
    dir: PathBuf,
    directory: Arc<dyn Directory>,
    device: Arc<dyn Device>,
    queue: Queue,
}

impl Server {
    /// The server `name` over a directory that belongs to us alone, as its directories and files must.
    pub(super) fn private(
        dir: &PrivateDir,
        name: &str,
        index: usize,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        let names = dir.names()?;
        for root in [object_paths::ROOT, object_paths::LAYOUTS] {
            if names.iter().any(|name| name == root) {
                // Other names there are ignored.
                dir.sub(root)?.check_directories(|name| name.len() == 2)?;
            }
        }
        let open = |root, path| LocalDirectory::new(root, path, true);
        Self::over(dir, (name, index), open, decorate)
    }

    /// The server with this index of a cache that another process owns, to read.
    pub(super) fn of_another(
        dir: &Path,
        index: usize,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        let found = PrivateDir::open_to_read(dir)?;
        Self::to_read(&found, &format!("server-{index}"), index, decorate)
    }

    /// The server `name` over a directory that belongs to us alone, in which nothing is made or changed.
    pub(super) fn to_read(
        dir: &PrivateDir,
        name: &str,
        index: usize,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        Self::over(dir, (name, index), LocalDirectory::to_read, decorate)
    }

    /// The server over a private directory; `open` makes what accesses names of its descriptor and path.
    fn over(
        dir: &PrivateDir,
        (name, index): (&str, usize),
        open: impl FnOnce(File, PathBuf) -> LocalDirectory,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>> {
        let path = dir.path();
        let device = decorate(index, Arc::new(LocalDevice::open(path)?));
        let root = dir.as_fd().try_clone_to_owned();
        let root = root.map_err(Error::at(path, "open the server's directory"))?.into();
        let directory = Arc::new(open(root, path.to_owned()));
        Ok(Arc::new(Self::new(name, path, directory, device)))
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
        let directory = Arc::new(LocalDirectory::new(root, dir.to_owned(), false));
        Ok(Arc::new(Self::new(name, dir, directory, device)))
    }

    /// The server `name` with its names in `directory` and its bytes on `device`; `dir` is where people find it.
    pub fn new(
        name: &str,
        dir: &Path,
        directory: Arc<dyn Directory>,
        device: Arc<dyn Device>,
    ) -> Self {
        let (name, dir, queue) = (name.to_owned(), dir.to_owned(), Queue::new(name));
        Self { name, dir, directory, device, queue }
    }

    /// Name, for reports and threads.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory as given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's names.
    pub fn directory(&self) -> &dyn Directory {
        self.directory.as_ref()
    }

    /// The device for data operations.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Parts of requests waiting for one of the server's workers.
    pub fn waiting(&self) -> u64 {
        self.queue.len() as u64
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}
