//! Counters of what the engine did: requests and bytes by side and direction, admissions by layout, predicted and
//! measured times. Lock-free; summed on request.

use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::fill::Reads;
use halocline_model::layout::Layout;
use halocline_model::request::Direction;
use serde::{Deserialize, Serialize};

/// One direction's request distribution, as in the papers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Requests served.
    pub requests: u64,
    /// Bytes served.
    pub bytes: u64,
    /// Requests of which the cache served every byte.
    pub cache_requests: u64,
    /// Bytes that the cache served.
    pub cache_bytes: u64,
}

/// A snapshot of all counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Reads.
    pub read: Distribution,
    /// Writes.
    pub write: Distribution,
    /// Segments of writes admitted to the cache.
    pub admitted_requests: u64,
    /// Bytes admitted.
    pub admitted_bytes: u64,
    /// Bytes admitted or fetched by layout, in the order of [`Layout::ALL`].
    pub layout_bytes: [u64; Layout::ALL.len()],
    /// Bytes written to the cache for any reason.
    pub ssd_bytes_written: u64,
    /// Dirty bytes written back to the origin.
    pub flushed_bytes: u64,
    /// Bytes fetched from the origin to the cache.
    pub fetched_bytes: u64,
    /// Bytes evicted from the cache.
    pub evicted_bytes: u64,
    /// Critical bytes sent to the origin because the cache had no room.
    pub no_room_bytes: u64,
    /// Time spent flushing on request, in microseconds.
    pub flush_us: u64,
    /// Errors of the cache's devices that a request met.
    pub cache_errors: u64,
    /// Clean bytes that were damaged on the cache and came from the origin instead.
    pub damaged_clean_bytes: u64,
    /// Files with dirty bytes that others changed.
    pub conflicts: u64,
}

/// The live counters.
#[derive(Debug, Default)]
pub struct Counters {
    read: Cells,
    write: Cells,
    admitted_requests: AtomicU64,
    admitted_bytes: AtomicU64,
    layout_bytes: [AtomicU64; Layout::ALL.len()],
    ssd_bytes_written: AtomicU64,
    flushed_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    evicted_bytes: AtomicU64,
    no_room_bytes: AtomicU64,
    flush_us: AtomicU64,
    cache_errors: AtomicU64,
    damaged_clean_bytes: AtomicU64,
    conflicts: AtomicU64,
}

#[derive(Debug, Default)]
struct Cells {
    requests: AtomicU64,
    bytes: AtomicU64,
    cache_requests: AtomicU64,
    cache_bytes: AtomicU64,
}

fn add(cell: &AtomicU64, amount: u64) {
    cell.fetch_add(amount, Ordering::Relaxed);
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

impl Counters {
    /// Counts a request of `bytes` bytes, `cached` of them served by the cache.
    pub(crate) fn request(&self, direction: Direction, bytes: u64, cached: u64) {
        let cells = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        add(&cells.requests, 1);
        add(&cells.bytes, bytes);
        if cached > 0 {
            add(&cells.cache_bytes, cached);
            add(&cells.cache_requests, u64::from(cached == bytes));
        }
    }

    pub(crate) fn admitted(&self, bytes: u64, layout: Layout) {
        add(&self.admitted_requests, 1);
        add(&self.admitted_bytes, bytes);
        add(&self.layout_bytes[layout as usize], bytes);
    }

    pub(crate) fn ssd_written(&self, bytes: u64) {
        add(&self.ssd_bytes_written, bytes);
    }

    pub(crate) fn flushed(&self, bytes: u64) {
        add(&self.flushed_bytes, bytes);
    }

    pub(crate) fn fetched(&self, bytes: u64, layout: Layout) {
        add(&self.fetched_bytes, bytes);
        add(&self.layout_bytes[layout as usize], bytes);
    }

    pub(crate) fn evicted(&self, bytes: u64) {
        add(&self.evicted_bytes, bytes);
    }

    pub(crate) fn no_room(&self, bytes: u64) {
        add(&self.no_room_bytes, bytes);
    }

    /// Bytes that programs have read so far.
    pub(crate) fn reads(&self) -> Reads {
        Reads { bytes: get(&self.read.bytes), from_cache: get(&self.read.cache_bytes) }
    }

    pub(crate) fn flush_time(&self, time: std::time::Duration) {
        add(&self.flush_us, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn cache_error(&self) {
        add(&self.cache_errors, 1);
    }

    pub(crate) fn damaged_clean(&self, bytes: u64) {
        add(&self.damaged_clean_bytes, bytes);
    }

    /// Counts a file whose dirty bytes could not be flushed because others changed it.
    pub(crate) fn conflict(&self) {
        add(&self.conflicts, 1);
    }

    /// All counters now.
    pub fn snapshot(&self) -> Counts {
        let distribution = |cells: &Cells| Distribution {
            requests: get(&cells.requests),
            bytes: get(&cells.bytes),
            cache_requests: get(&cells.cache_requests),
            cache_bytes: get(&cells.cache_bytes),
        };
        Counts {
            read: distribution(&self.read),
            write: distribution(&self.write),
            admitted_requests: get(&self.admitted_requests),
            admitted_bytes: get(&self.admitted_bytes),
            layout_bytes: self.layout_bytes.each_ref().map(get),
            ssd_bytes_written: get(&self.ssd_bytes_written),
            flushed_bytes: get(&self.flushed_bytes),
            fetched_bytes: get(&self.fetched_bytes),
            evicted_bytes: get(&self.evicted_bytes),
            no_room_bytes: get(&self.no_room_bytes),
            flush_us: get(&self.flush_us),
            cache_errors: get(&self.cache_errors),
            damaged_clean_bytes: get(&self.damaged_clean_bytes),
            conflicts: get(&self.conflicts),
        }
    }
}
