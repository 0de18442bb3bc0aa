//! What a file tier has done since the mount began.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::tier::{Moved, Opens};

/// Counters that only grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    promoted_files: AtomicU64,
    promoted_bytes: AtomicU64,
    demoted_files: AtomicU64,
    demoted_bytes: AtomicU64,
    opens_hit: AtomicU64,
    opens_promoted: AtomicU64,
    opens_in_place: AtomicU64,
}

/// Where an opened file was.
#[derive(Debug, Clone, Copy)]
pub(super) enum Opening {
    Hit,
    Promoted,
    InPlace,
}

impl Counters {
    /// A file of `bytes` bytes came to the SSD, or went down.
    pub(super) fn moved(&self, to_ssd: bool, bytes: u64) {
        let (files, sum) = if to_ssd {
            (&self.promoted_files, &self.promoted_bytes)
        } else {
            (&self.demoted_files, &self.demoted_bytes)
        };
        files.fetch_add(1, Relaxed);
        sum.fetch_add(bytes, Relaxed);
    }

    /// A file was opened.
    pub(super) fn opened(&self, how: Opening) {
        let counter = match how {
            Opening::Hit => &self.opens_hit,
            Opening::Promoted => &self.opens_promoted,
            Opening::InPlace => &self.opens_in_place,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn promoted(&self) -> Moved {
        Moved { files: self.promoted_files.load(Relaxed), bytes: self.promoted_bytes.load(Relaxed) }
    }

    pub(super) fn demoted(&self) -> Moved {
        Moved { files: self.demoted_files.load(Relaxed), bytes: self.demoted_bytes.load(Relaxed) }
    }

    pub(super) fn opens(&self) -> Opens {
        Opens {
            hits: self.opens_hit.load(Relaxed),
            promoted: self.opens_promoted.load(Relaxed),
            in_place: self.opens_in_place.load(Relaxed),
        }
    }
}
