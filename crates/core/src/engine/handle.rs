//! What a front end holds of an open regular file: how it is opened and closed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::open_file::OpenFile;
use crate::engine::parts::Parts;
use crate::engine::{Caller, OpenMode};
use crate::error::Result;
use crate::extent::file::CachedFile;
use crate::namespace::Node;
use crate::volume::origin::OriginFile;

/// An open regular file; dropping it closes it.
#[derive(Debug)]
pub struct Handle {
    open: OpenFile,
    parts: Arc<Parts>,
}

impl Deref for Handle {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.open
    }
}

impl Handle {
    /// Opens `node` with `open(2)`'s `flags`; `O_TRUNC` must have been dealt with.
    pub(crate) fn open(
        parts: &Arc<Parts>,
        node: &Node,
        flags: i32,
        caller: Caller,
    ) -> Result<Self> {
        // The engine writes at offsets; O_APPEND below would send them elsewhere. The node is
        // reopened through /proc, a link that O_NOFOLLOW would refuse.
        let never = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_TRUNC;
        let below = flags & !(never | libc::O_APPEND | libc::O_DIRECT);
        let origin = parts.origin.open(node, below)?;
        Self::over(parts, node, origin, flags, caller)
    }

    /// A handle on a file that was just created and opened as `made`.
    pub(crate) fn created(
        parts: &Arc<Parts>,
        node: &Node,
        made: std::fs::File,
        flags: i32,
        caller: Caller,
    ) -> Result<Self> {
        // The mode of a new file may forbid its owner to open it again; the kernel opened it
        // once, with the access that was asked for, and that is what counts.
        let origin = parts.origin.data.adopt_data(made)?;
        Self::over(parts, node, origin, flags, caller)
    }

    fn over(
        parts: &Arc<Parts>,
        node: &Node,
        origin: OriginFile,
        flags: i32,
        caller: Caller,
    ) -> Result<Self> {
        let (file, raw) = parts.file_and_stat(node)?;
        // The kernel's pages are of what the file was. While we change it, how it looks says nothing.
        let keep_cache = file.look.lock().is_hidden() || node.note_look(&raw);
        let pin = parts.namespace.pin(node)?;
        let may_flush = flags & libc::O_ACCMODE != libc::O_RDONLY;
        file.opens.fetch_add(1, Ordering::AcqRel);
        file.writers.fetch_add(u32::from(may_flush), Ordering::AcqRel);
        let hinted = parts.hints.on_open(&parts.namespace.path_of(node), caller, &file);
        let direct = parts.settings.config.direct || flags & libc::O_DIRECT != 0 || hinted;
        let append = flags & libc::O_APPEND != 0;
        let mode = OpenMode { direct, keep_cache };
        let open = OpenFile::new(file, origin, pin, (append, may_flush), mode);
        let handle = Self { open, parts: Arc::clone(parts) };
        parts.opened_warm(&handle)?;
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.file.writers.fetch_sub(u32::from(self.may_flush), Ordering::AcqRel);
        // One order with the removal of the last name: one of the two sees the other.
        if self.file.opens.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.parts.closed(&self.file, &self.origin);
        }
    }
}

impl Parts {
    /// The last handle of a file goes; `origin` is its descriptor.
    fn closed(&self, file: &Arc<CachedFile>, origin: &OriginFile) {
        let unlinked = file.unlinked.load(Ordering::SeqCst);
        let done = match file.id() {
            Some(id) if unlinked => self.relieved(|| self.forget_file(file, id)),
            Some(id) => self
                .settle(file, id)
                .and_then(|()| self.give_time(file))
                .and_then(|()| self.leave_alone(file)),
            None if unlinked => self.forget_data(file),
            None => self.leave_alone(file),
        };
        if let Err(error) = done {
            tracing::warn!(
                "closing {}: {error}",
                self.namespace.path_of(&file.node.read()).display()
            );
        }
        self.closed_warm(file, origin);
        self.forget_idle(file);
    }

    /// Nobody has the file open any more: what it looks like now is what its next opener is to find.
    fn leave_alone(&self, file: &CachedFile) -> Result<()> {
        if file.look.lock().is_foreign() {
            return self.external.meet(file);
        }
        self.own.rest(file)
    }

    /// Drops a file of which the store has all there is to remember.
    pub(crate) fn forget_idle(&self, file: &Arc<CachedFile>) {
        self.files.remove_if(file, |file| {
            !file.is_open()
                && !file.read_below.load(Ordering::Acquire)
                && file.mover.lock().is_none()
                && file.held_mtime_ns().is_none()
                && (file.unlinked.load(Ordering::Acquire) || file.hint.read().is_default())
        });
        if let Some(id) = file.id().filter(|id| self.store.dmt.is_hollow(*id)) {
            self.store.note_emptied(id);
        }
    }
}
