//! Discarding: blocks whose mapping is durably gone return to the cache's file system.

use crate::engine::parts::Parts;
use crate::error::Result;
use crate::meta::FileId;

impl Parts {
    /// Frees the queued ranges; what was claimed again meanwhile stays.
    pub(crate) fn discard_queued(&self) -> Result<u64> {
        let mut freed = 0;
        let mut forgotten: Vec<FileId> = Vec::new();
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
            if self.store.dmt.file(queued.file).is_none() {
                forgotten.push(queued.file);
            }
        }
        forgotten.dedup();
        for file in forgotten {
            // Forgotten with its last name and handle: what is left is empty.
            self.store.objects.remove_empty(file.0)?;
        }
        Ok(freed)
    }
}
