//! What happens at mount before the first request: dirty files of earlier sessions are found
//! again, those that cannot be found are saved, not lost (I4, I9).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::DirEntry;
use super::changes;
use super::parts::{Parts, origin_key};
use crate::counted::counted_with;
use crate::error::Result;
use crate::extent::file::WHOLE;
use crate::meta::{FileId, FileRecord, OriginKey, Stamp};
use crate::namespace::Node;

impl Parts {
    /// Finds every file with dirty extents. A file that was renamed while the mount was down, or
    /// in the instant before it was killed, is searched for by its inode in the whole tree.
    pub(crate) fn recover(&self) -> Result<()> {
        let mut missing = HashMap::new();
        for (id, _) in self.store.dmt.dirty_files() {
            match self.file_by_id(id)? {
                Some(file) => self.keep_for_flush(&file, id),
                None => {
                    if let Some(record) = self.store.dmt.file(id) {
                        missing.insert(record.key, record);
                    }
                }
            }
        }
        if !missing.is_empty() {
            let files = counted_with(missing.len(), "cached file", ("is", "are"));
            tracing::warn!("{files} not where expected; searching");
            self.search(&self.namespace.root(), &mut missing, &|| true)?;
        }
        missing.values().try_for_each(|record| self.rescue(record))?;
        self.judge_the_rest()
    }

    /// The same for dirty files of a mount that lives. While programs change names nothing can be said of
    /// what is not found, nor where `go_on` ended the search.
    pub(crate) fn search_missing(&self, ids: &[FileId], go_on: &dyn Fn() -> bool) -> Result<()> {
        let names = self.own.names_changing.load(Ordering::SeqCst);
        let settled =
            || !self.is_naming() && self.own.names_changing.load(Ordering::SeqCst) == names;
        let mut missing = HashMap::new();
        for id in ids {
            if self.file_by_id(*id)?.is_none()
                && let Some(record) = self.store.dmt.file(*id)
            {
                missing.insert(record.key, record);
            }
        }
        self.search(&self.namespace.root(), &mut missing, go_on)?;
        if !settled() || !go_on() {
            return Ok(());
        }
        let _alone = self.store.forgetting.lock();
        missing.values().try_for_each(|record| self.rescue(record))
    }

    /// Keeps a dirty file known, so that renames and evictions find its locks.
    fn keep_for_flush(&self, file: &Arc<crate::extent::file::CachedFile>, id: FileId) {
        if self.store.dmt.dirty(id, WHOLE, 1).is_empty() {
            // A conflict was found, and its bytes were saved.
            return;
        }
        // Of more than may be open a flush opens each when its turn comes.
        if !self.movers.are_all_kept()
            && let Err(error) = self.mover_of(file)
        {
            let path = self.namespace.path_of(&file.node.read());
            self.note(format!(
                "{} has dirty bytes and cannot be opened for writing: {error}; they stay on the \
                 cache",
                path.display(),
            ));
        }
    }

    /// Walks the tree below `dir` until every file in `missing` was seen or `go_on` says no.
    fn search(
        &self,
        dir: &Node,
        missing: &mut HashMap<OriginKey, FileRecord>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        for DirEntry { name, kind, .. } in self.namespace.entries(dir)? {
            if missing.is_empty() || !go_on() {
                break;
            }
            if ![libc::DT_DIR, libc::DT_REG, libc::DT_UNKNOWN].contains(&kind) {
                continue;
            }
            let Ok((node, stat)) = self.namespace.lookup(dir, &name) else { continue };
            if stat.kind() == libc::S_IFDIR {
                self.search(&node, missing, go_on)?;
            } else if let Some(record) = missing.remove(&origin_key(&stat)) {
                let path = self.namespace.path_of(&node);
                self.store.dmt.rename(&record.path, &path)?;
                let file = self.file_of(&node)?;
                self.keep_for_flush(&file, record.id);
            }
        }
        Ok(())
    }

    /// Judges the files without dirty bytes that the last session was changing when it ended, while it is
    /// known when that was.
    fn judge_the_rest(&self) -> Result<()> {
        for record in self.store.dmt.files() {
            if record.stamp != Stamp::Writing {
                continue;
            }
            match self.file_by_id(record.id) {
                Ok(Some(file)) => self.forget_idle(&file),
                // Clean bytes of a file that is not where it was are not worth a search.
                _ if self.store.dmt.dirty(record.id, WHOLE, 1).is_empty() => {
                    self.let_go(record.id, WHOLE)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// At the end of a session: what the origin's file looks like under dirty bytes that stay on
    /// the cache, so that the next one sees a change behind the mount (I9). After a kill it cannot.
    pub(crate) fn stamp_dirty_files(&self) -> Result<()> {
        for (id, _) in self.store.dmt.dirty_files() {
            let Some(file) = self.file_by_id(id)? else { continue };
            let met = if self.is_foreign(&file) { changes::meet(self, &file) } else { Ok(()) };
            let stamped = met.and_then(|()| self.give_time(&file)).and_then(|()| self.rest(&file));
            if let Err(error) = stamped {
                let path = self.namespace.path_of(&file.node.read());
                self.note(format!(
                    "{}: {error}; changes behind the mount will not be noticed",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// Saves the dirty bytes of a file that is no longer on the origin, and forgets the file.
    fn rescue(&self, record: &FileRecord) -> Result<()> {
        let dirty = self.store.dmt.dirty(record.id, WHOLE, usize::MAX);
        changes::save(self, record.id, &record.path, &dirty, "the origin's file is gone")?;
        self.store.dmt.unmap(record.id, WHOLE)?;
        self.store.dmt.drop_critical(record.id, WHOLE);
        self.store.dmt.forget(record.id)
    }
}
