//! A fixed pseudo-random sequence (xorshift64), so that a benchmark does the same in every run.

/// The sequence for one seed, which must not be 0.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        debug_assert!(seed != 0, "0 stays 0");
        Self(seed)
    }

    /// The next one, below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
