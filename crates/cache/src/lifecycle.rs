//! The life of files: found by their records, settled when closed, forgotten when gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;

use super::path_lookup::origin_key;
use crate::degraded_mode::DegradedMode;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::external_changes::ExternalChanges;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::origin_access::OriginAccess;
use crate::own_changes::OwnChanges;
use crate::page_cache_passthrough::PageCachePassthrough;
use halocline_meta::{FileId, OriginKey, Stamp};
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::{Removed, Vnode};

/// Follows changes of names, and forgets files that are gone.
#[derive(Debug, Builder)]
pub(crate) struct Lifecycle {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    mappings: Arc<Mappings>,
    degraded_mode: Arc<DegradedMode>,
    page_cache_passthrough: Arc<PageCachePassthrough>,
}

impl Lifecycle {
    /// Our own change of names or attributes advanced the file's ctime: updates the stamp, so that this is not taken
    /// for a change by others (I9). The caller holds a `NameChange`.
    pub(crate) fn restamp(&self, vnode: &Vnode) -> Result<()> {
        let stat = self.namespace.stat(vnode)?;
        if stat.kind() != libc::S_IFREG {
            return Ok(());
        }
        vnode.note_seen(&stat.raw);
        let key = origin_key(&stat);
        if let Some(file) = self.files.by_key(key) {
            return self.follow_attributes(&file, vnode);
        }
        // So that the file is neither forgotten, nor opened and examined meanwhile.
        let forgetting = self.store.forgetting.lock();
        let Some(id) = self.store.dmt.files().find(key) else { return Ok(()) };
        let frozen = self.files.freeze();
        if let Some(file) = frozen.by_key(key).cloned() {
            drop((frozen, forgetting));
            return self.follow_attributes(&file, vnode);
        }
        let stamp = Stamp::of_stat(&self.namespace.stat(vnode)?.raw);
        frozen.note_unwatched();
        match self.store.dmt.files().record(id) {
            Some(record) if record.stamp.same_bytes(stamp) => self.own.record(id, stamp),
            _ => Ok(()),
        }
    }

    fn follow_attributes(&self, file: &CachedFile, vnode: &Vnode) -> Result<()> {
        if !file.is_open() {
            // Otherwise its last close does this, or the rebuilder.
            self.own.rest(file)?;
        }
        let mut last_seen = file.last_seen.lock();
        let stamp = Stamp::of_stat(&self.namespace.stat(vnode)?.raw);
        // Any other difference is not ours.
        if last_seen.is_hidden()
            || last_seen.is_external()
            || last_seen.stamp() == stamp
            || !last_seen.stamp().same_bytes(stamp)
        {
            return Ok(());
        }
        last_seen.follow_attributes(stamp);
        match file
            .id()
            .filter(|_| last_seen.is_recorded() && !file.forgotten.load(Ordering::Acquire))
        {
            Some(id) => self.own.record(id, stamp),
            None => Ok(()),
        }
    }

    /// Forgets a file whose last name and last handle are gone, and all of its cached bytes.
    pub(crate) fn forget_file(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        debug_assert!(file.unlinked.load(Ordering::Acquire));
        // Transfers of its bytes finish first (I2).
        let _range = file.range.exclusive(WHOLE);
        // The last close and the removal of the last name may race here, and the file may have been opened just
        // before its name was removed: closing that handle calls this again.
        if file.is_open() {
            return Ok(());
        }
        {
            // From here on there is no record to stamp.
            let _look = file.last_seen.lock();
            if file.forgotten.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
        }
        if let Err(error) = self.mappings.unmap(id, WHOLE) {
            file.forgotten.store(false, Ordering::Release);
            return Err(error);
        }
        self.mappings.advisory(self.store.dmt.files().forget(id))?;
        self.store.note_emptied(id);
        self.forget_data(file);
        Ok(())
    }

    /// Removes the data that a striped origin keeps of an unlinked file apart from its name.
    pub(crate) fn forget_data(&self, file: &Arc<CachedFile>) {
        let vnode = file.vnode.read().clone();
        if self.origin.data.is_striped()
            && let Ok(descriptor) = self.namespace.descriptor(&vnode)
        {
            self.origin.remove_data(&*descriptor);
        }
        *file.flush_handle.lock() = None;
        file.let_mtime_go(None);
    }

    /// As [`Lifecycle::forget_file`], for a file not in memory.
    pub(crate) fn forget_key(&self, key: OriginKey, removed: &Removed) -> Result<()> {
        let forgetting = self.store.forgetting.lock();
        if let Some(id) = self.store.dmt.files().find(key) {
            if let Err(error) = self.mappings.unmap(id, WHOLE) {
                if self.store.dmt.changes().usable().is_ok() {
                    return Err(error);
                }
                // Its bytes are no longer needed, and it must not hold up other files.
                self.degraded_mode.removed.lock().insert(id);
            }
            self.mappings.advisory(self.store.dmt.files().forget(id))?;
            self.store.note_emptied(id);
        }
        drop(forgetting);
        if self.origin.data.is_striped()
            && let Some(vnode) = &removed.vnode
            && let Ok(descriptor) = self.namespace.descriptor(vnode)
        {
            self.origin.remove_data(&*descriptor);
        }
        Ok(())
    }

    /// A program's `close` of a file that it could write, which waits for this: our changes of the origin's file end
    /// here, and it is examined. So whatever is changed behind the mount after the `close` is found (I9); the last handle
    /// is released at some later time.
    pub(crate) fn closing(&self, file: &Arc<CachedFile>, origin: &OriginFile) {
        let given = self.times.try_give_time(file);
        // Nothing fails here that the release, or the next flush, does not try and report again.
        let examined = given.and_then(|is_still| {
            if is_still { self.own.refresh_last_seen(file, Some(origin)) } else { Ok(()) }
        });
        if let Err(error) = examined {
            let path = self.namespace.path_of(&file.vnode.read());
            tracing::debug!("closing {}: {error}", path.display());
        }
    }

