//! A fixed pseudo-random sequence (xorshift64): a benchmark does the same at every run.

/// The sequence of one seed, which is not 0.
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
