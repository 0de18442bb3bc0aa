//! The files that the cache knows: by id, by identity on the origin, by path.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::FxHashMap;

use super::block_accounting::Blocks;
use super::rangemap::RangeMap;
use super::write_intent::WriteIntents;
use super::{FileId, FileRecord, OriginKey, Removal};

/// A file's extents and blocks, changed together.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// The extents.
    pub(crate) extents: RangeMap,
    /// Stretches of them that are recorded as one extent.
    pub(crate) intents: WriteIntents,
    /// Reservations and waiting blocks.
    pub(crate) blocks: Blocks,
}

/// One file. Locks are taken in the order of the fields; of several files, by id.
#[derive(Debug)]
pub(crate) struct FileState {
    /// Identity in the cache.
    pub(crate) id: FileId,
    /// Held from reading the extents until a change of them is in the store and in memory.
    pub(crate) change: Mutex<()>,
    /// What is mapped; changed by a [`MappedEdit`] alone.
    mapped: RwLock<Mapped>,
    /// The record.
    pub(crate) record: Mutex<FileRecord>,
    /// How [`Busy`] lists this file, so that most changes need not access that.
    listed: Mutex<Listed>,
    /// Whether it is kept from eviction.
    pub(crate) pinned: AtomicBool,
    /// Whether it was forgotten: only blocks are left, which wait to be discarded.
    pub(crate) forgotten: AtomicBool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Listed {
    oldest_dirty_ms: Option<u64>,
    waits: bool,
}

impl FileState {
    /// What is mapped.
    pub(crate) fn mapped(&self) -> RwLockReadGuard<'_, Mapped> {
        self.mapped.read()
    }

    /// The same, if nobody changes it now.
    pub(crate) fn try_mapped(&self) -> Option<RwLockReadGuard<'_, Mapped>> {
        self.mapped.try_read()
    }

    /// Begins to change what is mapped: nobody else reads or changes it until the result is dropped.
    pub(crate) fn edit<'f>(&'f self, busy: &'f Busy) -> MappedEdit<'f> {
        MappedEdit { busy, state: self, mapped: self.mapped.write() }
    }

    /// Takes extents that were recorded, before any index has the file.
    pub(crate) fn load(&self, extents: RangeMap) {
        let mut mapped = self.mapped.write();
        assert!(mapped.extents.is_empty(), "the extents of a file are loaded once");
        mapped.extents = extents;
    }
}

/// A change of what is mapped of a file. When it ends, the file is listed by what it has then. Only who has the lists can
/// make one: the index of all extents.
pub(crate) struct MappedEdit<'f> {
    busy: &'f Busy,
    state: &'f FileState,
    mapped: RwLockWriteGuard<'f, Mapped>,
}

impl Deref for MappedEdit<'_> {
    type Target = Mapped;

    fn deref(&self) -> &Mapped {
        &self.mapped
    }
}

impl DerefMut for MappedEdit<'_> {
    fn deref_mut(&mut self) -> &mut Mapped {
        &mut self.mapped
    }
}

impl Drop for MappedEdit<'_> {
    fn drop(&mut self) {
        self.busy.update(self.state, &self.mapped);
    }
}

/// The files that need the rebuilder's work, found without scanning all the others.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    dirty: Mutex<BTreeMap<FileId, u64>>,
    waiting: Mutex<BTreeSet<FileId>>,
}

impl Busy {
    /// Lists a file according to its current state.
    fn update(&self, state: &FileState, mapped: &Mapped) {
        let now = Listed {
            oldest_dirty_ms: mapped.extents.oldest_dirty_ms(),
            waits: mapped.blocks.has_waiting(),
        };
        let before = std::mem::replace(&mut *state.listed.lock(), now);
        if before.oldest_dirty_ms != now.oldest_dirty_ms {
            let mut dirty = self.dirty.lock();
            match now.oldest_dirty_ms {
                Some(oldest) => dirty.insert(state.id, oldest),
                None => dirty.remove(&state.id),
            };
        }
        if before.waits != now.waits {
            let mut waiting = self.waiting.lock();
            if now.waits {
                waiting.insert(state.id)
            } else {
                waiting.remove(&state.id)
            };
        }
    }

