//! A device under which the power can fail: of every block that was changed since its file's last
//! sync, the old or the new content is there afterwards, in any choice; of a file's length too.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_vfs::Allocate;
use parking_lot::Mutex;

const BLOCK: u64 = 4096;

/// What was not synced, of all files of some devices.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    files: Mutex<HashMap<u64, Unsynced>>,
}

/// One file as its last sync left it, where it was changed since.
#[derive(Debug)]
struct Unsynced {
    file: File,
    len: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Pages {
    /// Notes what `range` of a file holds before it is changed.
    fn before(&self, file: &ServerFile, range: ByteRange) -> io::Result<()> {
        let mut files = self.files.lock();
        let unsynced = match files.entry(file.inode()) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let path = format!("/proc/self/fd/{}", file.descriptor().unwrap().as_raw_fd());
                let file = File::options().read(true).write(true).open(path)?;
                let len = file.metadata()?.len();
                entry.insert(Unsynced { file, len, blocks: BTreeMap::new() })
            }
        };
        let end = range.end.min(unsynced.file.metadata()?.len().max(unsynced.len));
        for block in range.start / BLOCK..end.div_ceil(BLOCK) {
            if let std::collections::btree_map::Entry::Vacant(entry) = unsynced.blocks.entry(block)
            {
                let mut old = vec![0; usize::try_from(BLOCK).unwrap()];
                read_filled(&unsynced.file, &mut old, block * BLOCK)?;
                entry.insert(old);
            }
        }
        Ok(())
    }

    fn synced(&self, file: &ServerFile) {
        self.files.lock().remove(&file.inode());
    }

    /// The power fails: `keeps` decides for each block, and each length, whether the new one
    /// reached the disk.
    pub(crate) fn lose(&self, mut keeps: impl FnMut() -> bool) {
        let mut files: Vec<_> = self.files.lock().drain().collect();
        files.sort_unstable_by_key(|(inode, _)| *inode);
        for (_, unsynced) in files {
            let now = unsynced.file.metadata().unwrap().len();
            let len = if keeps() { now } else { unsynced.len };
            for (block, old) in &unsynced.blocks {
                if !keeps() {
                    unsynced.file.write_all_at(old, block * BLOCK).unwrap();
                }
            }
            unsynced.file.set_len(len).unwrap();
        }
    }
}

fn read_filled(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(())
}

/// Forgets nothing that was synced.
#[derive(Debug)]
pub(crate) struct VolatileDevice {
    below: Arc<dyn Device>,
    pages: Arc<Pages>,
}

impl VolatileDevice {
    pub(crate) fn new(below: Arc<dyn Device>, pages: Arc<Pages>) -> Self {
        Self { below, pages }
    }
}

impl Device for VolatileDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.below.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.pages.before(file, ByteRange::at(offset, len))?;
        self.below.write_at(file, offset, bufs)
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.pages.before(file, range)?;
        self.below.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.pages.before(file, ByteRange::new(len, u64::MAX))?;
        self.below.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.below.sync(file, data_only)?;
        self.pages.synced(file);
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}
