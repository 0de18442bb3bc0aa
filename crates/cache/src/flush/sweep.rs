//! A sweep: which regions of a file are flushed, in which order, and when the origin is synced.
//!
//! Regions go to the origin in offset order, so that disks sweep instead of seeking. Pressed for room, a sweep takes
//! only the densest regions: a region's cost depends little on how many of its bytes are dirty, so the densest free
//! the most room per disk time; of equally dense ones it takes the latest written
//! (`crates/model/src/flush_order.rs`; ours; the papers flush in the order of the records).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use bon::Builder;
use halocline_model::background::Share;
use halocline_model::request::ByteRange;
use parking_lot::{Mutex, MutexGuard};
use rangemap::RangeSet;

use super::choosing::{DirtyRegion, Which, chosen};
use super::{Flushed, Flusher, Manners, Waits, WhenBusy};
use crate::backpressure::Backpressure;
use crate::damage::Damage;
use crate::defects::Defects;
use crate::degraded_mode::DegradedMode;
use crate::dirty_pressure::DirtyPressure;
use crate::extent::file::{CachedFile, WHOLE, tail};
use crate::extent::store::ExtentStore;
use crate::external_changes::ExternalChanges;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::origin_access::OriginAccess;
use crate::origin_share::OriginShare;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::settings::Settings;
use halocline_meta::FileId;
use halocline_os::clock::{Clock, Team, Work};
use halocline_os::error::Result;

/// Dirty extents looked up at once.
const EXTENTS_AT_ONCE: usize = 4096;

/// Bytes flushed before the origin is synced and they are marked clean. Under pressure, programs wait for that.
const SYNC_BYTES: u64 = 64 << 20;
const SYNC_BYTES_PRESSED: u64 = 8 << 20;

/// The longest rest for `rebuild_rate`.
const REST_MAX: Duration = Duration::from_secs(2);
/// How often a resting worker checks whether it is needed.
const REST_CHECK: Duration = Duration::from_millis(20);

/// A flush of a whole file gives up after this many sweeps in a row that flush nothing of what remains,
/// although each waits for the requests in its way.
const FRUITLESS_SWEEPS: u32 = 16;

/// How a sweep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swept {
    /// This many bytes became clean.
    Flushed(u64),
    /// It could not go on because the file cannot be reached: its last name is gone, and nothing remains to be flushed,
    /// or there is no file to flush it to; or others renamed it while it was not open.
    Removed,
}

/// How a flush of a whole file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushedWhole {
    /// All that was dirty when it began is on the origin, durably.
    Complete,
    /// All but this many bytes: requests were in the way every time.
    Busy(u64),
    /// All but this many bytes: the caller ended it.
    Stopped(u64),
    /// The file cannot be reached, see [`Swept::Removed`]: its dirty bytes stay dirty.
    Removed,
}

/// Callbacks of a running sweep, called from several threads, and how it deals with programs.
#[derive(Clone, Copy)]
struct SweepCallbacks<'a> {
    /// Called with the bytes of each region flushed; ends the sweep by returning `false`.
    go_on: &'a (dyn Fn(u64) -> bool + Sync),
    /// Called with each range that is now durable on the origin: as it was when the sweep began, or newer.
    flushed: &'a (dyn Fn(ByteRange) + Sync),
    manners: Manners,
}

/// Flushes whole files, region by region.
#[derive(Debug, Builder)]
pub(crate) struct Sweeper {
    store: Arc<ExtentStore>,
    damage: Arc<Damage>,
    pressure: Arc<DirtyPressure>,
    origin: Arc<OriginAccess>,
    backpressure: Arc<Backpressure>,
    settings: Arc<Settings>,
    mappings: Arc<Mappings>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    space: Arc<OriginSpace>,
    degraded_mode: Arc<DegradedMode>,
    defects: Arc<Defects>,
    flusher: Arc<Flusher>,
    share: Arc<OriginShare>,
    clock: Clock,
}

