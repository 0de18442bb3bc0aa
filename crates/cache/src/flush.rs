//! Flushing: dirty extents go to the origin in large pieces, and only what is safely there becomes clean.
//!
//! One region at a time: hold `writeback` so that no program writes to the gaps, take a snapshot of the dirty extents
//! with their generations, and write the planned stretches. After some regions the origin is synced, and what has not
//! changed meanwhile is marked clean (I3). A writer waits for at most one region, and only if it writes to that
//! region on the origin.

mod choosing;
mod snapshot;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use halocline_model::request::ByteRange;
use halocline_model::sieve::OriginCost;

pub(crate) use self::choosing::Which;
use self::snapshot::Snapshot;
pub(crate) use self::snapshot::Snapshots;
pub(crate) use self::sweep::{FlushedWhole, Sweeper, Swept};
use crate::backpressure::Backpressure;
use crate::counters::Counters;
use crate::dirty_pressure::DirtyPressure;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::origin_access::OriginAccess;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::permits::Permits;
use crate::repair::Repair;
use crate::settings::Settings;
use halocline_meta::{Extent, FileId};
use halocline_os::error::Result;

/// Bytes of file that one region covers on each server of the origin.
pub(crate) const REGION_BYTES_PER_SERVER: u64 = 2 << 20;

/// Extents of a region flushed in one pass; a denser region takes several.
const EXTENTS_PER_REGION: usize = 4096;

/// What was written to the origin and may be marked clean after a sync of the origin.
#[derive(Debug, Default)]
pub(crate) struct Flushed {
    /// Extents with the generations that were written.
    pub(crate) extents: Vec<(ByteRange, u64)>,
    /// Dirty bytes written.
    pub(crate) bytes: u64,
    /// The file's count of failed syncs when the first extent was written.
    syncs_failed: u64,
}

/// How a flush deals with requests that hold the bytes to be flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenBusy {
    /// It leaves what they hold to a later flush, and holds up no writer to the cache.
    PassOver,
    /// It waits for them and then holds the region exclusively, so it ends however busy a file is. Writers to the
    /// region wait meanwhile.
    Wait,
}

/// How a flush deals with programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manners {
    /// How it treats requests that hold bytes.
    pub(crate) when_busy: WhenBusy,
    /// Who waits for it.
    pub(crate) waits: Waits,
}

/// Who waits for a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No one: it rests while programs use the origin.
    NoOne,
    /// Somebody who asked for it. It rests, too.
    Caller,
    /// A program of another node, for this range, which is given up when the flush is done.
    Node(ByteRange),
}

/// Writes dirty regions to the origin.
#[derive(Debug, Builder)]
pub(crate) struct Flusher {
    store: Arc<ExtentStore>,
    origin: Arc<OriginAccess>,
    pressure: Arc<DirtyPressure>,
    settings: Arc<Settings>,
    counters: Arc<Counters>,
    backpressure: Arc<Backpressure>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    own: Arc<OwnChanges>,
    space: Arc<OriginSpace>,
    repair: Arc<Repair>,
    mappings: Arc<Mappings>,
    snapshots: Arc<Snapshots>,
    permits: Arc<Permits>,
}

impl Flusher {
    /// Length in bytes of a region: a long sequential piece on each of the origin's servers.
    pub(crate) fn region_bytes(&self) -> u64 {
        REGION_BYTES_PER_SERVER * u64::from(self.origin.data.striping().servers())
    }

    /// Writes to the origin the dirty extents that begin in `region`. Extents added to `all` may be marked clean
    /// after a sync of the origin.
    pub(crate) fn flush_region(
        &self,
        file: &CachedFile,
        id: FileId,
        region: ByteRange,
        manners: Manners,
        all: &mut Flushed,
    ) -> Result<()> {
        let mut from = region.start;
        while let Some(next) =
            self.flush_some(file, id, ByteRange::new(from, region.end), manners, all)?
        {
            from = next;
        }
        Ok(())
    }

