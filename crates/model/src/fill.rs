//! How much fills may evict (ours; docs/ALGORITHMS.md, section 4.3): bytes that programs read repeatedly are put on a
//! full cache, but bytes read once in a long while do not wear the SSD.

/// Programs must have read this many bytes for each byte that a fill evicts, on average.
const READ_PER_EVICTED: u64 = 8;

/// Bytes that fills may still evict.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    bytes: u64,
    /// Bytes that were evicted beyond the allowance: they must be earned first.
    owed: u64,
    /// The cache's limit, which the allowance never exceeds.
    limit: u64,
    /// Bytes that programs had read when it was last added to.
    read: u64,
}

impl Allowance {
    /// The allowance for a cache of `limit` bytes: nothing may be evicted yet. Allowing a whole cache once lost the
    /// gain of loops that do not fit: at each mount it cost one pass as much as it gained the next.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { bytes: 0, owed: 0, limit, read: 0 }
    }

    /// Programs have read `read` bytes in total, and the cache's limit is now `limit`.
    pub fn earn(&mut self, read: u64, limit: u64) {
        self.limit = limit;
        let earned = read.saturating_sub(self.read) / READ_PER_EVICTED;
        if earned > 0 {
            self.read = read;
            let paid = earned.min(self.owed);
            self.owed -= paid;
            self.bytes = self.bytes.saturating_add(earned - paid).min(limit);
        }
    }

    /// Whether a fill of `bytes` may evict.
    #[must_use]
    pub const fn allows(&self, bytes: u64) -> bool {
        self.bytes >= bytes
    }

    /// `bytes` were evicted for a fill, perhaps more than it needs: room is made for several at once.
    pub const fn spend(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_earns_an_eighth_of_it() {
        let mut allowance = Allowance::new(100);
        allowance.earn(7, 100);
        assert!(!allowance.allows(1), "less than a byte was earned");
        allowance.earn(16, 100);
        assert!(allowance.allows(2) && !allowance.allows(3));
        allowance.spend(2);
        assert!(!allowance.allows(1));
        allowance.spend(10);
        allowance.earn(16 + 10 * 8, 100);
        assert!(!allowance.allows(1), "what left in advance is owed");
        allowance.earn(16 + 11 * 8, 100);
        assert!(allowance.allows(1) && !allowance.allows(2));
        allowance.earn(u64::MAX, 100);
        assert!(allowance.allows(100) && !allowance.allows(101), "never more than the cache holds");
    }
}
