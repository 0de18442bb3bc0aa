//! An open regular file of the extent engine, as requests see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::extent::file::CachedFile;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::OpenMode;
use halocline_vfs::namespace::Pin;

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) file: Arc<CachedFile>,
    pub(crate) origin: OriginFile,
    pub(crate) append: bool,
    /// Whether it is open for writing.
    pub(crate) writable: bool,
    mode: OpenMode,
    /// Whether the kernel serves its reads from the origin.
    pub(crate) reads_below: AtomicBool,
    _pin: Pin,
}

impl OpenFile {
    /// A handle of `file`, open on the origin as `origin`; the flags are those of the fields.
    pub(crate) fn new(
        file: Arc<CachedFile>,
        origin: OriginFile,
        pin: Pin,
        (append, writable): (bool, bool),
        mode: OpenMode,
    ) -> Self {
        let reads_below = AtomicBool::new(false);
        Self { file, origin, append, writable, mode, reads_below, _pin: pin }
    }

    /// Whether it was opened to bypass the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.mode.direct
    }

    /// How the front end must treat the file. While other handles read the origin without us, the kernel must not keep
    /// pages that we served.
    pub(crate) fn mode(&self) -> OpenMode {
        let beside = self.file.read_below.load(Ordering::Acquire)
            && !self.reads_below.load(Ordering::Acquire);
        OpenMode { direct: self.mode.direct || beside, ..self.mode }
    }
}
