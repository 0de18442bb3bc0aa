//! Files by identity and by path, in the store and in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::critical::CriticalRanges;
use crate::batch::Batch;
use crate::files::{FileState, Files};
use crate::record::{NEXT_FILE_KEY, encode_counter, encode_file, file_key};
use crate::records::RecordStore;
use crate::{FileId, FileRecord, OriginKey, Removal, Stamp};
use halocline_os::error::{Error, Result};

/// The files that the cache knows, kept durable by the records.
///
/// What must hold: memory has a name only once it is recorded, and names are changed one at a time.
#[derive(Debug)]
pub struct FileRegistry {
    records: Arc<dyn RecordStore>,
    critical: Arc<CriticalRanges>,
    names: Mutex<()>,
    files: RwLock<Files>,
}

impl FileRegistry {
    pub(super) fn new(
        records: &Arc<dyn RecordStore>,
        critical: &Arc<CriticalRanges>,
        files: Files,
    ) -> Self {
        let (records, critical) = (Arc::clone(records), Arc::clone(critical));
        Self { records, critical, names: Mutex::default(), files: RwLock::new(files) }
    }

    /// All files for reading, including forgotten ones.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Files> {
        self.files.read()
    }

    /// All files as they are now, including forgotten ones.
    pub(super) fn states(&self) -> Vec<Arc<FileState>> {
        self.files.read().all().cloned().collect()
    }

    /// One file, whether forgotten or not.
    pub(super) fn state(&self, file: FileId) -> Option<Arc<FileState>> {
        self.files.read().get(file).cloned()
    }

    /// One file that has not been forgotten.
    pub(super) fn known(&self, file: FileId) -> Result<Arc<FileState>> {
        let state = self.state(file).filter(|state| !state.forgotten.load(Relaxed));
        state.ok_or_else(|| {
            Error::invalid(
                format!("the cache does not know file {}", file.0),
                "register it first; this is a fault of the program",
            )
        })
    }

    /// Removes for good a forgotten file whose last blocks were discarded.
    pub(super) fn remove(&self, file: FileId) {
        self.files.write().remove(file);
    }

    /// The file with this origin identity, if the cache knows it.
    pub fn find(&self, key: OriginKey) -> Option<FileId> {
        self.files.read().find(key)
    }

    /// One file's record.
    pub fn record(&self, file: FileId) -> Option<FileRecord> {
        self.known(file).ok().map(|state| state.record.lock().clone())
    }

    /// The records of all files that the cache knows, by id.
    pub fn all(&self) -> Vec<FileRecord> {
        let files = self.files.read();
        let known = files.all().filter(|state| !state.forgotten.load(Relaxed));
        let mut records: Vec<_> = known.map(|state| state.record.lock().clone()).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// The file with this origin identity, registered under `path` if it is new.
    pub fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.register_on(None, key, (path, Removal::None))
    }

    /// The same for a file that lies on a `mount` below the origin's root, see [`FileRecord::mount`], and which may have
    /// lost its last name.
    pub fn register_on(
        &self,
        mount: Option<OriginKey>,
        key: OriginKey,
        (path, removal): (&Path, Removal),
    ) -> Result<FileId> {
        let _names = self.names.lock();
        let (found, next) = {
            let files = self.files.read();
            (files.find(key), files.next)
        };
        if let Some(id) = found {
            return Ok(id);
        }
        let id = FileId(next);
        let (path, stamp) = (path.to_owned(), Stamp::Writing);
        let record = FileRecord { id, key, path, stamp, removal, mount };
        let mut changes = Batch::default();
        changes.put(&file_key(id), &encode_file(&record));
        changes.put(NEXT_FILE_KEY, &encode_counter(next + 1));
        self.records.commit(&changes)?;
        self.files.write().add(record);
        Ok(id)
    }

    /// Records the current state of the origin's file.
    pub fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        let _names = self.names.lock();
        let state = self.known(file)?;
        let mut record = state.record.lock().clone();
        if record.stamp != stamp {
            record.stamp = stamp;
            let mut changes = Batch::default();
            changes.put(&file_key(file), &encode_file(&record));
            self.records.commit(&changes)?;
            *state.record.lock() = record;
        }
        Ok(())
    }

    /// Records what became of a file's last name; nothing if the cache no longer knows the file.
    pub fn note_removal(&self, file: FileId, removal: Removal) -> Result<()> {
        let _names = self.names.lock();
        let Ok(state) = self.known(file) else { return Ok(()) };
        let before = state.record.lock().clone();
        if before.removal == removal {
            return Ok(());
        }
        let record = FileRecord { removal, ..before };
        let mut changes = Batch::default();
        changes.put(&file_key(file), &encode_file(&record));
        self.records.commit(&changes)?;
        if removal == Removal::Done {
            // Another file may have the name by now.
            self.files.write().unlist_one(&record);
        }
        *state.record.lock() = record;
        Ok(())
    }

    /// Renames `from`, and everything below it if it is a directory, to `to`.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let _names = self.names.lock();
        let moved = self.files.read().renamed(from, to);
        self.commit_paths(&moved)?;
        let mut files = self.files.write();
        files.unlist_below(to);
        files.relist(&moved);
        Ok(())
    }

    /// Exchanges the paths `a` and `b`, with everything below each.
    pub fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        let _names = self.names.lock();
        let moved = {
            let files = self.files.read();
            let mut moved = files.renamed(a, b);
            moved.extend(files.renamed(b, a));
            moved
        };
        // One batch: after a crash either both names are exchanged or neither.
        self.commit_paths(&moved)?;
        self.files.write().relist(&moved);
        Ok(())
    }

    fn commit_paths(&self, moved: &[(Arc<FileState>, PathBuf)]) -> Result<()> {
        let mut changes = Batch::default();
        for (state, path) in moved {
            let record = FileRecord { path: path.clone(), ..state.record.lock().clone() };
            changes.put(&file_key(state.id), &encode_file(&record));
        }
        self.records.commit(&changes)
    }

    fn has_nothing_of(&self, state: &FileState) -> bool {
        let mapped = state.mapped();
        !state.forgotten.load(Relaxed)
            && mapped.extents.is_empty()
            && mapped.blocks.is_empty()
            && !self.critical.knows(state.id)
    }

    /// Forgets a file that has no extents.
    pub fn forget(&self, file: FileId) -> Result<()> {
        let _names = self.names.lock();
        let state = self.known(file)?;
        let _change = state.change.lock();
        if !state.mapped().extents.is_empty() {
            return Err(Error::invalid(
                format!("file {} still has extents", file.0),
                "unmap them first; this is a fault of the program",
            ));
        }
        let mut changes = Batch::default();
        changes.remove(&file_key(file));
        self.critical.forget(file, changes, |changes| self.records.commit(changes))?;
        let record = state.record.lock().clone();
        state.forgotten.store(true, Relaxed);
        let mut files = self.files.write();
        files.unregister(&record);
        if state.mapped().blocks.is_empty() {
            files.remove(file);
        }
        Ok(())
    }

    /// Whether the cache knows a file but has nothing of it: no extent, no block, no critical range.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.state(file).is_some_and(|state| self.has_nothing_of(&state))
    }

    /// All such files.
    pub fn empty_files(&self) -> Vec<FileId> {
        let files = self.files.read();
        files.all().filter(|state| self.has_nothing_of(state)).map(|state| state.id).collect()
    }
}
