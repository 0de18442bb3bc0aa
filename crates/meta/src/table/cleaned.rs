//! Records of dirty bytes that were replaced because the bytes are not dirty any more.
//!
//! A power loss takes what was not synced, and so may bring such a record back. While nobody else changes the origin,
//! that only costs a flush of bytes that the origin has already. Where other nodes do, their newer bytes would be
//! overwritten, so the replacement is to be durable before they get the range.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Counts such replacements.
#[derive(Debug, Default)]
pub(super) struct Cleaned {
    noted: AtomicU64,
    durable: AtomicU64,
}

impl Cleaned {
    /// A replacement was committed. To be called before it is applied to memory, so that whoever sees no dirty bytes
    /// finds it counted.
    pub(super) fn note(&self) {
        self.noted.fetch_add(1, AcqRel);
    }

    /// How many there were, to be read before a sync.
    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Acquire)
    }

    /// A sync that began when `noted` had been counted has ended.
    pub(super) fn synced(&self, noted: u64) {
        self.durable.fetch_max(noted, AcqRel);
    }

    /// Whether a power loss may undo one of the `noted` first.
    pub(super) fn may_come_back(&self, noted: u64) -> bool {
        self.durable.load(Acquire) < noted
    }
}
