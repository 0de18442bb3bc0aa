//! What is mapped of files, unmapped by whatever means are left, and failures of the cache.
//!
//! A store that refuses changes cannot be told that bytes are outdated: then a statement beside it says
//! so (D11).

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

    /// A device of the cache or its store failed: count it, rest it, say so.
    pub(crate) fn cache_failed(&self, error: &dyn std::error::Error) {
        self.counters.cache_error();
        match self.store.dmt.usable() {
            Ok(()) => self.health.failed(&error.to_string(), self.clock.now_ms()),
            Err(store) => self.health.failed_for_good(&store.to_string()),
        }
    }

    /// Lets a failure pass that only means that a record stays behind the truth: the store is
    /// sick, and the next mount finds the truth by itself.
    pub(crate) fn advisory(&self, recorded: Result<()>) -> Result<()> {
        match recorded {
            Err(error) if self.store.dmt.usable().is_err() => {
                self.cache_failed(&error);
                Ok(())
            }
            done => done,
        }
    }

    /// Unmaps `range` before or after its bytes change on the origin, by whatever means are left.
    /// The caller holds the range exclusively.
    pub(crate) fn let_go(&self, id: FileId, range: ByteRange) -> Result<()> {
        match self.drop_range(id, range) {
            Err(error) if self.store.dmt.usable().is_err() => {
                self.cache_failed(&error);
                self.store.dmt.abandon(id, range).inspect_err(|_| {
                    self.unstated.fetch_add(1, Ordering::AcqRel);
                })?;
                self.damage.heal(id, range);
                Ok(())
            }
            done => done,
        }
    }

    /// Marks what is cached of `range` dirty; where the store refuses that, clean bytes are let go.
    /// Either way no clean extent is left under `range`.
    pub(crate) fn claim_for_cache(&self, id: FileId, range: ByteRange) -> Result<()> {
        let Err(error) = self.store.dmt.mark_dirty(id, range) else { return Ok(()) };
        self.cache_failed(&error);
        let mut segments = Vec::new();
        self.store.dmt.lookup(id, range, &mut segments);
        for segment in segments {
            if segment.extent.is_some_and(|extent| !extent.dirty) {
                self.let_go(id, segment.range)?;
            }
        }
        Ok(())
    }

    /// Unmaps `range` of a file and frees its blocks as soon as that is safe.
    pub(crate) fn drop_range(&self, id: FileId, range: ByteRange) -> Result<()> {
        self.store.dmt.unmap(id, range)?;
        self.damage.heal(id, range);
        self.store.dmt.critical().drop_range(id, range);
        Ok(())
    }

    /// Unmaps `range`, dirty bytes too, after the origin got what replaces them. Where those were
    /// promised to survive power loss the origin is synced first: else the unmapping could last
    /// and what it stands for be lost, and with it what was fsynced before (I4). If the sync
    /// fails they go nevertheless, because the origin has newer bytes (I1), and the error is told.
    pub(crate) fn let_old_go(
        &self,
        origin: &OriginFile,
        id: FileId,
        range: ByteRange,
    ) -> Result<()> {
        let promised = self.store.dmt.promised(id, range);
        let kept = if promised { self.origin.serve(|| origin.sync(false)) } else { Ok(()) };
        self.let_go(id, range)?;
        Ok(kept?)
    }
}
