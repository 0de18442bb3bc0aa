//! The files of the table.

use std::path::Path;

use super::LocalDmt;
use crate::error::{Error, Result};
use crate::meta::journal::Batch;
use crate::meta::record;
use crate::meta::{FileId, FileRecord, OriginKey, Stamp};

impl LocalDmt {
    pub(super) fn register_file(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        if let Some(known) = self.names.read().find(key) {
            return Ok(known);
        }
        let mut names = self.names.write();
        if let Some(known) = names.find(key) {
            return Ok(known);
        }
        let id = names.next();
        let file = FileRecord { id, key, path: path.to_owned(), stamp: Stamp::Writing };
        let next_key = [record::kind::NEXT_FILE];
        let mut batch = Batch::default();
        put_file(&mut batch, &file);
        batch.put(&next_key, record::number_value(&next_key, id.0 + 1));
        self.journal.commit(batch)?;
        names.put(file);
        Ok(id)
    }

    pub(super) fn stamp_file(&self, file: FileId, stamp: Stamp) -> Result<()> {
        let mut names = self.names.write();
        let Some(known) = names.get(file) else { return Ok(()) };
        if known.stamp == stamp {
            return Ok(());
        }
        let mut batch = Batch::default();
        put_file(&mut batch, &FileRecord { stamp, ..known.clone() });
        self.journal.commit(batch)?;
        names.stamp(file, stamp);
        Ok(())
    }

    pub(super) fn rename_files(&self, from: &Path, to: &Path) -> Result<()> {
        let mut names = self.names.write();
        let renamed = names.renamed(from, to);
        let mut batch = Batch::default();
        for file in &renamed {
            put_file(&mut batch, file);
        }
        self.journal.commit(batch)?;
        renamed.into_iter().for_each(|file| names.put(file));
        Ok(())
    }

    pub(super) fn forget_file(&self, file: FileId) -> Result<()> {
        let mut names = self.names.write();
        let Some(known) = names.get(file) else { return Ok(()) };
        if self.state(file).is_some_and(|state| !state.read().map.is_empty()) {
            return Err(Error::invalid(
                format!("{} still has bytes on the cache", known.path.display()),
                "flush or discard them before the file is forgotten",
            ));
        }
        let mut batch = Batch::default();
        batch.remove(&record::file_key(file));
        self.journal.commit(batch)?;
        names.remove(file);
        drop(names);
        self.order.lock().pin(file, false);
        self.drop_if_idle(file);
        Ok(())
    }

    /// Drops what is kept of a forgotten file as soon as none of its blocks is left.
    pub(super) fn drop_if_idle(&self, file: FileId) {
        if self.names.read().get(file).is_some() {
            return;
        }
        let mut files = self.files.write();
        let idle = files.get(&file).is_some_and(|state| {
            let state = state.read();
            state.map.is_empty() && state.space.is_empty()
        });
        if idle {
            files.remove(&file);
        }
    }
}

fn put_file(batch: &mut Batch, file: &FileRecord) {
    let key = record::file_key(file.id);
    batch.put(&key, record::file_value(&key, file));
}