    /// Flushes at most [`EXTENTS_PER_REGION`] extents that begin in `region`; returns where the rest begins, if there
    /// is one.
    fn flush_some(
        &self,
        file: &CachedFile,
        id: FileId,
        region: ByteRange,
        Manners { when_busy, waits }: Manners,
        all: &mut Flushed,
    ) -> Result<Option<u64>> {
        let (mut dirty, mut rest) = self.dirty_in(id, region);
        let Some(mut span) = span(&dirty) else { return Ok(None) };
        let flush_handle = self.known.flush_handle_of(file)?;
        self.times.hold_origin_time(file)?;
        // Before `writeback`, as requests do: a request that holds the range may wait for `writeback`.
        let guard = (when_busy == WhenBusy::Wait).then(|| file.range.shared(span));
        if guard.is_some() {
            (dirty, rest) = self.dirty_in(id, region);
            dirty.retain(|extent| span.contains(extent.range));
            let Some(now) = self::span(&dirty) else { return Ok(rest) };
            span = now;
        }
        let _writeback = file.writeback.exclusive(span);
        if all.extents.is_empty() {
            all.syncs_failed = file.syncs_failed.load(Ordering::Acquire);
        }
        if let Some(snapshot) = self.snapshots.take(file, id, &dirty, guard.as_ref())? {
            let origin = &self.settings.setting.origin;
            let cost = OriginCost::new(&origin.profile, self.origin.data.servers_below());
            let changing = self.own.changing_bytes(file, &flush_handle)?;
            if changing.external {
                // The sweep resolves it.
                return Ok(None);
            }
            // Gaps are written again as they were read: only where no other node can write meanwhile (I11).
            let given =
                matches!(waits, Waits::Node(given) if self.owns_gaps(file, &snapshot, given));
            let unshared = if given { None } else { self.permits.try_to_rewrite(file, span) };
            // Writing across gaps allocates blocks in the origin's holes: only if that space is not promised
            // elsewhere.
            let bytes = snapshot.extents.iter().map(|(range, _)| range.len()).sum::<u64>();
            let is_held = |(range, _): &(ByteRange, u64)| span.contains(*range);
            assert!(
                snapshot.extents.iter().all(is_held),
                "I3: only what is locked goes to the origin"
            );
            let gaps = (given || unshared.is_some())
                .then(|| self.space.take_gaps(&flush_handle, span, bytes))
                .flatten();
            let each_alone = |run: &ByteRange| cost.plan(std::slice::from_ref(run));
            file.streams.lock().flushed(origin.striping(), span);
            flush_handle.rewrite(snapshot.runs(), &|runs| match gaps {
                Some(_) => cost.plan(runs),
                None => runs.iter().flat_map(each_alone).collect(),
            })?;
            drop((gaps, unshared));
            all.bytes += bytes;
            all.extents.extend(snapshot.extents);
            drop(changing);
            self.own.refresh_last_seen(file, Some(&flush_handle))?;
            if self.set_apart(file, id, &snapshot.damaged)? {
                return Ok(Some(region.start));
            }
        }
        Ok(rest)
    }

    /// Whether this node alone holds the gaps between the dirty runs until it has given up the range `given`.
    fn owns_gaps(&self, file: &CachedFile, snapshot: &Snapshot, given: ByteRange) -> bool {
        let runs = snapshot.runs().runs;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return false };
        let gaps = ByteRange { start: first.end, end: last.start };
        runs.len() > 1 && given.contains(gaps) && self.permits.gives_alone(file, gaps)
    }

    /// At most [`EXTENTS_PER_REGION`] dirty extents that begin in `region`, and where the rest begins, if there
    /// is one.
    fn dirty_in(&self, id: FileId, region: ByteRange) -> (Vec<Extent>, Option<u64>) {
        let mut dirty = self.store.dmt.index().dirty(id, region, EXTENTS_PER_REGION);
        let rest = (dirty.len() == EXTENTS_PER_REGION).then(|| dirty[dirty.len() - 1].range.end);
        dirty.retain(|extent| extent.range.start >= region.start);
        (dirty, rest.filter(|&next| next < region.end))
    }

    /// Splits damaged ranges off their dirty extents; returns whether there is now more to flush.
    fn set_apart(&self, file: &CachedFile, id: FileId, damaged: &[ByteRange]) -> Result<bool> {
        self.repair.found_damaged(file, id, damaged);
        let mut cut = false;
        for range in damaged {
            cut |= self.store.dmt.changes().cut_dirty(id, *range)?;
        }
        Ok(cut)
    }

    /// After the origin has the bytes: makes them durable there, then clears `D_flag` of what did not change (I3).
    /// Returns the bytes that became clean; `None` if nothing is known to be durable, because nothing was written or
    /// a failed sync was reported to another thread.
    pub(crate) fn finish_flush(
        &self,
        file: &CachedFile,
        id: FileId,
        flushed: &Flushed,
    ) -> Result<Option<u64>> {
        if flushed.extents.is_empty() {
            return Ok(None);
        }
        let flush_handle = self.known.flush_handle_of(file)?;
        // A clean extent may be evicted, so the origin's copy must be durable first (I4).
        if let Err(error) = flush_handle.sync(true) {
            file.syncs_failed.fetch_add(1, Ordering::AcqRel);
            self.known.renew_flush_handle(file);
            return Err(error.into());
        }
        if file.syncs_failed.load(Ordering::Acquire) != flushed.syncs_failed {
            // A failure after our writes was reported to another thread: all is written again.
            return Ok(None);
        }
        let cleaned = self.store.dmt.changes().mark_clean(id, &flushed.extents)?;
        self.counters.flushed(cleaned);
        // Only extents that a barrier has covered can be evicted, and programs may wait for room.
        if self.pressure.is_short_of_room() || self.backpressure.has_waiters() {
            // A cache that cannot be synced delays room, not the flush; the rebuilder deals with it.
            match self.store.barrier() {
                Ok(()) => self.backpressure.room_was_made(),
                Err(error) => self.mappings.cache_failed(&error),
            }
        }
        Ok(Some(cleaned))
    }
}

/// From the first byte of sorted extents to the last; `None` where there are none.
fn span(extents: &[Extent]) -> Option<ByteRange> {
    let (first, last) = (extents.first()?, extents.last()?);
    Some(ByteRange::new(first.range.start, last.range.end))
}
