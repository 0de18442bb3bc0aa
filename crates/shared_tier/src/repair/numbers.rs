//! Numbers for what has none.

use halocline_cluster::names::NameStore;
use halocline_os::error::Result;

use super::of_store;

/// Gives unused numbers.
pub(crate) trait Numbers {
    /// No number from here on was ever given: a claim to one is false.
    fn first_unused(&self) -> u64;
    /// An unused number.
    fn fresh(&mut self) -> Result<u64>;
}

/// Takes numbers from the store, in blocks.
pub(super) struct StoreNumbers<'a> {
    store: &'a dyn NameStore,
    first: u64,
    next: u64,
    end: u64,
}

impl<'a> StoreNumbers<'a> {
    const BLOCK: u64 = 4096;

    pub(super) fn new(store: &'a dyn NameStore) -> Result<Self> {
        let first = store.reserve(Self::BLOCK).map_err(of_store)?;
        Ok(Self { store, first, next: first, end: first + Self::BLOCK })
    }
}

impl Numbers for StoreNumbers<'_> {
    fn first_unused(&self) -> u64 {
        self.first
    }

    fn fresh(&mut self) -> Result<u64> {
        if self.next == self.end {
            self.next = self.store.reserve(Self::BLOCK).map_err(of_store)?;
            self.end = self.next + Self::BLOCK;
        }
        self.next += 1;
        Ok(self.next - 1)
    }
}

/// Whether it is a number of the store, and not one of a dry run.
pub(super) const fn is_given_by_store(number: u64) -> bool {
    number < Shown::FIRST
}

/// Numbers for a dry run.
pub(super) struct Shown(u64);

impl Shown {
    /// What no store has given.
    const FIRST: u64 = 1 << 62;

    pub(super) const fn new() -> Self {
        Self(Self::FIRST)
    }
}

impl Numbers for Shown {
    fn first_unused(&self) -> u64 {
        Self::FIRST
    }

    fn fresh(&mut self) -> Result<u64> {
        self.0 += 1;
        Ok(self.0)
    }
}
