//! Pages that the kernel keeps of files although the reads of programs bypass it: it reads them for `sendfile`, `splice`
//! and private mappings. Where other nodes use the origin, they are dropped with whatever else a node has of a range that
//! it gives up (I11).

use std::fmt;
use std::sync::OnceLock;

use halocline_model::request::ByteRange;
use halocline_vfs::engine::DropPages;

use crate::extent::file::CachedFile;

/// Has the front end drop them, if there is one.
#[derive(Default)]
pub(crate) struct KernelPages(OnceLock<Box<dyn DropPages>>);

impl fmt::Debug for KernelPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPages").finish_non_exhaustive()
    }
}

impl KernelPages {
    /// A front end serves the engine. Only the first one counts.
    pub(crate) fn are_dropped_by(&self, front: Box<dyn DropPages>) {
        let _ = self.0.set(front);
    }

    /// Drops those of a range that is given up, in which no request is in progress. Waits for that, at most for a moment.
    pub(crate) fn drop_range(&self, file: &CachedFile, range: ByteRange) {
        if let Some(front) = self.0.get() {
            let key = file.node.read().key();
            front.drop_pages(key, (range.start, range.len()));
        }
    }
}
