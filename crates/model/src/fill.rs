//! Which fills may evict (ours; docs/ALGORITHMS.md, section 4.3): bytes that programs read repeatedly are put on a
//! full cache, but not in exchange for bytes that they read as often, and not so many that they wear the SSD.
//!
//! The clock is the number of bytes that programs have read. A range that was read again after `reuse` of them is worth
//! its place if what is on the cache is read again more slowly: the principle of LIRS (Jiang and Zhang, SIGMETRICS 2002),
//! here of all cached bytes together, because a time for each would take more memory than an extent has. In a loop over
//! more than fits, all are read once a round, and nothing is exchanged. If programs have gone over to other bytes, the
//! cache is not read any more, and all of it may leave.

/// Programs must have read this many bytes for each byte that a fill evicts, on average.
const READ_PER_EVICTED: u64 = 8;

/// What is on the cache is watched for this many times as long as the fill's range took to be read again.
const WATCHED_PER_REUSE: u64 = 2;

/// A fill may not evict if, in the time its range took to be read again, programs read more than one in so many bytes of
/// what the cache may hold. Of a loop that began in the middle of a round, nearly three rounds may have been watched with
/// the hits of two.
const USED_ONE_IN: u64 = 2;

/// Bytes that fills may still evict, and how much programs use what is on the cache.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    bytes: u64,
    /// Bytes that were evicted beyond the allowance: they must be earned first.
    debt: u64,
    /// The cache's limit, which the allowance never exceeds.
    limit: u64,
    /// What programs had read when it was last added to.
    earned: Reads,
    /// What programs have read by now.
    now: Reads,
    /// What they had read when the watch began: since then the cache has held about what it holds now.
    watched: Reads,
    /// Bytes that fills have evicted since then.
    exchanged: u64,
}

/// Bytes that programs have read since the mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reads {
    /// All of them.
    pub bytes: u64,
    /// Those that came from the cache.
    pub from_cache: u64,
}

