//! Files that are open or known to the cache: found by name or record, given an identity, forgotten again.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use parking_lot::RwLock;

use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::external_changes::ExternalChanges;
use crate::origin_access::OriginAccess;
use crate::own_changes::OwnChanges;
use halocline_api::globs::Globs;
use halocline_meta::{FileId, FileRecord, OriginKey, Removal, Stamp};
use halocline_os::error::{Error, Result};
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::Vnode;

/// The attributes of an origin file, and what is needed to know whether we may have changed it since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OriginAttributes {
    unwatched: u64,
    key: OriginKey,
    raw: libc::stat64,
}

/// Holds the one [`CachedFile`] of each file, and finds it.
#[derive(Debug, Builder)]
pub(crate) struct KnownFiles {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    flush_handles: Arc<FlushHandles>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    /// The pin and exclude globs.
    pub(crate) globs: RwLock<Globs>,
}

impl KnownFiles {
    /// The one [`CachedFile`] of `vnode`. Mappings beyond the file's end (from a crash between a truncate and its
    /// records) are dropped here, before they can be read. The caller holds no lock of a file.
    pub(crate) fn file_of(&self, vnode: &Vnode) -> Result<Arc<CachedFile>> {
        self.file_and_stat(vnode).map(|(file, _)| file)
    }

    /// The same, with the origin's attributes as just read.
    pub(crate) fn file_and_stat(&self, vnode: &Vnode) -> Result<(Arc<CachedFile>, libc::stat64)> {
        loop {
            if let Some(found) = self.file_with(vnode, self.origin_attributes(vnode)?)? {
                return Ok(found);
            }
        }
    }

    /// Reads the attributes of `vnode` before its [`CachedFile`] is looked up.
    pub(crate) fn origin_attributes(&self, vnode: &Vnode) -> Result<OriginAttributes> {
        let unwatched = self.files.unwatched();
        let (key, raw) = self.origin.key_of(vnode)?;
        Ok(OriginAttributes { unwatched, key, raw })
    }

    /// The one [`CachedFile`] of a vnode that was seen just now; `None` if it became another file.
    ///
    /// A new one starts from what was seen. If we changed the file since then and released it again, that is out of
    /// date: the size would be wrong (I1), and our own change would later be taken for one by others (I9).
    pub(crate) fn file_with(
        &self,
        vnode: &Vnode,
        OriginAttributes { unwatched, key, mut raw }: OriginAttributes,
    ) -> Result<Option<(Arc<CachedFile>, libc::stat64)>> {
        let mut known = true;
        let found = self.files.get_or_insert(key, || {
            known = false;
            if self.files.unwatched() != unwatched {
                let now = self.origin.key_of(vnode)?;
                if now.0 != key {
                    return Err(None);
                }
                raw = now.1;
            }
            let id = self.store.dmt.files().find(key);
            #[expect(clippy::cast_sign_loss, reason = "a regular file's size is not negative")]
            let seen = (raw.st_size as u64, Stamp::of_stat(&raw));
            let file = CachedFile::new(key, id, seen, vnode.clone(), self.files.peer_copies());
            if let Some(id) = id {
                self.external.check(&file, id, &raw)?;
            }
            Ok::<_, Option<Error>>(file)
        });
        let file = match found {
            Ok(file) => file,
            Err(None) => return Ok(None),
            Err(Some(error)) => return Err(error),
        };
        if known {
            self.external.check_again(&file, &raw)?;
        }
        if !file.is_open() {
            self.apply_globs(&file);
        }
        Ok(Some((file, raw)))
    }

    /// The file's identity in the cache, assigned now if it has none.
    pub(crate) fn id_of(&self, file: &Arc<CachedFile>) -> Result<FileId> {
        if let Some(id) = file.id() {
            return Ok(id);
        }
        let vnode = file.vnode.read().clone();
        let path = self.namespace.path_of(&vnode);
        let mount = self.origin.mount_of(&vnode);
        let mut last_seen = file.last_seen.lock();
        if let Some(id) = file.id() {
            return Ok(id);
        }
        let gone = |file: &CachedFile| {
            if file.unlinked.load(Ordering::SeqCst) { Removal::Done } else { Removal::None }
        };
        let id = self.store.dmt.files().register_on(mount, file.key, (&path, gone(file)))?;
        self.files.identified(id, file);
        // Its last name may have gone meanwhile: who removes it looks for an identity afterwards.
        if gone(file) == Removal::Done {
            self.store.dmt.files().note_removal(id, Removal::Done)?;
        }
        // The new record says that we are changing the file, which must be corrected even if there is no write.
        last_seen.set_recorded(false);
        self.own.note_unrecorded(&mut last_seen, id);
        drop(last_seen);
        self.apply_globs(file);
        Ok(id)
    }

    /// Applies the pin and exclude globs to a file.
    pub(crate) fn apply_globs(&self, file: &CachedFile) {
        let globs = self.globs.read();
        if globs.is_empty() {
            return;
        }
        let path = self.namespace.path_of(&file.vnode.read());
        file.excluded.store(globs.excludes(&path), Ordering::Relaxed);
        if let Some(id) = file.id() {
            self.store.dmt.evictor().pin(id, globs.pins(&path));
        }
    }

