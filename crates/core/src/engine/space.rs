//! Watches the free space of both sides, so that what is admitted can be stored and later flushed.

use std::sync::atomic::Ordering;

use super::parts::Parts;

/// The cache's file system keeps at least this much, or 1 % if that is less, for records and for
/// others.
const CACHE_RESERVE_BYTES: u64 = 64 << 20;

/// The origin must have room for what is dirty and this much more, or 1 % if that is less.
const ORIGIN_RESERVE_BYTES: u64 = 64 << 20;

impl Parts {
    /// Looks at both file systems; closes or reopens admission.
    pub(crate) fn check_space(&self) {
        self.health.set_full(self.lack_of_space());
    }

    fn lack_of_space(&self) -> Option<String> {
        let usage = self.store.dmt.usage();
        for server in self.store.objects.volume().servers() {
            let Ok(space) = server.device().space() else { continue };
            if space.available < CACHE_RESERVE_BYTES.min(space.total / 100) {
                return Some(format!(
                    "{} has only {} bytes free; free some or set a smaller --size",
                    server.dir().display(),
                    space.available
                ));
            }
        }
        for server in self.origin.servers() {
            let Ok(space) = server.device().space() else { continue };
            let reserve = ORIGIN_RESERVE_BYTES.min(space.total / 100);
            // Dirty bytes may all belong to holes: a promise to programs that only room keeps.
            if space.available < usage.dirty + reserve {
                return Some(format!(
                    "{} has only {} bytes free and {} bytes are still to be flushed; free some",
                    server.dir().display(),
                    space.available,
                    usage.dirty
                ));
            }
        }
        None
    }

    /// Whether anything was written to the cache since this was last asked.
    pub(crate) fn changed_since_barrier(&self) -> bool {
        let counts = self.counters.snapshot();
        let now = counts.ssd_bytes_written + counts.flushed_bytes + counts.evicted_bytes;
        self.barrier_mark.swap(now, Ordering::Relaxed) != now
    }
}
