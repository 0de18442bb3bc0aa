//! Backpressure, as critical writes do on a mount (docs/ALGORITHMS.md, section 3.6).

use halocline_model::admit::Verdict;
use halocline_model::backpressure::backoff_writes;
use rustc_hash::FxHashMap;

/// A waiting write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) verdict: Verdict,
    pub(super) sequential: bool,
    /// When it goes to the origin instead.
    pub(super) until_ns: u64,
    /// Whether it waited before.
    pub(super) has_waited: bool,
    /// [`super::extents::Extents::changes`] when it last found no room: as long as that is the same, there is none.
    pub(super) changes: u64,
}

/// The writes that wait for the flush to make room.
#[derive(Debug, Default)]
pub(super) struct Backpressure {
    /// By [`super::super::issue::Issuer::serving`].
    waiters: FxHashMap<usize, Waiter>,
    /// How many more writes go to the origin without waiting.
    backoff_writes: u32,
    /// Waits in vain since one got room.
    in_vain: u32,
}

impl Backpressure {
    /// The write `serving`, which is issued again.
    pub(super) fn waiter(&mut self, serving: usize) -> Option<Waiter> {
        self.waiters.remove(&serving)
    }

    /// Whether any write waits.
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// A write got its room.
    pub(super) const fn got_room(&mut self, waiter: Waiter) {
        if waiter.has_waited {
            self.in_vain = 0;
        }
    }

    /// Lets the write `serving` wait until `made_ns`, when the flush may have made room, or until its time is over;
    /// `None` if it goes to the origin. It begins to wait only if there are too many dirty bytes (`is_short`).
    pub(super) fn wait(
        &mut self,
        serving: usize,
        now_ns: u64,
        waiter: Waiter,
        (is_short, made_ns): (bool, Option<u64>),
    ) -> Option<u64> {
        if waiter.until_ns <= now_ns {
            if waiter.has_waited {
                self.backoff_writes = backoff_writes(self.in_vain);
                self.in_vain = self.in_vain.saturating_add(1);
            }
            return None;
        }
        if !waiter.has_waited {
            if !is_short {
                return None;
            }
            if self.backoff_writes > 0 {
                self.backoff_writes -= 1;
                return None;
            }
        }
        self.waiters.insert(serving, Waiter { has_waited: true, ..waiter });
        Some(
            made_ns.map_or(waiter.until_ns, |made_ns| made_ns.min(waiter.until_ns)).max(now_ns + 1),
        )
    }
}
