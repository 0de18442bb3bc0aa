//! Discarding: returns blocks to the cache's file system once the removal of their mapping is durable.

use bon::Builder;

use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::fetch::Fetcher;
use halocline_os::error::Result;
use std::sync::Arc;

/// Frees blocks, and forgets files that have nothing on the cache.
#[derive(Debug, Builder)]
pub(crate) struct Discards {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
}

impl Discards {
    /// Frees the queued ranges; blocks that were claimed again meanwhile stay.
    pub(crate) fn discard_queued(&self) -> Result<u64> {
        let mut freed = 0;
        for queued in self.store.dmt.blocks().take_discards() {
            // Exclusive: readers that looked up the old mapping have left before it is punched, and the range is not
            // mapped anew meanwhile (I2), not even by a thread that opens the file only now: for that the table stays
            // frozen, unless no file has this number any more.
            let frozen = self.files.freeze();
            let file = frozen.by_id(queued.file).cloned();
            let may_come = file.is_none() && self.store.dmt.files().record(queued.file).is_some();
            let _frozen = may_come.then_some(frozen);
            let _guard = file.as_ref().map(|file| file.range.exclusive(queued.range));
            freed += self.store.free(&self.store.dmt.blocks().still_due(&queued))?;
        }
        Ok(freed)
    }

    /// Forgets files that no longer have anything on the cache and are not open, and removes their empty objects: both
    /// would otherwise stay as long as the origin has the file. A file with ranges that programs want stays, even if
    /// `fetcher` has not recorded them yet.
    pub(crate) fn forget_empty(&self, fetcher: &Fetcher) -> Result<()> {
        for id in self.store.take_emptied() {
            {
                let _alone = self.store.forgetting.lock();
                // So that the file is not opened, and its number found, meanwhile.
                let frozen = self.files.freeze();
                if frozen.by_id(id).is_none() {
                    // Its readers have closed it, so all of its wanted ranges are queued there.
                    fetcher.note_wants();
                    if self.store.dmt.files().is_empty(id) {
                        self.store.dmt.files().forget(id)?;
                    }
                }
            }
            if self.store.dmt.files().record(id).is_none() {
                self.store.objects.remove_empty(id.0)?;
            }
        }
        Ok(())
    }
}
