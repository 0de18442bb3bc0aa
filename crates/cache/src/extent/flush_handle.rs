//! Descriptors that can flush: every dirty file has one, so they bound how many files are dirty.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use halocline_storage::volume::origin::OriginFile;

/// How many files have a [`FlushHandle`].
#[derive(Debug)]
pub(crate) struct FlushHandles {
    open: AtomicUsize,
    max: usize,
}

/// A file of the origin that can be written, counted while it is kept.
#[derive(Debug)]
pub(crate) struct FlushHandle {
    pub(crate) origin: Arc<OriginFile>,
    all: Arc<FlushHandles>,
}

impl FlushHandles {
    /// None yet. At most `max`, not counting files that are already dirty.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { open: AtomicUsize::new(0), max: max.max(16) })
    }

    /// Keeps a file open.
    pub(crate) fn keep(self: &Arc<Self>, origin: Arc<OriginFile>) -> FlushHandle {
        self.open.fetch_add(1, Ordering::Relaxed);
        FlushHandle { origin, all: Arc::clone(self) }
    }

    /// Whether no clean file is to become dirty: programs need open files, too.
    pub(crate) fn are_all_kept(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= self.max
    }

    /// Whether dirty files are to be flushed, however few bytes they have.
    pub(crate) fn press(&self) -> bool {
        self.open.load(Ordering::Relaxed) > self.max / 4 * 3
    }

    /// Whether a flush that began because of [`Self::press`] is to continue.
    pub(crate) fn are_many(&self) -> bool {
        self.open.load(Ordering::Relaxed) > self.max / 2
    }
}

impl Drop for FlushHandle {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}
