//! One session of a cache, from taking over what the last one left to leaving it in order.

use std::sync::Arc;

use bon::Builder;

use crate::barriers::Barriers;
use crate::degraded_mode::DegradedMode;
use crate::discard::Discards;
use crate::extent::file::WHOLE;
use crate::extent::store::ExtentStore;
use crate::external_changes;
use crate::fetch::Fetcher;
use crate::mappings::Mappings;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::permits::Permits;
use crate::recover::Recoverer;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_meta::lease::Evidence;
use halocline_meta::load::Recovery;
use halocline_os::error::Result;

/// Begins and ends a session.
#[derive(Debug, Builder)]
pub(crate) struct Session {
    store: Arc<ExtentStore>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    own: Arc<OwnChanges>,
    permits: Arc<Permits>,
    space: Arc<OriginSpace>,
    degraded_mode: Arc<DegradedMode>,
    discards: Arc<Discards>,
    barriers: Arc<Barriers>,
    fetcher: Arc<Fetcher>,
    recoverer: Arc<Recoverer>,
    mappings: Arc<Mappings>,
}

impl Session {
    /// Before the first request: puts in order what the last session left, and reports what it lost.
    pub(crate) fn take_over(&self, recovery: &Recovery) -> Result<()> {
        external_changes::close_saved(&self.settings.cache_dir);
        if self.own.evidence() == Evidence::Copy {
            self.notes.note(format!(
                "{} is a copy of a cache, or was moved to another file system: dirty data of it goes \
                 to the origin only where its files are as they were",
                self.settings.cache_dir.display()
            ));
        }
        if recovery.trim {
            self.store.trim()?;
        }
        for dropped in recovery.dropped.iter().filter(|dropped| dropped.dirty_bytes > 0) {
            self.notes.note(format!(
                "{}: the machine lost power; {} bytes that no fsync had covered are lost",
                dropped.path.display(),
                dropped.dirty_bytes
            ));
        }
        self.recoverer.recover()?;
        if self.permits.are_needed() {
            self.drop_clean()?;
        }
        self.own.lease.begin()?;
        self.own.forget_evidence();
        for id in self.store.dmt.files().empty_files() {
            self.store.note_emptied(id);
        }
        self.space.check();
        Ok(())
    }

    /// Drops clean bytes: no token has covered them since the last session, so other nodes may have changed them (I11).
    fn drop_clean(&self) -> Result<()> {
        for record in self.store.dmt.files().all() {
            self.mappings.unmap_clean(record.id, WHOLE)?;
            self.store.note_emptied(record.id);
        }
        Ok(())
    }

    /// Ends the session, once all threads and requests have ended.
    pub(crate) fn leave(&self) -> Result<()> {
        if let Some(coherence) = self.permits.coherence() {
            // Bytes that are still dirty stay reserved for this cache until its next mount, or its recovery.
            if self.store.dmt.index().usage().dirty == 0 {
                // Before the session leaves the list: the next node refuses an origin with a mark of a cache that is not
                // in it. Durably, so that no power loss brings back records of dirty bytes of a session that has left.
                if self.barriers.barrier().is_ok() {
                    self.store.dmt.settle_origin();
                }
                coherence.leave()?;
            }
        }
        let closed = self.close_store();
        if closed.is_ok() {
            // Again: without other nodes it was not settled above, and the close may have flushed the last dirty bytes.
            self.store.dmt.settle_origin();
        }
        closed
    }

    fn close_store(&self) -> Result<()> {
        if self.store.dmt.changes().usable().is_err() {
            // Not in order, but nothing is lost: the dirty bytes are on the origin.
            return self.degraded_mode.drain();
        }
        match self.leave_in_order() {
            // The next mount treats the cache as crashed.
            Err(error) if self.store.dmt.index().usage().dirty == 0 => {
                tracing::warn!("the cache is not left in order: {error}; the origin has all data");
                Ok(())
            }
            left => left,
        }
    }

    fn leave_in_order(&self) -> Result<()> {
        self.recoverer.stamp_dirty_files();
        self.own.record_resting(true);
        let durable = self.recoverer.sync_dirty_files();
        self.discards.discard_queued()?;
        self.barriers.barrier()?;
        self.discards.discard_queued()?;
        self.fetcher.note_wants();
        self.discards.forget_empty(&self.fetcher)?;
        self.store.dmt.close()?;
        self.own.lease.close(durable)
    }
}
