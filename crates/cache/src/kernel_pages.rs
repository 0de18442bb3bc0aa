//! Pages in the kernel's cache of files whose reads bypass that cache: the kernel reads them for `sendfile`, `splice`
//! and private mappings. If other nodes use the origin, a node that gives up a range drops these pages together with
//! everything else that it has of the range (I11).

use std::fmt;
use std::sync::OnceLock;

use halocline_model::request::ByteRange;
use halocline_vfs::engine::DropPages;

use crate::extent::file::CachedFile;

/// Makes the front end, if there is one, drop such pages.
#[derive(Default)]
pub(crate) struct KernelPages(OnceLock<Box<dyn DropPages>>);

impl fmt::Debug for KernelPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPages").finish_non_exhaustive()
    }
}

impl KernelPages {
    /// Registers the front end that serves the engine. Only the first one counts.
    pub(crate) fn are_dropped_by(&self, front: Box<dyn DropPages>) {
        let _ = self.0.set(front);
    }

    /// Drops the pages of a range that is given up, in which no request is in progress. Waits for that at most a
    /// moment.
    pub(crate) fn drop_range(&self, file: &CachedFile, range: ByteRange) {
        if let Some(front) = self.0.get() {
            let key = file.vnode.read().key();
            front.drop_pages(key, (range.start, range.len()));
        }
    }
}
