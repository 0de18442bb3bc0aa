//! The cache's objects: one sparse striped file for each file and placement, in which every cached byte is at its own
//! offset (`C_offset` = `D_offset`).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::layout::{CacheGeometry, Placement};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::object_paths::{ObjectKey, ROOT, directory_of, parse, path_of};
use super::{Volume, VolumeFile};
use halocline_os::open_files::OBJECTS_MAX;

/// The open objects of a cache volume; the least recently used ones are closed first.
#[derive(Debug)]
pub struct CacheObjects {
    volume: Volume,
    geometry: CacheGeometry,
    open: RwLock<FxHashMap<ObjectKey, Open>>,
    files_max: usize,
    clock: AtomicU64,
}

#[derive(Debug)]
struct Open {
    file: Arc<VolumeFile>,
    used: AtomicU64,
}

impl CacheObjects {
    /// The objects of a cache volume of this geometry.
    ///
    /// # Panics
    /// If volume and geometry disagree about servers or stripe.
    pub fn new(volume: Volume, geometry: CacheGeometry) -> Self {
        assert_eq!(volume.servers().len(), geometry.servers() as usize, "one geometry, one volume");
        assert_eq!(volume.stripe(), geometry.stripe(), "one stripe for volume and geometry");
        let files_max = (OBJECTS_MAX / volume.servers().len()).max(1);
        let (open, clock) = (RwLock::default(), AtomicU64::new(0));
        Self { volume, geometry, open, files_max, clock }
    }

    /// The same with at most `files` objects open, however many descriptors each needs.
    #[must_use]
    pub fn with_open_files_max(mut self, files: usize) -> Self {
        self.files_max = files.max(1);
        self
    }

    /// The servers and their stripe.
    pub const fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The geometry that placements refer to.
    pub const fn geometry(&self) -> CacheGeometry {
        self.geometry
    }

    /// The object of file number `file` at `placement`. Its local files are created when they are first written. While
    /// the result is alive, the same object is not opened a second time.
    pub fn open(&self, file: u64, placement: Placement) -> io::Result<Arc<VolumeFile>> {
        let key = ObjectKey { file, placement };
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some(open) = self.open.read().get(&key) {
            open.used.store(now, Ordering::Relaxed);
            return Ok(Arc::clone(&open.file));
        }
        if !self.geometry.has(placement) {
            let what = "a record places bytes on a server that the cache does not have";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut open = self.open.write();
        if open.len() >= self.files_max {
            self.close_some(&mut open);
        }
        let entry = open.entry(key).or_insert_with(|| {
            let (first, striping) = self.geometry.resolve(placement);
            let file = VolumeFile::lazy(&self.volume, first, striping, &path_of(key));
            Open { file: Arc::new(file), used: AtomicU64::new(now) }
        });
        Ok(Arc::clone(&entry.file))
    }

    /// Reads `buf` from offset `offset` of an object that another process owns, which is opened for this alone: its
    /// owner may replace or remove it at any time. Bytes that are not there read as zeros.
    pub fn read_once(&self, key: ObjectKey, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if !self.geometry.has(key.placement) {
            let what = "bytes on a server that the cache does not have";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let (first, striping) = self.geometry.resolve(key.placement);
        VolumeFile::lazy(&self.volume, first, striping, &path_of(key)).read_filled(offset, buf)
    }

    /// Closes the least recently used eighth, except what is in use. What was written is synced first; an object that
    /// cannot be synced stays open, so that the next [`sync_dirty`](Self::sync_dirty) reports it.
    fn close_some(&self, open: &mut FxHashMap<ObjectKey, Open>) {
        let mut idle: Vec<(u64, ObjectKey)> = open
            .iter()
            .filter(|(_, open)| Arc::strong_count(&open.file) == 1)
            .map(|(key, open)| (open.used.load(Ordering::Relaxed), *key))
            .collect();
        idle.sort_unstable();
        for (_, key) in idle.into_iter().take(self.files_max.div_ceil(8)) {
            let file = &open[&key].file;
            if !file.is_dirty() || file.sync(true).is_ok() {
                open.remove(&key);
            }
        }
    }

    /// Deletes every object of file number `file`. The caller guarantees that none is in use.
    pub fn remove(&self, file: u64) -> io::Result<()> {
        self.open.write().retain(|key, _| key.file != file);
        let dir = directory_of(file);
        for server in self.volume.servers() {
            for name in server.directory().names(&dir)? {
                if parse(&name).is_some_and(|key| key.file == file) {
                    server.directory().remove(&dir.join(name))?;
                }
            }
        }
        Ok(())
    }

    /// Deletes the objects of file number `file` that no longer have any blocks. The caller guarantees that none is in
    /// use.
    pub fn remove_empty(&self, file: u64) -> io::Result<()> {
        let dir = directory_of(file);
        for server in self.volume.servers() {
            for name in server.directory().names(&dir)? {
                let path = dir.join(&name);
                if parse(&name).is_some_and(|key| key.file == file)
                    && server.directory().allocated_of(&path)? == 0
                {
                    server.directory().remove(&path)?;
                }
            }
        }
        self.open.write().retain(|key, open| key.file != file || open.file.is_dirty());
        Ok(())
    }

    /// Makes every write that returned before this call durable. This is the barrier before metadata that refers to the
    /// data is made durable (I2, I4). All objects are tried; the first error is returned, and those that failed are
    /// tried again at the next call.
    pub fn sync_dirty(&self) -> io::Result<()> {
        let dirty: Vec<_> = {
            let open = self.open.read();
            open.values()
                .filter(|open| open.file.is_dirty())
                .map(|open| Arc::clone(&open.file))
                .collect()
        };
        dirty.iter().map(|file| file.sync(true)).fold(Ok(()), io::Result::and)
    }

    /// Numbers of the files with an object that can no longer be synced: its content must be moved elsewhere, and the
    /// object removed.
    pub fn unsyncable(&self) -> BTreeSet<u64> {
        let open = self.open.read();
        let failed = open.iter().filter(|(_, open)| open.file.is_unsyncable());
        failed.map(|(key, _)| key.file).collect()
    }

    /// All objects on the servers, in order. Names that are not ours are skipped.
    pub fn list(&self) -> io::Result<Vec<ObjectKey>> {
        let mut keys = BTreeSet::new();
        self.each_name(|_, _, key| {
            keys.insert(key);
            Ok(())
        })?;
        Ok(keys.into_iter().collect())
    }

    /// Bytes of blocks that the objects use on disk (I5).
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        let mut total = 0;
        self.each_name(|server, path, _| {
            total += self.volume.servers()[server].directory().allocated_of(path)?;
            Ok(())
        })?;
        Ok(total)
    }

    fn each_name(
        &self,
        mut take: impl FnMut(usize, &Path, ObjectKey) -> io::Result<()>,
    ) -> io::Result<()> {
        for (index, server) in self.volume.servers().iter().enumerate() {
            for dir in server.directory().names(Path::new(ROOT))? {
                let dir = Path::new(ROOT).join(dir);
                for name in server.directory().names(&dir)? {
                    if let Some(key) = parse(&name) {
                        take(index, &dir.join(&name), key)?;
                    }
                }
            }
        }
        Ok(())
    }
}
