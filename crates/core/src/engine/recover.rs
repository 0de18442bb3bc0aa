//! What happens at mount before the first request: dirty files of earlier sessions are found
//! again, those that cannot be found are saved, not lost (I4, I9).

use std::collections::HashMap;
use std::sync::Arc;

use super::changes;
use super::parts::{Parts, origin_key};
use crate::error::Result;
use crate::extent::file::WHOLE;
use crate::meta::{FileId, FileRecord, OriginKey};
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
            tracing::warn!("{} cached files are not where they were; searching", missing.len());
            self.search(&self.namespace.root(), &mut missing)?;
        }
        for record in missing.values() {
            self.rescue(record)?;
        }
        Ok(())
    }

    /// Keeps a dirty file known, so that renames and evictions find its locks.
    fn keep_for_flush(&self, file: &Arc<crate::extent::file::CachedFile>, id: FileId) {
        if let Err(error) = self.mover_of(file) {
            let path = self.namespace.path_of(&file.node.read());
            self.note(format!(
                "{} has dirty bytes and cannot be opened for writing: {error}; they stay on the \
                 cache (file {:016x})",
                path.display(),
                id.0
            ));
        }
    }

    /// Walks the tree below `dir` until every file in `missing` was seen.
    fn search(&self, dir: &Node, missing: &mut HashMap<OriginKey, FileRecord>) -> Result<()> {
        let mut names = Vec::new();
        self.namespace.open_dir(dir)?.read(0, &mut |entry| {
            if entry.name != "." && entry.name != ".." {
                names.push((entry.name, entry.kind));
            }
            true
        })?;
        for (name, kind) in names {
            if missing.is_empty() {
                break;
            }
            if ![libc::DT_DIR, libc::DT_REG, libc::DT_UNKNOWN].contains(&kind) {
                continue;
            }
            let Ok((node, stat)) = self.namespace.lookup(dir, &name) else { continue };
            if stat.raw.st_mode & libc::S_IFMT == libc::S_IFDIR {
                self.search(&node, missing)?;
            } else if let Some(record) = missing.remove(&origin_key(&stat)) {
                let path = self.namespace.path_of(&node);
                self.store.dmt.rename(&record.path, &path)?;
                let file = self.file_of(&node)?;
                self.keep_for_flush(&file, record.id);
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
