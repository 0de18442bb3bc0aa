//! The files whose tokens this node has, wants or had, and what is done with those of all files.

use std::sync::Arc;
use std::time::Instant;

use halocline_cache::coherence::SharedFile;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::FxHashMap;

use super::file::File;
use crate::store::{Result, Roll, StoreError};

/// With more known files than this, those without tokens are forgotten.
const FILES: usize = 1024;

/// The files that are known.
#[derive(Default)]
pub(super) struct KnownFiles {
    by_id: Mutex<FxHashMap<SharedFile, Arc<File>>>,
    /// Held shared by changes of tokens, and exclusively while the node asserts what it holds.
    changes: RwLock<()>,
}

impl KnownFiles {
    /// The file, which `make` makes if it is not known; its entry stays while any tokens of it are held. `note_number` is
    /// told how many there are.
    pub(super) fn get_or_make(
        &self,
        id: SharedFile,
        make: impl FnOnce() -> File,
        note_number: impl FnOnce(usize),
    ) -> Arc<File> {
        let files = &mut *self.by_id.lock();
        if files.len() >= FILES && files.len().is_power_of_two() {
            files.retain(|_, known| Arc::strong_count(known) > 1 || !known.is_idle());
        }
        note_number(files.len());
        Arc::clone(files.entry(id).or_insert_with(|| Arc::new(make())))
    }

    /// The file, if it is known.
    pub(super) fn get(&self, id: SharedFile) -> Option<Arc<File>> {
        self.by_id.lock().get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<File>> {
        self.by_id.lock().values().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.lock().len()
    }

    /// Forgets a file of which nothing is held, unless the engine still uses it.
    pub(super) fn forget(&self, file: Arc<File>) {
        let id = file.id;
        drop(file);
        let mut files = self.by_id.lock();
        let is_unused = |known: &Arc<File>| Arc::strong_count(known) == 1 && known.is_idle();
        if files.get(&id).is_some_and(is_unused) {
            files.remove(&id);
        }
    }

    /// Forgets all files, each of which refers to the agent.
    pub(super) fn clear(&self) {
        self.by_id.lock().clear();
    }

    /// Keeps the node from asserting what it holds, while tokens change.
    pub(super) fn begin_change(&self) -> RwLockReadGuard<'_, ()> {
        self.changes.read()
    }

    /// The same, but waits only until `deadline`.
    pub(super) fn try_begin_change(&self, deadline: Instant) -> Option<RwLockReadGuard<'_, ()>> {
        self.changes.try_read_until(deadline)
    }

    /// Waits for changes of tokens in progress, and keeps others from beginning.
    pub(super) fn stop_changes(&self) -> RwLockWriteGuard<'_, ()> {
        self.changes.write()
    }

    /// Asserts file by file what the node holds; `false` if the epoch changed again.
    pub(super) fn assert(&self, roll: &Roll) -> Result<bool> {
        self.all().iter().try_fold(true, |told, file| Ok(told && file.assert(roll)?))
    }

    /// Drops whatever is not held exclusively: the lease lapsed, so others may have changed it.
    pub(super) fn drop_what_is_unsure(&self) -> Result<()> {
        let files = self.all();
        // A file that cannot be dropped yet must not hold up the others.
        let kept: Vec<u64> = files
            .iter()
            .filter(|file| !file.drop_what_is_unsure())
            .map(|file| file.id.inode)
            .collect();
        match kept.first() {
            None => Ok(()),
            Some(inode) => {
                let more = match kept.len() {
                    1 => String::new(),
                    files => format!(" and {} more", files - 1),
                };
                let what = format!("inode {inode}{more} cannot be dropped from the cache yet");
                Err(StoreError::NoAnswer(what))
            }
        }
    }
}
