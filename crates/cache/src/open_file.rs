//! An open regular file of the extent engine, as requests use it.

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
    /// Whether writes may be admitted: it is open to write.
    pub(crate) may_flush: bool,
    mode: OpenMode,
    /// The kernel serves its reads from the origin.
    pub(crate) reads_below: AtomicBool,
    _pin: Pin,
}

impl OpenFile {
    /// The file, open on the origin as `origin`; the two flags are those of the fields.
    pub(crate) fn new(
        file: Arc<CachedFile>,
        origin: OriginFile,
        pin: Pin,
        (append, may_flush): (bool, bool),
        mode: OpenMode,
    ) -> Self {
        let reads_below = AtomicBool::new(false);
        Self { file, origin, append, may_flush, mode, reads_below, _pin: pin }
    }

    /// Whether it was opened past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.mode.direct
    }

    /// How the front end must treat the file. Beside handles that read the origin without us, the
    /// kernel must not keep pages of ours.
    pub(crate) fn mode(&self) -> OpenMode {
        let beside = self.file.read_below.load(Ordering::Acquire)
            && !self.reads_below.load(Ordering::Acquire);
        OpenMode { direct: self.mode.direct || beside, ..self.mode }
    }
}
