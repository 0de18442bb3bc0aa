//! Bytes and numbers of all extents.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::load::Counts;
use crate::record::ExtentRecord;
use crate::write_intent::HELD;
use crate::{BLOCK, Usage};

/// Sums over all extents. Each change of an extent is counted while its file's `mapped` is locked for writing.
#[derive(Debug, Default)]
pub(super) struct Sums {
    mapped: AtomicU64,
    dirty: AtomicU64,
    held: AtomicU64,
    extents: AtomicU64,
    dirty_extents: AtomicU64,
}

impl Sums {
    /// The sums of the extents that were loaded, none of which is held.
    pub(super) fn of(counts: Counts) -> Self {
        let Counts { mapped, dirty, extents, dirty_extents } = counts;
        Self {
            mapped: mapped.into(),
            dirty: dirty.into(),
            held: 0.into(),
            extents: extents.into(),
            dirty_extents: dirty_extents.into(),
        }
    }

    /// Adds an extent (`sign` 1) or subtracts it (-1).
    pub(super) fn count(&self, record: &ExtentRecord, sign: i64) {
        let bytes = sign.cast_unsigned().wrapping_mul(record.range.len());
        let one = sign.cast_unsigned();
        self.mapped.fetch_add(bytes, Relaxed);
        self.extents.fetch_add(one, Relaxed);
        if record.dirty {
            self.dirty.fetch_add(bytes, Relaxed);
            self.dirty_extents.fetch_add(one, Relaxed);
        } else if record.epoch == HELD {
            self.held.fetch_add(bytes, Relaxed);
        }
    }

    /// Whether dirty neighbours hold any clean bytes.
    pub(super) fn any_held(&self) -> bool {
        self.held.load(Relaxed) > 0
    }

    /// An upper bound of the bytes that eviction can free, found without looking at any extent.
    pub(super) fn evictable_at_most(&self) -> u64 {
        let clean = |all: u64, dirty: u64| all.saturating_sub(dirty);
        let bytes = clean(self.mapped.load(Relaxed), self.dirty.load(Relaxed));
        let extents = clean(self.extents.load(Relaxed), self.dirty_extents.load(Relaxed));
        bytes.saturating_add(extents.saturating_mul(2 * BLOCK))
    }

    /// All sums, with the bytes that are `used` on the device.
    pub(super) fn usage(&self, used: u64) -> Usage {
        Usage {
            used,
            mapped: self.mapped.load(Relaxed),
            dirty: self.dirty.load(Relaxed),
            held: self.held.load(Relaxed),
            extents: self.extents.load(Relaxed),
            dirty_extents: self.dirty_extents.load(Relaxed),
        }
    }
}
