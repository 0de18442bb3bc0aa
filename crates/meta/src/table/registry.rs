//! Files by identity and by path, in the store and in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::ExtentTable;
use crate::batch::Batch;
use crate::cdt::Durable;
use crate::files::FileState;
use crate::record::{NEXT_FILE_KEY, critical_key, encode_counter, encode_file, file_key};
use crate::{FileId, FileRecord, OriginKey, Stamp};
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};

impl ExtentTable {
    /// The file with this origin identity, registered under `path` if it is new.
    pub fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.register_on(None, key, path)
    }

    /// The same for a file that lies on a `mount` below the origin's root, see [`FileRecord::mount`].
    pub fn register_on(
        &self,
        mount: Option<OriginKey>,
        key: OriginKey,
        path: &Path,
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
        let record = FileRecord { id, key, path, stamp, mount };
        let mut changes = Batch::default();
        changes.put(&file_key(id), &encode_file(&record));
        changes.put(NEXT_FILE_KEY, &encode_counter(next + 1));
        self.records.commit(&changes)?;
        self.files.write().add(record);
        Ok(id)
    }

    /// Records what the origin's file looks like now.
    pub fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        let _names = self.names.lock();
        let state = self.known(file)?;
        let mut record = state.record.lock().clone();
        if record.stamp != stamp {
            record.stamp = stamp;
            self.put(&file_key(file), &encode_file(&record))?;
            *state.record.lock() = record;
        }
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
        // One batch: a crash finds both names exchanged or neither.
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

    pub(super) fn has_nothing_of(&self, state: &FileState) -> bool {
        let mapped = state.mapped.read();
        !state.forgotten.load(Relaxed)
            && mapped.extents.is_empty()
            && mapped.blocks.is_empty()
            && !self.cdt.lock().knows(state.id)
    }

    /// Forgets a file without extents.
    pub fn forget(&self, file: FileId) -> Result<()> {
        let _names = self.names.lock();
        let state = self.known(file)?;
        let _change = state.change.lock();
        if !state.mapped.read().extents.is_empty() {
            return Err(Error::invalid(
                format!("file {} still has extents", file.0),
                "unmap them first; this is a fault of the program",
            ));
        }
        let mut dropped = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.drop_range(file, ByteRange::new(0, u64::MAX), &mut dropped);
        let mut changes = Batch::default();
        changes.remove(&file_key(file));
        for change in dropped {
            if let Durable::Drop(file, range) = change {
                changes.remove(&critical_key(file, range));
            }
        }
        self.records.commit(&changes)?;
        drop(cdt);
        let record = state.record.lock().clone();
        state.forgotten.store(true, Relaxed);
        let mut files = self.files.write();
        files.unregister(&record);
        if state.mapped.read().blocks.is_empty() {
            files.remove(file);
        }
        Ok(())
    }

    /// Whether the cache knows a file and has nothing of it: no extent, no block, no critical range.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.state(file).is_some_and(|state| self.has_nothing_of(&state))
    }

    /// All such files.
    pub fn empty_files(&self) -> Vec<FileId> {
        let files = self.files.read();
        files.all().filter(|state| self.has_nothing_of(state)).map(|state| state.id).collect()
    }
}