impl Sweeper {
    /// One sweep over a file, several regions at a time. `go_on` is called with the bytes of each region flushed and
    /// ends the sweep by returning `false`. The caller holds no lock of the file's bytes.
    pub(crate) fn sweep(
        &self,
        file: &Arc<CachedFile>,
        id: FileId,
        which: Which,
        go_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Swept> {
        let manners = Manners { when_busy: WhenBusy::PassOver, waits: Waits::NoOne };
        self.sweep_with(file, id, which, SweepCallbacks { go_on, flushed: &|_| (), manners })
    }

    fn sweep_with(
        &self,
        file: &Arc<CachedFile>,
        id: FileId,
        which: Which,
        callbacks: SweepCallbacks<'_>,
    ) -> Result<Swept> {
        let _one = Self::begin(file, callbacks.manners.waits);
        // A defect met with one file must not keep other files from being flushed or the mount from ending.
        match self.defects.guard("flush", || self.sweep_alone(file, id, which, callbacks)) {
            Ok(bytes) => Ok(Swept::Flushed(bytes)),
            Err(_) if self.is_removed(file, id) => {
                self.forget_removed(file);
                Ok(Swept::Removed)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until no other flush of the file is running; a flush that may give way does.
    fn begin(file: &CachedFile, waits: Waits) -> MutexGuard<'_, ()> {
        let counts: &[&AtomicU32] = match waits {
            Waits::NoOne => &[],
            Waits::Caller => &[&file.awaited_flushes],
            Waits::Node(_) => &[&file.awaited_flushes, &file.awaited_hand_overs],
        };
        for count in counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let one = file.flushing.lock();
        for count in counts {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        one
    }

    /// The same for a caller that holds `flushing`; returns the bytes that became clean.
    fn sweep_alone(
        &self,
        file: &Arc<CachedFile>,
        id: FileId,
        which: Which,
        callbacks: SweepCallbacks<'_>,
    ) -> Result<u64> {
        if self.store.dmt.changes().usable().is_ok() {
            match self.sweep_and_record(file, id, which, callbacks) {
                // The store now refuses changes: the first sweep to notice bypasses it.
                Err(error) if self.store.dmt.changes().usable().is_err() => {
                    self.mappings.cache_failed(&error);
                }
                done => return done,
            }
        }
        let bytes = self
            .degraded_mode
            .retry_after_giving_up(|| self.degraded_mode.bring_to_origin(file, id))?;
        (callbacks.flushed)(WHOLE);
        self.times.settle(file, id).map(|()| bytes)
    }

    fn sweep_and_record(
        &self,
        file: &Arc<CachedFile>,
        id: FileId,
        which: Which,
        callbacks: SweepCallbacks<'_>,
    ) -> Result<u64> {
        let regions = Mutex::new(chosen(self.dirty_regions(id), which));
        let total = Mutex::new(Ok(0));
        let workers = self.settings.config.flush_workers.max(1);
        let (team, mut works) = Team::new(&self.clock, workers as usize);
        let sweep = |work: Work| {
            let working = work.begin();
            // Caught here, because a scope loses the panic messages of its threads.
            let swept = self
                .defects
                .guard("flush", || self.sweep_some(file, id, &regions, workers, callbacks));
            let mut total = total.lock();
            match (swept, total.as_mut()) {
                (Ok(bytes), Ok(sum)) => *sum += bytes,
                (Err(error), Ok(_)) => *total = Err(error),
                (_, Err(_)) => {}
            }
            team.leave(working);
        };
        thread::scope(|scope| {
            let own = works.pop();
            for work in works {
                scope.spawn(|| sweep(work));
            }
            own.into_iter().for_each(sweep);
        });
        drop(team);
        if self.own.is_external(file) {
            self.external.resolve(file)?;
        }
        self.times.settle(file, id)?;
        self.own.rest(file)?;
        self.known.forget_idle(file);
        let swept =
            total.into_inner().map_err(|error| self.space.explain_no_room(file, id, error))?;
        if which == Which::All && swept > 0 {
            self.space.had_room(id);
        }
        Ok(swept)
    }

    /// Whether a file cannot be reached any more: its last name is gone, or it is not open and no name leads to it.
    fn is_removed(&self, file: &CachedFile, id: FileId) -> bool {
        let is_forgotten = || self.store.dmt.files().record(id).is_none();
        // A file that a program has open stays intact until it is closed.
        if file.is_open() {
            return is_forgotten();
        }
        // A thread that forgets the file holds all of its range until done.
        let _still = file.range.shared(WHOLE);
        if is_forgotten() {
            return true;
        }
        // A name may be removed while its record still exists. A file that is open for flushing has lost its last name
        // only if it says so itself: others may have renamed it.
        match self.own.origin_stat(file, None) {
            Ok(raw) => raw.st_nlink == 0,
            Err(error) => [libc::ENOENT, libc::ESTALE].contains(&error.errno()),
        }
    }

    /// Releases a file whose name leads nowhere: if others removed the name, only its record helps to find the file.
    fn forget_removed(&self, file: &Arc<CachedFile>) {
        if !file.is_open() && !self.own.changes_names() {
            *file.flush_handle.lock() = None;
            file.let_mtime_go(None);
            self.known.forget_idle(file);
        }
    }

    /// Flushes regions until none is left or `go_on` returns `false`.
    fn sweep_some(
        &self,
        file: &CachedFile,
        id: FileId,
        regions: &Mutex<VecDeque<ByteRange>>,
        workers: u32,
        callbacks: SweepCallbacks<'_>,
    ) -> Result<u64> {
        let mut flushed = Flushed::default();
        let mut total = 0;
        loop {
            let begun = self.clock.instant();
            let Some(region) = regions.lock().pop_front() else { break };
            let before = flushed.bytes;
            self.flusher.flush_region(file, id, region, callbacks.manners, &mut flushed)?;
            let bytes = flushed.bytes - before;
            let limit = if self.pressure.is_pressed() { SYNC_BYTES_PRESSED } else { SYNC_BYTES };
            if flushed.bytes >= limit || self.backpressure.has_waiters() {
                total += self.finish(file, id, &std::mem::take(&mut flushed), callbacks)?;
            }
            let goes_on =
                |bytes| (callbacks.go_on)(bytes) && !gives_way(file, callbacks.manners.waits);
            if !goes_on(bytes) || file.last_seen.lock().is_external() {
                regions.lock().clear();
                break;
            }
            let worked = (self.clock.elapsed(begun), bytes);
            self.be_courteous(callbacks.manners.waits, worked, workers, &|| goes_on(0));
        }
        Ok(total + self.finish(file, id, &flushed, callbacks)?)
    }

    /// Makes what was written durable on the origin, and reports it to the callbacks.
    fn finish(
        &self,
        file: &CachedFile,
        id: FileId,
        flushed: &Flushed,
        callbacks: SweepCallbacks<'_>,
    ) -> Result<u64> {
        let Some(cleaned) = self.flusher.finish_flush(file, id, flushed)? else { return Ok(0) };
        flushed.extents.iter().for_each(|&(range, _)| (callbacks.flushed)(range));
        Ok(cleaned)
    }

    /// The file's regions with dirty extents, in offset order.
    fn dirty_regions(&self, id: FileId) -> Vec<DirtyRegion> {
        let bytes = self.flusher.region_bytes();
        let mut regions: Vec<DirtyRegion> = Vec::new();
        let mut from = 0;
        loop {
            let extents = self.store.dmt.index().dirty(id, tail(from), EXTENTS_AT_ONCE);
            for extent in &extents {
                let begin = extent.range.start / bytes * bytes;
                match regions.last_mut() {
                    Some(last) if last.range.start == begin => {
                        last.dirty += extent.range.len();
                        last.end = extent.range.end;
                        last.generation = last.generation.max(extent.generation);
                    }
                    _ => regions.push(DirtyRegion {
                        range: ByteRange::new(begin, begin.saturating_add(bytes)),
                        dirty: extent.range.len(),
                        end: extent.range.end,
                        generation: extent.generation,
                    }),
                }
            }
            match extents.last() {
                Some(last) if extents.len() == EXTENTS_AT_ONCE => from = last.range.end,
                _ => return regions,
            }
        }
    }

    /// Rests after work while there is no pressure, long enough that the `workers` of a sweep together take no more
    /// than this node's share of the origin. A requested flush rests only while programs of this node use the
    /// origin, and one that another node waits for never does. A rest ends when the sweep is to end.
    fn be_courteous(
        &self,
        waits: Waits,
        (worked, bytes): (Duration, u64),
        workers: u32,
        goes_on: &dyn Fn() -> bool,
    ) {
        let is_done = || match waits {
            Waits::Node(_) => true,
            Waits::Caller => self.origin.is_idle(),
            Waits::NoOne => false,
        };
        if self.pressure.is_pressed() || is_done() {
            return;
        }
        let mut rest = match waits {
            Waits::NoOne => self.share.rest(worked, workers),
            Waits::Caller | Waits::Node(_) => Share::WHOLE.rest(worked, workers, true),
        };
        let limit = self.settings.config.rebuild_rate;
        if limit > 0 && !self.share.is_idle() {
            #[expect(clippy::cast_precision_loss, reason = "a pause, not an amount")]
            let due = Duration::from_secs_f64(bytes as f64 / limit as f64);
            rest = rest.max(due.saturating_sub(worked).min(REST_MAX));
        }
        let begun = self.clock.instant();
        let is_over = || self.pressure.is_pressed() || self.backpressure.has_waiters() || is_done();
        while !is_over() && goes_on() {
            // A shorter rest is enough once programs are done with the origin, or other nodes with their work.
            if waits == Waits::NoOne && (limit == 0 || self.share.is_idle()) {
                rest = rest.min(self.share.rest(worked, workers));
            }
            let left = rest.saturating_sub(self.clock.elapsed(begun));
            if left.is_zero() {
                break;
            }
            self.clock.sleep(left.min(REST_CHECK));
        }
    }

    /// Flushes all bytes of a file that are dirty now; `go_on` as in [`Self::sweep`].
    ///
    /// The first sweep skips what requests hold at that moment, and holds up no writer to the cache. Later ones wait
    /// for the skipped bytes, which would otherwise count as failed; most requests are brief.
    pub(crate) fn flush_whole(
        &self,
        file: &Arc<CachedFile>,
        go_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<FlushedWhole> {
        self.flush_of((file, WHOLE), Waits::Caller, go_on)
    }

    /// The same for the bytes that are dirty now in a range that another node waits for, without rest.
    pub(crate) fn flush_given(
        &self,
        file: &Arc<CachedFile>,
        range: ByteRange,
    ) -> Result<FlushedWhole> {
        self.flush_of((file, range), Waits::Node(range), &|_| true)
    }

    fn flush_of(
        &self,
        (file, range): (&Arc<CachedFile>, ByteRange),
        waits: Waits,
        go_on: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<FlushedWhole> {
        let Some(id) = file.id() else { return Ok(FlushedWhole::Complete) };
        let which = || {
            if range == WHOLE {
                return Which::All;
            }
            // An extent that begins before the range may reach into it.
            let first = self.store.dmt.index().dirty(id, range, 1);
            let start = first.first().map_or(range.start, |extent| extent.range.start);
            Which::Of(ByteRange { start: start.min(range.start), ..range })
        };
        let stopped = AtomicBool::new(false);
        let go_on = |bytes| {
            let goes_on = go_on(bytes);
            stopped.fetch_or(!goes_on, Ordering::Relaxed);
            goes_on
        };
        let manners = Manners { when_busy: WhenBusy::PassOver, waits };
        let callbacks = SweepCallbacks { go_on: &go_on, flushed: &|_| (), manners };
        if self.sweep_with(file, id, which(), callbacks)? == Swept::Removed {
            return Ok(FlushedWhole::Removed);
        }
        // If programs write, this may be more than was dirty at the beginning, but includes all that remains of it.
        let remaining = Mutex::new(self.dirty_ranges(id, range));
        let mut fruitless = 0;
        loop {
            let left = self.remaining_bytes(id, &remaining);
            if left == 0 {
                return Ok(FlushedWhole::Complete);
            }
            if stopped.load(Ordering::Relaxed) {
                return Ok(FlushedWhole::Stopped(left));
            }
            if fruitless == FRUITLESS_SWEEPS {
                return Ok(FlushedWhole::Busy(left));
            }
            let flushed = |range: ByteRange| remaining.lock().remove(range.start..range.end);
            let manners = Manners { when_busy: WhenBusy::Wait, waits };
            let callbacks = SweepCallbacks { go_on: &go_on, flushed: &flushed, manners };
            if self.sweep_with(file, id, which(), callbacks)? == Swept::Removed {
                return Ok(FlushedWhole::Removed);
            }
            let progress = self.remaining_bytes(id, &remaining) < left;
            if progress {
                fruitless = 0;
            } else if !gives_way(file, waits) {
                fruitless += 1;
            }
        }
    }

    /// The number of bytes of `remaining` that are still dirty. Removes all others from it, and damaged ones, which cannot
    /// be flushed.
    fn remaining_bytes(&self, id: FileId, remaining: &Mutex<RangeSet<u64>>) -> u64 {
        let dirty = self.dirty_ranges(id, WHOLE);
        let mut remaining = remaining.lock();
        if !remaining.is_empty() {
            *remaining = remaining.intersection(&dirty).collect();
        }
        for damaged in self.damage.of(id, WHOLE) {
            remaining.remove(damaged.start..damaged.end);
        }
        remaining.iter().map(|range| range.end - range.start).sum()
    }

    /// The dirty parts of a range of a file.
    fn dirty_ranges(&self, id: FileId, range: ByteRange) -> RangeSet<u64> {
        let mut ranges = RangeSet::new();
        let mut from = range.start;
        loop {
            let extents = self.store.dmt.index().dirty(id, tail(from), EXTENTS_AT_ONCE);
            let within = extents.iter().filter_map(|extent| extent.range.intersect(range));
            ranges.extend(within.map(|part| part.start..part.end));
            match extents.last() {
                Some(last) if extents.len() == EXTENTS_AT_ONCE && last.range.end < range.end => {
                    from = last.range.end;
                }
                _ => return ranges,
            }
        }
    }
}

/// Whether a sweep of `file` ends in favour of another one: of any awaited one if nobody waits for this sweep,
/// otherwise of one that another node's programs wait for. A later sweep flushes the rest.
fn gives_way(file: &CachedFile, waits: Waits) -> bool {
    let count = match waits {
        Waits::NoOne => &file.awaited_flushes,
        Waits::Caller => &file.awaited_hand_overs,
        Waits::Node(_) => return false,
    };
    count.load(Ordering::Relaxed) > 0
}
