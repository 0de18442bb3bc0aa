//! Changes mappings of files even when the store of records fails, and reports failures of the cache.
//!
//! A store that refuses changes cannot record that bytes are outdated. That is then stated beside the store (D11).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bon::Builder;
use halocline_model::request::ByteRange;

use super::counters::Counters;
use super::damage::Damage;
use super::health::Health;
use super::origin_access::OriginAccess;
use crate::extent::store::ExtentStore;
use halocline_meta::FileId;
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;

/// The mappings of a store that may fail.
#[derive(Debug, Builder)]
pub(crate) struct Mappings {
    store: Arc<ExtentStore>,
    damage: Arc<Damage>,
    origin: Arc<OriginAccess>,
    health: Arc<Health>,
    counters: Arc<Counters>,
    clock: Clock,
    /// How often it could not be stated that bytes are outdated.
    #[builder(skip)]
    unstated: AtomicU64,
}

impl Mappings {
    /// How often it could not be stated that bytes are outdated.
    pub(crate) fn unstated(&self) -> u64 {
        self.unstated.load(Ordering::Acquire)
    }

    /// A device of the cache or its store failed: counts the error, stops admission for a while, and reports it.
    pub(crate) fn cache_failed(&self, error: &dyn std::error::Error) {
        self.counters.cache_error();
        match self.store.dmt.changes().usable() {
            Ok(()) => self.health.failed(&error.to_string(), self.clock.now_ms()),
            Err(store) => self.health.failed_for_good(&store.to_string()),
        }
    }

    /// Ignores a failure that only means that a record is out of date: the store has failed, and the next mount finds
    /// the true state by itself.
    pub(crate) fn advisory(&self, recorded: Result<()>) -> Result<()> {
        match recorded {
            Err(error) if self.store.dmt.changes().usable().is_err() => {
                self.cache_failed(&error);
                Ok(())
            }
            done => done,
        }
    }

    /// Unmaps `range` before or after its bytes change on the origin, by whatever means are left. The caller holds the
    /// range exclusively.
    pub(crate) fn unmap(&self, id: FileId, range: ByteRange) -> Result<()> {
        match self.drop_range(id, range) {
            Err(error) if self.store.dmt.changes().usable().is_err() => {
                self.cache_failed(&error);
                self.store.dmt.untrusted().abandon(id, range).inspect_err(|_| {
                    self.unstated.fetch_add(1, Ordering::AcqRel);
                })?;
                self.damage.heal(id, range);
                Ok(())
            }
            done => done,
        }
    }

    /// Marks the cached parts of `range` dirty; if the store refuses, unmaps the clean ones. Either way no clean extent
    /// is left in `range`.
    pub(crate) fn claim_for_cache(&self, id: FileId, range: ByteRange) -> Result<()> {
        let Err(error) = self.store.dmt.changes().mark_dirty(id, range) else { return Ok(()) };
        self.cache_failed(&error);
        let mut segments = Vec::new();
        self.store.dmt.index().lookup(id, range, &mut segments);
        for segment in segments {
            if segment.extent.is_some_and(|extent| !extent.dirty) {
                self.unmap(id, segment.range)?;
            }
        }
        Ok(())
    }

    /// Lets go what is clean of `range`, which may be older than the origin's bytes, as [`Self::unmap`].
    pub(crate) fn unmap_clean(&self, id: FileId, range: ByteRange) -> Result<()> {
        let mut segments = Vec::new();
        self.store.dmt.index().lookup(id, range, &mut segments);
        let clean = segments.iter().filter(|it| it.extent.is_some_and(|extent| !extent.dirty));
        clean.map(|segment| segment.range).try_for_each(|part| self.unmap(id, part))
    }

    /// Unmaps `range` of a file; its blocks are freed as soon as that is safe.
    pub(crate) fn drop_range(&self, id: FileId, range: ByteRange) -> Result<()> {
        self.store.dmt.changes().unmap(id, range)?;
        self.damage.heal(id, range);
        self.store.dmt.critical().drop_range(id, range);
        Ok(())
    }

    /// Unmaps `range`, including dirty bytes, after the origin got the bytes that replace them. If those that are
    /// unmapped were promised to survive a power loss, the origin is synced first: otherwise the unmapping could
    /// survive and the replacement be lost, and with it what was fsynced before (I4). If the sync fails they are
    /// unmapped nevertheless, because the origin has newer bytes (I1), and the error is returned.
    pub(crate) fn unmap_replaced(
        &self,
        origin: &OriginFile,
        id: FileId,
        range: ByteRange,
    ) -> Result<()> {
        let promised = self.store.dmt.changes().promised(id, range);
        let kept = if promised { self.origin.serve(|| origin.sync(false)) } else { Ok(()) };
        self.unmap(id, range)?;
        Ok(kept?)
    }
}
