//! Fills: bytes that programs read repeatedly are put on the cache from a read's own buffer (ours; docs/ALGORITHMS.md,
//! section 4.3). A fill costs the origin nothing, so it need not wait until the origin is idle.
//!
//! A fill follows a critical read that missed bytes which had been missed before; bytes that are read once are only
//! marked wanted. The program's thread queues a copy of its bytes and continues; one thread writes them. The queue is
//! bounded, and a fill that finds it full is dropped: the next read offers it again.
//!
//! What must hold:
//! - bytes that changed since they were read are not put on the cache (I1). A write, a truncate, an eviction or the
//!   discovery of a change behind the mount (I9) holds the range exclusively, which ends the [`Watch`] that began under
//!   the read's own lock. A change behind the mount that is not yet discovered shows in the file's stamp;
//! - only complete reads fill: bytes that the origin did not return are not the file's;
//! - blocks are reserved before the write (I5), free ones first. Before a fill evicts, programs must have read eight
//!   times as many bytes, and must read the fill's range more often than what is on the cache: this bounds the wear that
//!   fills cause on the SSD.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use bon::Builder;
use halocline_model::fill::Allowance;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use parking_lot::{Condvar, Mutex};

use crate::counters::Counters;
use crate::defects::Defects;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::fetch::Fetcher;
use crate::health::Health;
use crate::known_files::KnownFiles;
use crate::range_lock::Watch;
use halocline_meta::{CriticalRange, FileId, Stamp};
use halocline_os::clock::{Clock, Work};
use halocline_os::error::Result;
use halocline_vfs::namespace::Namespace;

/// Limit of the bytes that wait to be filled; a request of more than a quarter of this is not queued.
const QUEUE_BYTES_MAX: usize = 32 << 20;

/// How many missed ranges are remembered: twice the blocks of the cache, within these bounds.
const MISSED_MIN: u64 = 1 << 12;
const MISSED_MAX: u64 = 1 << 21;

/// Ticks for each cache's worth of reads, of the clock that dates missed ranges. It wraps around after 64 caches'
/// worth: a range that was missed longer ago seems to have been missed more recently.
const TICKS: u64 = 1 << 10;

/// Ranges that reads missed before: one fingerprint per slot, with the time, and a newer one replaces an older one. A
/// lost one delays a fill by one pass, and a collision (one in 2^15) fills one pass early.
#[derive(Debug)]
struct MissedRanges {
    /// The fingerprint above the time, 16 bits each.
    places: Box<[AtomicU32]>,
    /// Bytes that programs read in a tick.
    tick: u64,
}

impl MissedRanges {
    fn for_cache(bytes: u64) -> Self {
        let places = (bytes / halocline_meta::BLOCK * 2).clamp(MISSED_MIN, MISSED_MAX);
        let places = places.next_power_of_two();
        let places = (0..places).map(|_| AtomicU32::new(0)).collect();
        Self { places, tick: (bytes / TICKS).max(1) }
    }

    /// Notes a range when programs have read `read` bytes; returns how many of them since it was noted before.
    fn note(&self, file: FileId, range: ByteRange, read: u64) -> Option<u64> {
        // SplitMix64's mixer: every input bit affects every output bit.
        let mix = |mut bits: u64| {
            bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^ bits >> 31
        };
        let hash = mix(mix(mix(file.0) ^ range.start) ^ range.end);
        let at = usize::try_from(hash).unwrap_or(usize::MAX) & (self.places.len() - 1);
        let [high, low, ..] = hash.to_be_bytes();
        let fingerprint = u16::from_be_bytes([high, low]) | 1;
        let time = u16::try_from((read / self.tick) & u64::from(u16::MAX)).expect("16 bits");
        let noted = u32::from(fingerprint) << 16 | u32::from(time);
        let [a, b, c, d] = self.places[at].swap(noted, Ordering::Relaxed).to_be_bytes();
        let before = u16::from_be_bytes([c, d]);
        // Rounded up: a range that was already missed in this tick was not missed at the same moment.
        let ticks = u64::from(time.wrapping_sub(before)) + 1;
        (u16::from_be_bytes([a, b]) == fingerprint).then(|| ticks * self.tick)
    }
}

/// One read whose bytes are to be put on the cache.
#[derive(Debug)]
struct Fill {
    file: Arc<CachedFile>,
    wanted: CriticalRange,
    data: Vec<u8>,
    watch: Watch,
    /// Bytes that programs read since the range was missed before.
    reuse: u64,
}

/// The queue of fills.
#[derive(Debug, Builder)]
pub(crate) struct Fills {
    store: Arc<ExtentStore>,
    counters: Arc<Counters>,
    health: Arc<Health>,
    defects: Arc<Defects>,
    namespace: Arc<Namespace>,
    clock: Clock,
    known: Arc<KnownFiles>,
    fetcher: Arc<Fetcher>,
    #[builder(skip = MissedRanges::for_cache(store.dmt.space().limit()))]
    missed: MissedRanges,
    enabled: bool,
    #[builder(skip)]
    queue: Mutex<Queue>,
    #[builder(skip)]
    more: Condvar,
    #[builder(skip)]
    filled: AtomicU64,
    /// Whether the last fill that needed room did not find any.
    #[builder(skip)]
    without_room: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    fills: VecDeque<Fill>,
    bytes: usize,
    stop: bool,
}