    /// The last handle of a file is being closed; `origin` is its descriptor.
    pub(crate) fn closed(&self, file: &Arc<CachedFile>, origin: &OriginFile) {
        let unlinked = file.unlinked.load(Ordering::SeqCst);
        let done = match file.id() {
            Some(id) if unlinked => {
                self.degraded_mode.retry_after_giving_up(|| self.forget_file(file, id))
            }
            Some(id) => self
                .times
                .settle(file, id)
                .and_then(|()| self.times.give_time(file))
                .and_then(|()| self.leave_alone(file)),
            None if unlinked => {
                self.forget_data(file);
                Ok(())
            }
            None => self.leave_alone(file),
        };
        if let Err(error) = done {
            tracing::warn!(
                "closing {}: {error}",
                self.namespace.path_of(&file.vnode.read()).display()
            );
        }
        self.page_cache_passthrough.closed(file, origin);
        self.known.forget_idle(file);
    }

    /// The file is no longer open: records its stamp, which the next open compares.
    fn leave_alone(&self, file: &CachedFile) -> Result<()> {
        if file.last_seen.lock().is_external() {
            return self.external.resolve(file);
        }
        self.own.rest(file)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::thread;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::Decorations;
    use crate::engine::ExtentEngine;
    use crate::handle::Handle;
    use halocline_api::config::Config;
    use halocline_api::control::Controlled;
    use halocline_vfs::{Caller, Engine, Maker};

    const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

    fn engine() -> (ExtentEngine, [TempDir; 2]) {
        let dirs = [(); 2].map(|()| TempDir::new().unwrap());
        (open(&dirs), dirs)
    }

    fn open(dirs: &[TempDir; 2]) -> ExtentEngine {
        let config = Config { policy: "always".to_owned(), rebuild: false, ..Config::default() };
        let around = Decorations { data_bytes: Some(1 << 20), ..Decorations::NONE };
        ExtentEngine::open_decorated(dirs[0].path(), dirs[1].path(), &config, around).unwrap()
    }

    fn create(engine: &ExtentEngine) -> (Vnode, Handle) {
        let (root, by) = (engine.root(), Maker { caller: ME, umask: 0 });
        let created = engine.create((&root, OsStr::new("file")), 0o644, libc::O_RDWR, by);
        let (vnode, _, handle) = created.unwrap();
        (vnode, handle)
    }

    /// Regression: a program wrote to the cache between the last look at a closed file and the record of it; after a
    /// kill the bytes conflicted with our own change of the origin's file.
    #[test]
    fn i4_a_file_that_is_written_while_it_is_settled_is_not_taken_for_one_at_rest() {
        let (engine, dirs) = engine();
        let (vnode, handle) = create(&engine);
        engine.write(&handle, 0, &[1; 4096], ME).unwrap();
        Controlled::flush(&engine, None, false, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
        let file = Arc::clone(&handle.file);
        thread::scope(|scope| {
            let settling = file.vnode.write();
            scope.spawn(|| drop(handle));
            while file.is_open() {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            let written = scope.spawn(|| {
                let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
                engine.write(&handle, 4096, &[2; 4096], ME).unwrap();
                handle
            });
            thread::sleep(Duration::from_millis(20));
            drop(settling);
            drop(written.join().unwrap());
        });
        assert_eq!(engine.base.store.dmt.index().usage().dirty, 4096);
        assert!(file.flush_handle.lock().is_some());
        drop((vnode, file));
        // As a kill would.
        drop(engine);
        let engine = open(&dirs);
        assert_eq!(engine.status().notes, Vec::<String>::new());
        assert_eq!(engine.base.store.dmt.index().usage().dirty, 4096);
    }

    /// Regression: a file was looked at, then grown, flushed and released by other threads, and only then found: it
    /// had the size from that look, and its next write conflicted with our own flush.
    #[test]
    fn i1_i9_a_file_that_is_changed_and_let_go_of_while_it_is_opened_is_found_as_it_is() {
        let (engine, _dirs) = engine();
        let flush = || {
            Controlled::flush(&engine, None, false, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap();
        };
        let (vnode, handle) = create(&engine);
        engine.write(&handle, 0, &[1; 4096], ME).unwrap();
        drop(handle);
        flush();
        let seen = engine.components.known.origin_attributes(&vnode).unwrap();
        let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
        engine.write(&handle, 0, &[2; 8192], ME).unwrap();
        let key = handle.file.key;
        drop(handle);
        flush();
        assert!(engine.base.files.by_key(key).is_none(), "let go of");

        let (file, _) = engine.components.known.file_with(&vnode, seen).unwrap().unwrap();
        assert_eq!(file.size(), 8192);
        let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
        engine.write(&handle, 0, &[3; 4096], ME).unwrap();
        drop((handle, file));
        flush();
        assert_eq!(engine.status().notes, Vec::<String>::new());
    }

    /// Regression: the second of the two failed because the cache did not know the file, and with it a program's
    /// unlink.
    #[test]
    fn a_removal_and_a_last_close_may_both_forget_a_file() {
        let (engine, _dirs) = engine();
        let (_, handle) = create(&engine);
        engine.write(&handle, 0, &[1; 4096], ME).unwrap();
        let file = Arc::clone(&handle.file);
        drop(handle);
        engine.unlink(&engine.root(), OsStr::new("file"), ME).unwrap();
        engine.components.lifecycle.forget_file(&file, file.id().unwrap()).unwrap();
    }
}