impl Allowance {
    /// The allowance for a cache of `limit` bytes: nothing may be evicted yet. Allowing a whole cache once lost the
    /// gain of loops that do not fit: at each mount it cost one pass as much as it gained the next.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let none = Reads::default();
        Self { bytes: 0, debt: 0, limit, earned: none, now: none, watched: none, exchanged: 0 }
    }

    /// Programs have read this much in total, and the cache's limit is now `limit`.
    pub fn earn(&mut self, reads: Reads, limit: u64) {
        (self.now, self.limit) = (reads, limit);
        let earned = reads.bytes.saturating_sub(self.earned.bytes) / READ_PER_EVICTED;
        if earned > 0 {
            self.earned = reads;
            let paid = earned.min(self.debt);
            self.debt -= paid;
            self.bytes = self.bytes.saturating_add(earned - paid).min(limit);
        }
    }

    /// Whether a fill of `bytes` may evict; programs read `reuse` bytes in all between the last two reads of its range.
    #[must_use]
    pub fn allows(&mut self, bytes: u64, reuse: u64) -> bool {
        self.bytes >= bytes && !self.is_used(reuse)
    }

    /// Whether what is on the cache is read again as quickly as after `reuse` bytes, or may be.
    fn is_used(&mut self, reuse: u64) -> bool {
        let watched = self.now.bytes.saturating_sub(self.watched.bytes);
        let enough = reuse.saturating_mul(WATCHED_PER_REUSE);
        if watched == 0 || watched < enough {
            return true;
        }
        let from_cache = self.now.from_cache.saturating_sub(self.watched.from_cache);
        let used = u128::from(from_cache) * u128::from(reuse) / u128::from(watched);
        let is_used = used * u128::from(USED_ONE_IN) > u128::from(self.limit);
        if is_used && watched >= enough.saturating_mul(2) {
            // What was used long ago need not be used now.
            self.watch();
        }
        is_used
    }

    /// A fill was put on the cache and `bytes` were evicted for it, perhaps more than it needs: room is made for several
    /// at once.
    pub const fn spend(&mut self, bytes: u64) {
        self.debt = self.debt.saturating_add(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_sub(bytes);
        self.exchanged = self.exchanged.saturating_add(bytes);
        // What was just put there must have its time to be read again. Of what was exchanged only a part is new.
        if self.exchanged == 0 || self.exchanged >= self.limit {
            self.watch();
        }
    }

    const fn watch(&mut self) {
        (self.watched, self.exchanged) = (self.now, 0);
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    fn reads(bytes: u64, from_cache: u64) -> Reads {
        Reads { bytes, from_cache }
    }

    /// Whether a fill of `bytes` may evict whose range took no time to be read again.
    fn allows(allowance: &mut Allowance, bytes: u64) -> bool {
        allowance.allows(bytes, 0)
    }

    #[test]
    fn what_is_read_earns_an_eighth_of_it() {
        let mut allowance = Allowance::new(100);
        allowance.earn(reads(7, 0), 100);
        assert!(!allows(&mut allowance, 1), "less than a byte was earned");
        allowance.earn(reads(16, 0), 100);
        assert!(allows(&mut allowance, 2) && !allows(&mut allowance, 3));
        allowance.spend(2);
        assert!(!allows(&mut allowance, 1));
        allowance.spend(10);
        allowance.earn(reads(16 + 10 * 8, 0), 100);
        assert!(!allows(&mut allowance, 1), "what left in advance is a debt");
        allowance.earn(reads(16 + 11 * 8, 0), 100);
        assert!(allows(&mut allowance, 1) && !allows(&mut allowance, 2));
        allowance.earn(reads(u64::MAX, 0), 100);
        assert!(allows(&mut allowance, 100) && !allows(&mut allowance, 101), "at most a cache");
    }

    /// An allowance of a cache of 100 bytes after a loop over 400, in which 100 are read from the cache each time.
    fn after_a_loop() -> Allowance {
        let mut allowance = Allowance::new(100);
        allowance.earn(reads(500, 0), 100);
        allowance.spend(0);
        allowance.earn(reads(1300, 200), 100);
        allowance
    }

    #[test]
    fn what_is_read_as_often_is_not_exchanged() {
        let mut allowance = Allowance::new(100);
        for read in (400..=500).step_by(10) {
            allowance.earn(reads(read, 0), 100);
            allowance.spend(0);
        }
        allowance.earn(reads(1299, 100), 100);
        assert!(!allowance.allows(1, 400), "what was put there had no time to be read again");
        allowance.earn(reads(1300, 200), 100);
        assert!(!allowance.allows(1, 400), "all of it is read as often");
        for round in 4..20 {
            allowance.earn(reads(round * 400, (round - 2) * 100), 100);
            assert!(!allowance.allows(1, 400), "{round}");
        }
        assert!(after_a_loop().allows(1, 200), "that is read more often");
        assert!(!after_a_loop().allows(1, 204));
    }

    #[test]
    fn a_set_of_the_same_size_takes_over_after_a_few_rounds() {
        let mut allowance = Allowance::new(100);
        // All that is on the cache is read a hundred times, then other bytes.
        allowance.earn(reads(10_000, 9_900), 100);
        let round = (1..20).find(|round| {
            allowance.earn(reads(10_000 + round * 100, 9_900), 100);
            allowance.allows(100, 100)
        });
        assert_eq!(round, Some(3));
    }

    #[test]
    fn what_is_not_read_any_more_leaves() {
        let mut allowance = after_a_loop();
        assert!(!allowance.allows(1, 400));
        // Programs go over to 80 other bytes.
        allowance.earn(reads(1300 + 80, 200), 100);
        assert!(allowance.allows(100, 80), "what is on the cache was read once in 400");
        allowance.spend(50);
        assert!(allowance.allows(50, 80), "the others follow at once");
        allowance.spend(50);
        allowance.earn(reads(1380 + 400, 200 + 400), 100);
        assert!(!allowance.allows(1, 100), "what came instead is read");
    }
}