    /// Files with dirty extents, with the time of their oldest in milliseconds since the epoch.
    pub(crate) fn dirty(&self) -> Vec<(FileId, u64)> {
        self.dirty.lock().iter().map(|(&file, &oldest)| (file, oldest)).collect()
    }

    /// Files with blocks that wait to be discarded.
    pub(crate) fn waiting(&self) -> Vec<FileId> {
        self.waiting.lock().iter().copied().collect()
    }
}

/// All files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    by_id: FxHashMap<FileId, Arc<FileState>>,
    by_key: HashMap<OriginKey, FileId>,
    by_path: BTreeSet<(PathBuf, FileId)>,
    /// The id of the next file; never reused.
    pub(crate) next: u64,
}

impl Files {
    /// One file, forgotten or not.
    pub(crate) fn get(&self, file: FileId) -> Option<&Arc<FileState>> {
        self.by_id.get(&file)
    }

    /// The file with an identity on the origin.
    pub(crate) fn find(&self, key: OriginKey) -> Option<FileId> {
        self.by_key.get(&key).copied()
    }

    /// All files, forgotten or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<FileState>> {
        self.by_id.values()
    }

    /// Adds a file. Any other file under its path is assumed to be gone, unless this one has lost it.
    pub(crate) fn add(&mut self, record: FileRecord) -> Arc<FileState> {
        self.next = self.next.max(record.id.0 + 1);
        self.by_key.insert(record.key, record.id);
        if record.removal != Removal::Done {
            self.unlist(&record.path, |path, at| path == at);
            self.by_path.insert((record.path.clone(), record.id));
        }
        let state = Arc::new(FileState {
            id: record.id,
            change: Mutex::default(),
            mapped: RwLock::default(),
            record: Mutex::new(record),
            listed: Mutex::default(),
            pinned: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
        });
        self.by_id.insert(state.id, Arc::clone(&state));
        state
    }

    /// Removes a file from the indexes; it can still be reached by id.
    pub(crate) fn unregister(&mut self, record: &FileRecord) {
        if self.by_key.get(&record.key) == Some(&record.id) {
            self.by_key.remove(&record.key);
        }
        self.unlist_one(record);
    }

    /// No rename finds this file any more.
    pub(crate) fn unlist_one(&mut self, record: &FileRecord) {
        self.by_path.remove(&(record.path.clone(), record.id));
    }

    /// Removes a file completely.
    pub(crate) fn remove(&mut self, file: FileId) {
        self.by_id.remove(&file);
    }

    /// The files at and below `from`, with the paths they get when `from` becomes `to`.
    pub(crate) fn renamed(&self, from: &Path, to: &Path) -> Vec<(Arc<FileState>, PathBuf)> {
        self.below(from)
            .map(|(path, id)| {
                let rest = path.strip_prefix(from).expect("it lies below");
                let path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
                (Arc::clone(&self.by_id[id]), path)
            })
            .collect()
    }

    /// For the files at and below `to` that a rename replaces: their records stay, but no later rename will find them.
    pub(crate) fn unlist_below(&mut self, to: &Path) {
        self.unlist(to, |path, to| path.starts_with(to));
    }

    /// Gives listed files their new paths, in the list and in their records.
    pub(crate) fn relist(&mut self, moved: &[(Arc<FileState>, PathBuf)]) {
        for (state, path) in moved {
            let before = std::mem::replace(&mut state.record.lock().path, path.clone());
            self.by_path.remove(&(before, state.id));
        }
        for (state, path) in moved {
            self.by_path.insert((path.clone(), state.id));
        }
    }

    fn below(&self, at: &Path) -> impl Iterator<Item = &(PathBuf, FileId)> {
        // Paths are sorted by component, so everything below a directory follows it.
        let first = (at.to_owned(), FileId(0));
        let at = at.to_owned();
        self.by_path.range(first..).take_while(move |(path, _)| path.starts_with(&at))
    }

    fn unlist(&mut self, at: &Path, hit: impl Fn(&Path, &Path) -> bool) {
        let gone: Vec<_> = self.below(at).filter(|(path, _)| hit(path, at)).cloned().collect();
        for listed in gone {
            self.by_path.remove(&listed);
        }
    }
}
