//! Discarding: blocks whose mapping is durably gone return to the cache's file system.

use bon::Builder;

use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::fetch::Fetcher;
use halocline_os::error::Result;
use std::sync::Arc;

/// What frees blocks and forgets files that have nothing on the cache.
#[derive(Debug, Builder)]
pub(crate) struct Discards {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
}

impl Discards {
    /// Frees the queued ranges; what was claimed again meanwhile stays.
    pub(crate) fn discard_queued(&self) -> Result<u64> {
        let mut freed = 0;
        for queued in self.store.dmt.take_discards() {
            // Exclusive: readers that looked the old mapping up have left before it is punched,
            // and nobody maps the range anew while we do (I2): nor does who opens the file only
            // now, for which the table stays frozen, unless no file has this number any more.
            let frozen = self.files.freeze();
            let file = frozen.by_id(queued.file).cloned();
            let may_come = file.is_none() && self.store.dmt.file(queued.file).is_some();
            let _frozen = may_come.then_some(frozen);
            let _guard = file.as_ref().map(|file| file.range.exclusive(queued.range));
            freed += self.store.free(&self.store.dmt.still_due(&queued))?;
        }
        Ok(freed)
    }

    /// Forgets files that have nothing on the cache any more and that nobody has open, and removes
    /// the objects that they left empty: both would stay for as long as the origin has the file. One of which
    /// programs want something stays, also where that is not recorded yet: by `fetcher`.
    pub(crate) fn forget_empty(&self, fetcher: &Fetcher) -> Result<()> {
        for id in self.store.take_emptied() {
            {
                let _alone = self.store.forgetting.lock();
                // Nobody opens it meanwhile and finds its number.
                let frozen = self.files.freeze();
                if frozen.by_id(id).is_none() {
                    // Who read it has closed it, so all that was wanted of it waits there.
                    fetcher.note_wants();
                    if self.store.dmt.is_empty(id) {
                        self.store.dmt.forget(id)?;
                    }
                }
            }
            if self.store.dmt.file(id).is_none() {
                self.store.objects.remove_empty(id.0)?;
            }
        }
        Ok(())
    }
}
