//! What a file tier has done since the mount began.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::tier::{Moved, Opens, ReadsAndWrites, Requests};

/// Counters that only grow.
#[derive(Debug, Default)]
pub struct Counters {
    promoted_files: AtomicU64,
    promoted_bytes: AtomicU64,
    demoted_files: AtomicU64,
    demoted_bytes: AtomicU64,
    cut_over_files: AtomicU64,
    cut_over_bytes: AtomicU64,
    archived_files: AtomicU64,
    archived_bytes: AtomicU64,
    opens_hit: AtomicU64,
    opens_promoted: AtomicU64,
    opens_in_place: AtomicU64,
    on_ssd: Traffic,
    in_place: Traffic,
}

/// Requests that the mount process served, and their bytes. The two additions for one of them are
/// to one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Traffic {
    fn served(&self) -> ReadsAndWrites {
        ReadsAndWrites {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }
}

/// Where an opened file was.
#[derive(Debug, Clone, Copy)]
pub enum Opening {
    /// On the SSD already.
    Hit,
    /// On a lower tier, and brought to the SSD.
    Promoted,
    /// On a lower tier, and served there.
    InPlace,
}

impl Counters {
    /// A file of `bytes` bytes came to the SSD, or went down.
    pub fn moved(&self, to_ssd: bool, bytes: u64) {
        let (files, sum) = if to_ssd {
            (&self.promoted_files, &self.promoted_bytes)
        } else {
            (&self.demoted_files, &self.demoted_bytes)
        };
        files.fetch_add(1, Relaxed);
        sum.fetch_add(bytes, Relaxed);
    }

    /// A file of `bytes` bytes went down by a cutover to its clean copy.
    pub fn cut_over(&self, bytes: u64) {
        self.moved(false, bytes);
        self.cut_over_files.fetch_add(1, Relaxed);
        self.cut_over_bytes.fetch_add(bytes, Relaxed);
    }

    /// A file of `bytes` bytes was archived.
    pub fn archived(&self, bytes: u64) {
        self.archived_files.fetch_add(1, Relaxed);
        self.archived_bytes.fetch_add(bytes, Relaxed);
    }

    /// A file was opened.
    pub fn opened(&self, how: Opening) {
        let counter = match how {
            Opening::Hit => &self.opens_hit,
            Opening::Promoted => &self.opens_promoted,
            Opening::InPlace => &self.opens_in_place,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// A read of `bytes` bytes was served on `tier`.
    pub fn read(&self, tier: usize, bytes: usize) {
        let traffic = self.on(tier);
        traffic.reads.fetch_add(1, Relaxed);
        traffic.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A write of `bytes` bytes was served, its last part on `tier`.
    pub fn written(&self, tier: usize, bytes: usize) {
        let traffic = self.on(tier);
        traffic.writes.fetch_add(1, Relaxed);
        traffic.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    const fn on(&self, tier: usize) -> &Traffic {
        if tier == 0 { &self.on_ssd } else { &self.in_place }
    }

    /// Reads and writes.
    pub fn requests(&self) -> Requests {
        Requests { on_ssd: self.on_ssd.served(), in_place: self.in_place.served() }
    }

    /// What came to the SSD.
    pub fn promoted(&self) -> Moved {
        Moved { files: self.promoted_files.load(Relaxed), bytes: self.promoted_bytes.load(Relaxed) }
    }

    /// What went down.
    pub fn demoted(&self) -> Moved {
        Moved { files: self.demoted_files.load(Relaxed), bytes: self.demoted_bytes.load(Relaxed) }
    }

    /// What went down by a cutover.
    pub fn demoted_to_copies(&self) -> Moved {
        Moved { files: self.cut_over_files.load(Relaxed), bytes: self.cut_over_bytes.load(Relaxed) }
    }

    /// What was archived.
    pub fn all_archived(&self) -> Moved {
        Moved { files: self.archived_files.load(Relaxed), bytes: self.archived_bytes.load(Relaxed) }
    }

    /// Opens.
    pub fn opens(&self) -> Opens {
        Opens {
            hits: self.opens_hit.load(Relaxed),
            promoted: self.opens_promoted.load(Relaxed),
            in_place: self.opens_in_place.load(Relaxed),
        }
    }
}
