//! LRU and LFU over whole files: every miss that fits is admitted.

use std::collections::HashMap;

use super::{FileId, Keep, Outlook};

/// Orders by uses if it counts them, then by last use.
#[derive(Debug)]
pub(super) struct Recency {
    counts_uses: bool,
    /// Uses and last use of each file, since the beginning: LFU counts perfectly.
    seen: HashMap<FileId, (u64, u64)>,
    clock: u64,
}

impl Recency {
    pub(super) fn lru() -> Self {
        Self { counts_uses: false, seen: HashMap::new(), clock: 0 }
    }

    pub(super) fn lfu() -> Self {
        Self { counts_uses: true, seen: HashMap::new(), clock: 0 }
    }
}

impl Keep for Recency {
    fn referenced(&mut self, file: FileId, _bytes: u64) {
        self.clock += 1;
        let (uses, last) = self.seen.entry(file).or_default();
        *uses += u64::from(self.counts_uses);
        *last = self.clock;
    }

    fn removed(&mut self, file: FileId) {
        self.seen.remove(&file);
    }

    fn leaving(&mut self, mut cached: Vec<FileId>, _outlook: &dyn Outlook) -> Vec<FileId> {
        cached.sort_by_cached_key(|file| (self.seen.get(file).copied().unwrap_or_default(), *file));
        cached
    }
}
