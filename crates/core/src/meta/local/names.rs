//! Files by identity and by path, in the store and in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::LocalDmt;
use crate::error::{Error, Result};
use crate::meta::cdt::Durable;
use crate::meta::files::FileState;
use crate::meta::record::{NEXT_FILE_KEY, critical_key, encode_counter, encode_file, file_key};
use crate::meta::{FileId, FileRecord, OriginKey, Stamp};
use halocline_model::request::ByteRange;

impl LocalDmt {
    pub(super) fn register_file(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        let _names = self.names.lock();
        let (found, next) = {
            let files = self.files.read();
            (files.find(key), files.next)
        };
        if let Some(id) = found {
            return Ok(id);
        }
        let id = FileId(next);
        let record = FileRecord { id, key, path: path.to_owned(), stamp: Stamp::Writing };
        let mut changes = self.journal.changes();
        changes.put(&file_key(id), &encode_file(&record));
        changes.put(NEXT_FILE_KEY, &encode_counter(next + 1));
        changes.commit()?;
        self.files.write().add(record);
        Ok(id)
    }

    pub(super) fn stamp_file(&self, file: FileId, stamp: Stamp) -> Result<()> {
        let _names = self.names.lock();
        let state = self.known(file)?;
        let mut record = state.record.lock().clone();
        if record.stamp != stamp {
            record.stamp = stamp;
            self.journal.put(&file_key(file), &encode_file(&record))?;
            *state.record.lock() = record;
        }
        Ok(())
    }

    pub(super) fn rename_below(&self, from: &Path, to: &Path) -> Result<()> {
        let _names = self.names.lock();
        let moved = self.files.read().renamed(from, to);
        self.commit_paths(&moved)?;
        let mut files = self.files.write();
        files.unlist_below(to);
        files.relist(&moved);
        Ok(())
    }

    pub(super) fn exchange_below(&self, a: &Path, b: &Path) -> Result<()> {
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
        let mut changes = self.journal.changes();
        for (state, path) in moved {
            let record = FileRecord { path: path.clone(), ..state.record.lock().clone() };
            changes.put(&file_key(state.id), &encode_file(&record));
        }
        changes.commit()
    }

    pub(super) fn has_nothing_of(&self, state: &FileState) -> bool {
        let mapped = state.mapped.read();
        !state.forgotten.load(Relaxed)
            && mapped.extents.is_empty()
            && mapped.blocks.is_empty()
            && !self.cdt.lock().knows(state.id)
    }

    pub(super) fn forget_file(&self, file: FileId) -> Result<()> {
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
        let mut changes = self.journal.changes();
        changes.remove(&file_key(file));
        for change in dropped {
            if let Durable::Drop(file, range) = change {
                changes.remove(&critical_key(file, range));
            }
        }
        changes.commit()?;
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
}
