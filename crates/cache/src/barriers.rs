//! Barriers: make the bytes on the cache durable, or else the bytes that replace them on the origin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bon::Builder;

use crate::counters::Counters;
use crate::degraded_mode::DegradedMode;
use crate::discard::Discards;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::flush::Sweeper;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use halocline_meta::FileId;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// Makes the cache durable.
#[derive(Debug, Builder)]
pub(crate) struct Barriers {
    store: Arc<ExtentStore>,
    counters: Arc<Counters>,
    namespace: Arc<Namespace>,
    mappings: Arc<Mappings>,
    known: Arc<KnownFiles>,
    degraded_mode: Arc<DegradedMode>,
    sweeper: Arc<Sweeper>,
    discards: Arc<Discards>,
    /// Sum of the changing counters at the last barrier.
    #[builder(skip)]
    counted_at_barrier: AtomicU64,
}

impl Barriers {
    /// A barrier. Objects that their device refused to sync are replaced first: if a second sync succeeded, that would
    /// not mean that their bytes are durable. The caller holds no lock of a file.
    pub(crate) fn barrier(&self) -> Result<()> {
        let Err(error) = self.store.barrier() else { return Ok(()) };
        let unsyncable = self.store.objects.unsyncable();
        if unsyncable.is_empty() || self.store.dmt.changes().usable().is_err() {
            return Err(error);
        }
        self.mappings.cache_failed(&error);
        for number in unsyncable {
            let id = FileId(number);
            if let Some(file) = self.known.file_by_id(id)? {
                self.replace_object(&file, id)?;
            }
        }
        self.store.barrier()
    }

    /// Makes the cached bytes of a file durable: on the cache, or, if its store failed, on the origin.
    pub(crate) fn make_durable(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        match self.barrier() {
            Err(error) if self.store.dmt.changes().usable().is_err() => {
                self.mappings.cache_failed(&error);
                self.degraded_mode
                    .retry_after_giving_up(|| self.degraded_mode.bring_to_origin(file, id))
                    .map(drop)
            }
            done => done,
        }
    }

    /// After a flush: what went to the origin is durably recorded as clean, and becomes evictable. A device that cannot
    /// be synced prevents only the recording: the bytes are on the origin.
    pub(crate) fn settle_flush(&self) -> Result<()> {
        let settled = self.barrier().and_then(|()| self.discards.discard_queued().map(drop));
        self.mappings.advisory(settled.or_else(|error| {
            self.mappings.cache_failed(&error);
            self.store.dmt.changes().persist()
        }))
    }

    /// Flushes a file's dirty bytes, forgets all of its cached bytes, and removes its objects.
    fn replace_object(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        self.sweeper.flush_whole(file, &|_| true)?;
        let _range = file.range.exclusive(WHOLE);
        if !self.store.dmt.index().dirty(id, WHOLE, 1).is_empty() {
            return Err(Error::invalid(
                format!(
                    "{} was written while its cache object was replaced",
                    self.namespace.path_of(&file.vnode.read()).display()
                ),
                "sync again",
            ));
        }
        self.mappings.unmap(id, WHOLE)?;
        // Before the object is removed: a record that reappeared after a crash would refer to nothing.
        self.store.dmt.changes().persist()?;
        Ok(self.store.objects.remove(id.0)?)
    }

    /// Whether anything was written to the cache since the last call.
    pub(crate) fn are_due(&self) -> bool {
        let counts = self.counters.snapshot();
        let now = counts.ssd_bytes_written + counts.flushed_bytes + counts.evicted_bytes;
        self.counted_at_barrier.swap(now, Ordering::Relaxed) != now
    }
}