    /// A descriptor for flushing the file, kept until its last dirty byte is on the origin.
    pub(crate) fn flush_handle_of(&self, file: &CachedFile) -> Result<Arc<OriginFile>> {
        let mut flush_handle = file.flush_handle.lock();
        if let Some(open) = flush_handle.as_ref() {
            return Ok(Arc::clone(&open.origin));
        }
        let vnode = file.vnode.read().clone();
        let open = Arc::new(self.origin.open(&vnode, libc::O_RDWR)?);
        *flush_handle = Some(self.flush_handles.keep(Arc::clone(&open)));
        Ok(open)
    }

    /// Replaces the descriptor for flushing after a failed sync, whatever the file's name is by now.
    pub(crate) fn renew_flush_handle(&self, file: &CachedFile) {
        let mut flush_handle = file.flush_handle.lock();
        let Some(open) = flush_handle.take() else { return };
        if let Ok(again) =
            self.origin.data.open_data(open.origin.namespace_file().as_fd(), libc::O_RDWR)
        {
            *flush_handle = Some(self.flush_handles.keep(Arc::new(again)));
        }
    }

    /// Whether the file may become dirty: it can be flushed, and so can all dirty files. It then has a descriptor that
    /// leads to it whatever name others give it.
    pub(crate) fn may_become_dirty(&self, file: &CachedFile) -> bool {
        let refused = self.flush_handles.are_all_kept() && file.flush_handle.lock().is_none();
        !refused && self.flush_handle_of(file).is_ok()
    }

    /// The file of a record, reached by its path; `None` if the path now names another file or nothing at all. An
    /// error means that this is unknown, or says why the file cannot be used.
    pub(crate) fn file_by_id(&self, id: FileId) -> Result<Option<Arc<CachedFile>>> {
        if let Some(file) = self.files.by_id(id) {
            return Ok(Some(file));
        }
        let Some(record) = self.store.dmt.files().record(id) else { return Ok(None) };
        self.origin.vnode_of(&record)?.map(|vnode| self.file_of(&vnode)).transpose()
    }

    /// A descriptor that can read the origin's file.
    pub(crate) fn reader_of(&self, file: &CachedFile) -> Result<Arc<OriginFile>> {
        if let Some(open) = file.flush_handle.lock().as_ref() {
            return Ok(Arc::clone(&open.origin));
        }
        let vnode = file.vnode.read().clone();
        Ok(Arc::new(self.origin.open(&vnode, libc::O_RDONLY)?))
    }

    /// Syncs the origin's bytes of a file, whoever wrote them.
    ///
    /// # Errors
    /// If they could not be synced; none if the file is gone for everybody.
    pub(crate) fn sync(&self, file: &CachedFile) -> Result<()> {
        let open = || -> Result<_> {
            // Opens no new descriptor for flushing, which would be kept: files that are given up are often closed.
            self.reader_of(file).or_else(|_| {
                let vnode = file.vnode.read().clone();
                Ok(Arc::new(self.origin.open(&vnode, libc::O_WRONLY)?))
            })
        };
        match open() {
            Ok(origin) => Ok(origin.sync(true)?),
            Err(error) => match error.errno() {
                libc::ENOENT | libc::ESTALE => Ok(()),
                // Its mode was changed after programs opened it, or one holds a lease of it, and their writes must be
                // synced, too: other nodes wait for this.
                libc::EACCES | libc::EPERM | libc::EAGAIN => self.origin.sync_everything(),
                _ => Err(error),
            },
        }
    }

    /// The record of a dirty file that was not found; `None` if it is no longer dirty.
    pub(crate) fn record_of_missing(&self, id: FileId) -> Option<FileRecord> {
        let record = self.store.dmt.files().record(id)?;
        (!self.store.dmt.index().dirty(id, WHOLE, 1).is_empty()).then_some(record)
    }

    /// Drops a file from memory if the store has all that must be remembered of it.
    pub(crate) fn forget_idle(&self, file: &Arc<CachedFile>) {
        self.files.remove_if(file, |file| {
            !file.is_open()
                && !file.read_below.load(Ordering::Acquire)
                && file.flush_handle.lock().is_none()
                && file.held_mtime_ns().is_none()
                && (file.unlinked.load(Ordering::Acquire) || file.hint.get().is_none())
        });
        if let Some(id) = file.id().filter(|id| self.store.dmt.files().is_empty(*id)) {
            self.store.note_emptied(id);
        }
    }

    /// The file of a vnode if it is known to the cache or open.
    pub(crate) fn file_of_known(&self, vnode: &Vnode) -> Result<Option<Arc<CachedFile>>> {
        let (key, _) = self.origin.key_of(vnode)?;
        match self.files.by_key(key) {
            None if self.store.dmt.files().find(key).is_some() => self.file_of(vnode).map(Some),
            known => Ok(known),
        }
    }
}
