//! An open regular file of the extent engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::parts::Parts;
use crate::engine::{Caller, OpenMode};
use crate::error::Result;
use crate::extent::file::CachedFile;
use crate::namespace::{Node, Pin};
use crate::volume::origin::OriginFile;

/// An open regular file; dropping it closes it.
#[derive(Debug)]
pub struct Handle {
    pub(crate) file: Arc<CachedFile>,
    pub(crate) origin: OriginFile,
    pub(crate) append: bool,
    /// Whether writes may be admitted: the handle can write.
    pub(crate) may_flush: bool,
    mode: OpenMode,
    _pin: Pin,
    parts: Arc<Parts>,
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
        let origin = parts.open_origin(node, below)?;
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
        let origin = parts.origin.adopt_data(made)?;
        Self::over(parts, node, origin, flags, caller)
    }

    fn over(
        parts: &Arc<Parts>,
        node: &Node,
        origin: OriginFile,
        flags: i32,
        caller: Caller,
    ) -> Result<Self> {
        let file = parts.file_of(node)?;
        let pin = parts.namespace.pin(node)?;
        file.opens.fetch_add(1, Ordering::AcqRel);
        let hinted = parts.hints.on_open(&parts.namespace.path_of(node), caller, &file);
        let direct = parts.around.config.direct || flags & libc::O_DIRECT != 0 || hinted;
        Ok(Self {
            origin,
            append: flags & libc::O_APPEND != 0,
            may_flush: flags & libc::O_ACCMODE != libc::O_RDONLY,
            mode: OpenMode { direct, keep_cache: true },
            _pin: pin,
            file,
            parts: Arc::clone(parts),
        })
    }

    /// How the front end must treat the file.
    pub(crate) fn mode(&self) -> OpenMode {
        self.mode
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.file.opens.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.parts.closed(&self.file);
        }
    }
}

impl Parts {
    /// The last handle of a file is gone.
    fn closed(&self, file: &Arc<CachedFile>) {
        let unlinked = file.unlinked.load(Ordering::Acquire);
        let done = match file.id() {
            Some(id) if unlinked => self.forget_file(file, id),
            Some(id) => self.settle(file, id).and_then(|()| self.give_time(file)),
            None if unlinked => self.forget_data(file),
            None => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(
                "closing {}: {error}",
                self.namespace.path_of(&file.node.read()).display()
            );
        }
        self.files.remove_if(file, |file| {
            !file.is_open()
                && file.mover.lock().is_none()
                && file.held_mtime_ns().is_none()
                && file.hint.read().is_default()
        });
    }
}