impl Fills {
    /// Bytes put on the cache so far.
    pub(crate) fn filled_bytes(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Whether fills are held back because the cache is full and their eviction allowance is used up.
    pub(crate) fn lack_room(&self) -> bool {
        self.without_room.load(Ordering::Relaxed)
    }

    /// Queues a fill unless the queue is full.
    fn push(&self, fill: Fill) -> bool {
        let mut queue = self.queue.lock();
        let length = fill.data.len();
        if queue.stop || queue.bytes + length > QUEUE_BYTES_MAX {
            return false;
        }
        queue.bytes += length;
        queue.fills.push_back(fill);
        drop(queue);
        self.more.notify_one();
        true
    }

    /// The next fill, or `None` once stopped.
    fn next(&self) -> Option<Fill> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(fill) = queue.fills.pop_front() {
                queue.bytes -= fill.data.len();
                return Some(fill);
            }
            self.more.wait(&mut queue);
        }
    }
}

/// The thread that writes fills to the cache.
#[derive(Debug)]
pub(crate) struct Filler {
    fills: Arc<Fills>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Filler {
    /// Starts the thread if fills are enabled.
    pub(crate) fn start(fills: &Arc<Fills>) -> Self {
        let thread = fills.enabled.then(|| {
            let (fills, work) = (Arc::clone(fills), fills.clock.work());
            thread::Builder::new()
                .name("filler".to_owned())
                .spawn(move || fills.fill_all(work))
                .expect("the system can start one more thread")
        });
        Self { fills: Arc::clone(fills), thread: Mutex::new(thread) }
    }

    /// Stops the thread; fills that are still queued are dropped.
    pub(crate) fn stop(&self) {
        self.fills.queue.lock().stop = true;
        self.fills.more.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        let left = std::mem::take(&mut self.fills.queue.lock().fills);
        drop(left);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Fills {
    /// A critical read missed bytes of `range`; `data` has all bytes of `range`. The caller holds a lock of the range
    /// that excludes writers. If the range was missed before, its bytes are queued for the filler; otherwise it is
    /// marked wanted, and the rebuilder fetches it when it may.
    pub(crate) fn missed(
        &self,
        file: &Arc<CachedFile>,
        placement: Placement,
        range: ByteRange,
        data: &[u8],
    ) -> Result<()> {
        let id = self.known.id_of(file)?;
        let wanted = CriticalRange { file: id, range, placement };
        let read = self.counters.reads().bytes;
        if self.enabled
            && data.len() <= QUEUE_BYTES_MAX / 4
            && let Some(reuse) = self.missed.note(id, range, read)
        {
            let watch = file.range.watch(range);
            let data = data.to_vec();
            if self.push(Fill { file: Arc::clone(file), wanted, data, watch, reuse }) {
                return Ok(());
            }
        }
        self.fetcher.want(wanted);
        Ok(())
    }

    fn fill_all(&self, work: Work) {
        let _working = work.begin();
        let mut allowance = Allowance::new(self.store.dmt.space().limit());
        while let Some(fill) = self.next() {
            allowance.earn(self.counters.reads(), self.store.dmt.space().limit());
            // Failures are counted and reported by the cache's health; no caller waits for the result.
            let _ = self.defects.guard("filler", || self.fill(&fill, &mut allowance));
            let Fill { file, watch, .. } = fill;
            drop(watch);
            let _ = self.defects.guard("filler", || {
                self.known.forget_idle(&file);
                Ok(())
            });
        }
    }

    fn fill(&self, fill: &Fill, allowance: &mut Allowance) -> Result<()> {
        let Fill { file, wanted, data, watch, reuse } = fill;
        if file.is_kept_out() || !self.health.admits(self.clock.now_ms()) {
            return Ok(());
        }
        let Some(_guard) = watch.exclusive() else { return Ok(()) };
        if wanted.range.end > file.size() || !self.is_as_read(file) {
            return Ok(());
        }
        let evict = allowance.allows(wanted.range.len(), *reuse);
        let Some((brought, evicted)) = self.fetcher.put(file, wanted, evict, Some(data))? else {
            self.without_room.store(true, Ordering::Relaxed);
            self.fetcher.want(*wanted);
            return Ok(());
        };
        self.without_room.store(false, Ordering::Relaxed);
        // Not `brought`: one eviction makes room for many fills.
        allowance.spend(evicted);
        self.filled.fetch_add(brought, Ordering::Relaxed);
        self.health.worked();
        Ok(())
    }

    /// Whether the origin's file is unchanged behind the mount since it was opened (I9). During a change by this mount
    /// that cannot be determined; such a change ends the watch.
    fn is_as_read(&self, file: &CachedFile) -> bool {
        let vnode = file.vnode.read().clone();
        let found = self.namespace.stat(&vnode).map(|stat| Stamp::of_stat(&stat.raw));
        let last_seen = file.last_seen.lock();
        last_seen.is_hidden()
            || !last_seen.is_external() && found.is_ok_and(|found| found == last_seen.stamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_known_the_second_time() {
        let missed = MissedRanges::for_cache(1 << 20);
        let ranges = || (0..64).map(|at| ByteRange::at(at * 4096, 4096));
        let known = |file, read| {
            ranges().filter(|range| missed.note(FileId(file), *range, read).is_some()).count()
        };
        assert_eq!(known(1, 0), 0);
        assert!(known(1, 4096) > 56);
        assert_eq!(known(2, 8192), 0);
    }

    #[test]
    fn how_long_ago_a_range_was_missed_is_known_to_a_tick() {
        let missed = MissedRanges::for_cache(1 << 20);
        let note = |read| missed.note(FileId(1), ByteRange::at(0, 4096), read);
        assert_eq!(note(5000), None);
        assert_eq!(note(5000), Some(1024));
        assert_eq!(note(5000 + (100 << 10)), Some(101 << 10));
        // Three caches later, over the turn of the clock.
        note((63 << 20) + 1024);
        assert_eq!(note((66 << 20) + 1024), Some((3 << 20) + 1024));
    }
}
