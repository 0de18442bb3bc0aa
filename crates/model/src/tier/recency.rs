//! LRU and LFU over whole files: every miss that fits is admitted.

use std::collections::BTreeSet;

use super::{Keep, Trace};

/// Orders by uses if it counts them, then by last use.
#[derive(Debug)]
pub(super) struct Recency {
    counts_uses: bool,
    /// Uses and last use of each file, since the beginning: LFU counts perfectly.
    seen: Vec<(u64, usize)>,
}

impl Recency {
    pub(super) fn lru() -> Self {
        Self { counts_uses: false, seen: Vec::new() }
    }

    pub(super) fn lfu() -> Self {
        Self { counts_uses: true, seen: Vec::new() }
    }
}

impl Keep for Recency {
    fn referenced(&mut self, trace: &Trace, index: usize) {
        self.seen.resize(trace.sizes.len(), (0, 0));
        let (uses, last) = &mut self.seen[trace.refs[index]];
        *uses += u64::from(self.counts_uses);
        *last = index;
    }

    fn make_room(
        &mut self,
        trace: &Trace,
        index: usize,
        cached: &BTreeSet<usize>,
        free: u64,
    ) -> Option<Vec<usize>> {
        let size = trace.sizes[trace.refs[index]];
        let mut order: Vec<usize> = cached.iter().copied().collect();
        order.sort_by_key(|&file| self.seen[file]);
        let mut freed = free;
        let mut leaving = Vec::new();
        for file in order {
            if freed >= size {
                break;
            }
            freed += trace.sizes[file];
            leaving.push(file);
        }
        Some(leaving)
    }
}
