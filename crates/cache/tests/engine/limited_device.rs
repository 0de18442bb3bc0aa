//! A device of a given size: the files of one directory together are never larger.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_vfs::Allocate;
use parking_lot::Mutex;

const SECTOR: u64 = 512;

/// Answers `ENOSPC` to what would make `dir` larger than `limit` bytes.
#[derive(Debug)]
pub(crate) struct LimitedDevice {
    below: Arc<dyn Device>,
    dir: PathBuf,
    limit: u64,
    one: Mutex<()>,
}

impl LimitedDevice {
    pub(crate) fn new(below: Arc<dyn Device>, dir: &Path, limit: u64) -> Self {
        Self { below, dir: dir.to_owned(), limit, one: Mutex::default() }
    }

    fn used(&self) -> io::Result<u64> {
        let (mut used, mut dirs) = (0, vec![self.dir.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let found = entry.metadata()?;
                if found.is_dir() {
                    dirs.push(entry.path());
                }
                used += if found.is_file() { found.blocks() * SECTOR } else { 0 };
            }
        }
        Ok(used)
    }

    fn within(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _one = self.one.lock();
        let before = self.used()?;
        work()?;
        let after = self.used()?;
        if after > before && after > self.limit {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }
}

impl Device for LimitedDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.below.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.within(|| self.below.write_at(file, offset, bufs))
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.within(|| self.below.allocate(file, range, how))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.below.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.below.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        let available = self.limit.saturating_sub(self.used()?);
        Ok(Space { total: self.limit, available, no_files: false, is_read_only: false })
    }
}
