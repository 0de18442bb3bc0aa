//! Files coming and going: found by their records, settled when closed, forgotten when gone.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::parts::{Parts, origin_key};
use crate::error::Result;
use crate::extent::file::{CachedFile, WHOLE};
use crate::meta::{FileId, OriginKey, Stamp};
use crate::namespace::{Node, Removed};
use crate::volume::origin::OriginFile;

impl Parts {
    /// The file behind a record, reached by its path; `None` when the path names another file now
    /// or nothing at all.
    pub(crate) fn file_by_id(&self, id: FileId) -> Result<Option<Arc<CachedFile>>> {
        if let Some(file) = self.files.by_id(id) {
            return Ok(Some(file));
        }
        let Some(record) = self.store.dmt.file(id) else { return Ok(None) };
        let Some(node) = self.node_at(&record.path) else { return Ok(None) };
        if self.key_of(&node)?.0 != record.key {
            return Ok(None);
        }
        self.file_of(&node).map(Some)
    }

    /// The node at a path below the origin.
    pub(crate) fn node_at(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(self.namespace.root(), |node, name: &OsStr| {
            self.namespace.lookup(&node, name).ok().map(|(node, _)| node)
        })
    }

    /// A descriptor that can read the origin's file.
    pub(crate) fn reader_of(&self, file: &CachedFile) -> Result<Arc<OriginFile>> {
        if let Some(open) = file.mover.lock().as_ref() {
            return Ok(Arc::clone(open));
        }
        let node = file.node.read().clone();
        Ok(Arc::new(self.open_origin(&node, libc::O_RDONLY)?))
    }

    /// Our own change of names or attributes moved the file's ctime: the record follows, so that
    /// it is not taken for somebody else's change (I9).
    pub(crate) fn restamp(&self, node: &Node) -> Result<()> {
        let stat = self.namespace.stat(node)?;
        if stat.kind() != libc::S_IFREG {
            return Ok(());
        }
        let Some(id) = self.store.dmt.find(origin_key(&stat)) else { return Ok(()) };
        let at_rest = self.store.dmt.file(id).is_some_and(|file| file.stamp != Stamp::Writing);
        if at_rest {
            let stamp = super::parts::stamp_of(&stat.raw);
            self.advisory(self.store.dmt.stamp(id, stamp))?;
        }
        Ok(())
    }

    /// Forgets a file whose last name and last handle are gone, with everything cached of it.
    pub(crate) fn forget_file(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        debug_assert!(file.unlinked.load(Ordering::Acquire) && !file.is_open());
        // Whoever moves bytes of it finishes first (I2).
        let _range = file.range.exclusive(WHOLE);
        self.let_go(id, WHOLE)?;
        self.advisory(self.store.dmt.forget(id))?;
        self.forget_data(file)
    }

    /// Removes what a striped origin keeps of an unlinked file beside its name.
    pub(crate) fn forget_data(&self, file: &Arc<CachedFile>) -> Result<()> {
        let node = file.node.read().clone();
        if self.origin.is_striped()
            && let Ok(descriptor) = self.namespace.descriptor(&node)
        {
            self.origin.remove_data(&*descriptor)?;
        }
        *file.mover.lock() = None;
        file.let_mtime_go(None);
        Ok(())
    }

    /// As [`Parts::forget_file`] for a file that nothing in memory knows.
    pub(crate) fn forget_key(&self, key: OriginKey, removed: &Removed) -> Result<()> {
        if let Some(id) = self.store.dmt.find(key) {
            self.let_go(id, WHOLE)?;
            self.advisory(self.store.dmt.forget(id))?;
        }
        if self.origin.is_striped()
            && let Some(node) = &removed.node
            && let Ok(descriptor) = self.namespace.descriptor(node)
        {
            self.origin.remove_data(&*descriptor)?;
        }
        Ok(())
    }

    /// Notes something that a person should know; `status` shows it.
    pub(crate) fn note(&self, what: String) {
        let mut notes = self.notes.lock();
        if notes.last() == Some(&what) {
            return;
        }
        tracing::warn!("{what}");
        if notes.len() >= super::parts::NOTES_MAX {
            notes.remove(0);
        }
        notes.push(what);
    }
}
