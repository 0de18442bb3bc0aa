//! Finds the one [`CachedFile`] of a file by its identity on the origin or in the cache.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::extent::file::CachedFile;
use crate::peer_copies::{PeerCopies, Remembered};
use halocline_meta::{FileId, OriginKey};

/// The files that are open or have something that the engine must remember.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    maps: RwLock<Maps>,
    unwatched: AtomicU64,
    /// How much is remembered of other nodes' caches, for all files together.
    remembered: Arc<Remembered>,
}

#[derive(Debug, Default)]
struct Maps {
    by_key: HashMap<OriginKey, Arc<CachedFile>>,
    by_id: HashMap<FileId, Arc<CachedFile>>,
}

impl FileTable {
    /// The (still empty) peer copies of a file that is made for this table.
    pub(crate) fn peer_copies(&self) -> PeerCopies {
        PeerCopies::among(Arc::clone(&self.remembered))
    }

    /// The file with this origin identity.
    pub(crate) fn by_key(&self, key: OriginKey) -> Option<Arc<CachedFile>> {
        self.maps.read().by_key.get(&key).cloned()
    }

    /// The file with this cache identity.
    pub(crate) fn by_id(&self, id: FileId) -> Option<Arc<CachedFile>> {
        self.maps.read().by_id.get(&id).cloned()
    }

    /// The file with this origin identity, made by `make` if it is not there. Only one is ever made, because its locks
    /// keep requests apart.
    pub(crate) fn get_or_insert<E>(
        &self,
        key: OriginKey,
        make: impl FnOnce() -> Result<CachedFile, E>,
    ) -> Result<Arc<CachedFile>, E> {
        if let Some(file) = self.by_key(key) {
            return Ok(file);
        }
        let mut maps = self.maps.write();
        if let Some(file) = maps.by_key.get(&key) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(make()?);
        maps.by_key.insert(key, Arc::clone(&file));
        if let Some(id) = file.id() {
            maps.by_id.insert(id, Arc::clone(&file));
        }
        Ok(file)
    }

    /// A counter of events after which attributes read before a file entered the table may be out of date: a file left
    /// the table, or one that is not in it was changed by us. Attributes are current if the counter was the same before
    /// they were read as it is when the file enters.
    pub(crate) fn unwatched(&self) -> u64 {
        self.unwatched.load(Ordering::SeqCst)
    }

    /// Makes a file findable by the identity it was just given.
    pub(crate) fn identified(&self, id: FileId, file: &Arc<CachedFile>) {
        file.set_id(id);
        self.maps.write().by_id.insert(id, Arc::clone(file));
    }

    /// Drops a file that has no other holders and that `idle` declares idle; its records stay in the store.
    pub(crate) fn remove_if(&self, file: &Arc<CachedFile>, idle: impl FnOnce(&CachedFile) -> bool) {
        let mut maps = self.maps.write();
        let Some(held) = maps.by_key.get(&file.key) else { return };
        // References of the table and of the caller: one by key, one by id, one here.
        let own = 2 + usize::from(file.id().is_some_and(|id| maps.by_id.contains_key(&id)));
        if Arc::ptr_eq(held, file) && Arc::strong_count(file) <= own && idle(file) {
            maps.by_key.remove(&file.key);
            if let Some(id) = file.id() {
                maps.by_id.remove(&id);
            }
            self.unwatched.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Keeps the table unchanged until the result is dropped.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        Frozen { maps: self.maps.read_recursive(), unwatched: &self.unwatched }
    }

    /// All files.
    pub(crate) fn all(&self) -> Vec<Arc<CachedFile>> {
        self.maps.read().by_key.values().cloned().collect()
    }
}

/// The table while no file enters or leaves it.
pub(crate) struct Frozen<'a> {
    maps: RwLockReadGuard<'a, Maps>,
    unwatched: &'a AtomicU64,
}

impl Frozen<'_> {
    /// A file that is not in the table was changed by us; see [`FileTable::unwatched`].
    pub(crate) fn note_unwatched(&self) {
        self.unwatched.fetch_add(1, Ordering::SeqCst);
    }

    /// The file with this origin identity.
    pub(crate) fn by_key(&self, key: OriginKey) -> Option<&Arc<CachedFile>> {
        self.maps.by_key.get(&key)
    }

    /// The file with this cache identity.
    pub(crate) fn by_id(&self, id: FileId) -> Option<&Arc<CachedFile>> {
        self.maps.by_id.get(&id)
    }
}
