//! Copies of one file's blocks that other nodes reported to have on their caches. Nothing here waits for a node.
//!
//! What must hold: another node reported each copy under its token, and this node has held the same bytes
//! shared since before it asked (`docs/decisions/0041-reads-from-other-nodes-caches.md`). So whoever gives up a range,
//! or is about to change it, drops it here first; what is dropped while a question is in progress is not taken from the
//! answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use halocline_model::layout::CacheGeometry;
use halocline_model::request::ByteRange;
use parking_lot::{Mutex, MutexGuard};

use crate::coherence::{BLOCK, Blocks, Copies, PeerCache};

/// Bytes of a file that one question covers: as many as a node gives up at once for a reader.
pub(crate) const WINDOW: u64 = halocline_model::token::REGION;
/// After this time another node may have more than it said, in milliseconds.
const ASKED_FOR_MS: u64 = 10_000;
/// The same where some node could not state everything.
const ASKED_AGAIN_MS: u64 = 100;
/// The most that is remembered of one file, in units of a block's checksum: 32 GiB of it in long copies.
const ONE_FILE_MAX: usize = 8 << 20;
/// The most that is remembered of all files together: about 64 MiB of memory.
const ALL_FILES_MAX: usize = 16 << 20;
/// What a copy takes beside its blocks' checksums, in the same units.
const COPY_WEIGHT: usize = 32;
/// The most windows of one file that are remembered as asked.
const WINDOWS_MAX: usize = 1 << 16;

/// Consecutive blocks that can be read from another node's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) cache: Arc<PeerCache>,
    pub(crate) geometry: CacheGeometry,
    pub(crate) blocks: Blocks,
}

/// How much the files of one engine remember together, in units of [`Copy::weight`].
#[derive(Debug, Default)]
pub(crate) struct Remembered(AtomicUsize);

impl Copy {
    /// The memory that it takes, in units of a block's checksum.
    const fn weight(&self) -> usize {
        self.blocks.sums.len() + COPY_WEIGHT
    }

    /// Its blocks from `from` up to but not including `to`.
    fn cut(&self, from: u64, to: u64) -> Option<Self> {
        let Blocks { file, placement, first, sums } = &self.blocks;
        let (from, to) = (from.max(*first), to.min(*first + sums.len() as u64));
        if from >= to {
            return None;
        }
        let at = |block: u64| usize::try_from(block - first).expect("it indexes the sums");
        let sums = sums[at(from)..at(to)].to_vec();
        let blocks = Blocks { file: *file, placement: *placement, first: from, sums };
        Some(Self { cache: Arc::clone(&self.cache), geometry: self.geometry, blocks })
    }
}

/// What other nodes have said of one file.
#[derive(Debug, Default)]
pub(crate) struct PeerCopies {
    /// Whether there may be anything to drop.
    is_used: AtomicBool,
    known: Mutex<FileCopies>,
    /// Held while others are asked.
    asking: Mutex<()>,
}

#[derive(Debug, Default)]
struct FileCopies {
    /// Indexed by the first block; they do not overlap.
    copies: BTreeMap<u64, Copy>,
    /// The weight of all of them.
    weight: usize,
    /// The weight of the copies of all files.
    all: Arc<Remembered>,
    /// When others are to be asked again about a window, indexed by its number.
    asked: BTreeMap<u64, u64>,
    /// What was dropped since the question in progress began; `None` if there is none.
    dropped: Option<Vec<ByteRange>>,
}

/// A question in progress; the next one waits for its end.
#[derive(Debug)]
pub(crate) struct Question<'f> {
    of: &'f PeerCopies,
    number: u64,
    now_ms: u64,
    _asking: MutexGuard<'f, ()>,
}

impl PeerCopies {
    /// The copies of one file, which share the limit of all files together.
    pub(crate) fn among(all: Arc<Remembered>) -> Self {
        let own = Self::default();
        own.known.lock().all = all;
        own
    }

    /// The first window of `range` that others are to be asked about.
    pub(crate) fn due(&self, range: ByteRange, now_ms: u64) -> Option<ByteRange> {
        let known = self.known.lock();
        let windows = range.start / WINDOW..range.end.div_ceil(WINDOW);
        let is_due = |number: &u64| known.is_due(*number, now_ms);
        windows.into_iter().find(is_due).map(window)
    }

    /// Begins a question about a window; `None` if another thread has asked it meanwhile.
    pub(crate) fn ask(&self, asked: ByteRange, now_ms: u64) -> Option<Question<'_>> {
        let asking = self.asking.lock();
        let number = asked.start / WINDOW;
        let mut known = self.known.lock();
        if !known.is_due(number, now_ms) {
            return None;
        }
        // Set before the agent looks at what this node holds, so that whoever gives up a range later drops it here.
        self.is_used.store(true, Ordering::SeqCst);
        known.dropped = Some(Vec::new());
        Some(Question { of: self, number, now_ms, _asking: asking })
    }

    /// What can be read of `range` from other nodes, in order.
    pub(crate) fn find(&self, range: ByteRange) -> Vec<Copy> {
        if range.is_empty() || !self.is_used.load(Ordering::Acquire) {
            return Vec::new();
        }
        let (from, to) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let known = self.known.lock();
        let before = known.copies.range(..from).next_back();
        let behind = known.copies.range(from..to);
        before.into_iter().chain(behind).filter_map(|(_, copy)| copy.cut(from, to)).collect()
    }

    /// Which node's cache serves how much of a range that this node's cache does not have.
    pub(crate) fn explain(&self, range: ByteRange) -> Option<String> {
        let mut by_node: BTreeMap<String, u64> = BTreeMap::new();
        for copy in self.find(range) {
            let bytes = copy.blocks.range().intersect(range).map_or(0, ByteRange::len);
            *by_node.entry(copy.cache.node.clone()).or_default() += bytes;
        }
        let each = |(node, bytes): (&String, &u64)| {
            format!("the cache of node {node} has {bytes} bytes of it, which are read from there")
        };
        let all: Vec<_> = by_node.iter().map(each).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Forgets what others have of `range`, because this node gives it up or is about to change it. The caller ensures
    /// that nobody reads it meanwhile, or that a reader may still find what was there.
    pub(crate) fn drop_range(&self, range: ByteRange) {
        if self.is_used.load(Ordering::SeqCst) {
            let mut known = self.known.lock();
            known.remove(range);
            let windows = range.start / WINDOW..range.end.div_ceil(WINDOW);
            known.asked.retain(|number, _| !windows.contains(number));
            if let Some(dropped) = &mut known.dropped {
                dropped.push(range);
            }
        }
    }

    /// Forgets a copy that could not entirely be read as stated; others are not asked immediately.
    pub(crate) fn forget(&self, range: ByteRange) {
        self.known.lock().remove(range);
    }
}

impl Question<'_> {
    /// Adopts the answers.
    pub(crate) fn answered(self, copies: Copies) {
        let known = &mut *self.of.known.lock();
        let dropped = known.dropped.take().unwrap_or_default();
        let window = window(self.number);
        // If it was dropped, it must be asked about again.
        if dropped.iter().all(|range| !range.overlaps(window)) {
            if known.asked.len() >= WINDOWS_MAX {
                known.asked.clear();
            }
            // The rest may be stated soon.
            let due_in = if copies.are_all { ASKED_FOR_MS } else { ASKED_AGAIN_MS };
            known.asked.insert(self.number, self.now_ms + due_in);
        }
        if copies.are_all {
            // Copies that are no longer reported have been evicted.
            known.remove(window);
        }
        for (cache, cached) in copies.all {
            for blocks in cached.blocks {
                let copy = Copy { cache: Arc::clone(&cache), geometry: cached.geometry, blocks };
                known.insert(&copy, window);
            }
        }
        for range in dropped {
            known.remove(range);
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.of.known.lock().dropped = None;
    }
}

impl FileCopies {
    fn is_due(&self, number: u64, now_ms: u64) -> bool {
        let due = self.asked.get(&number);
        // The second case is that the clock was set back.
        due.is_none_or(|due| now_ms >= *due || now_ms.saturating_add(ASKED_FOR_MS) < *due)
    }

    fn put(&mut self, copy: Copy) {
        let weight = copy.weight();
        self.weight += weight;
        self.all.0.fetch_add(weight, Ordering::Relaxed);
        self.copies.insert(copy.blocks.first, copy);
    }

    fn take(&mut self, first: u64) -> Option<Copy> {
        let copy = self.copies.remove(&first)?;
        self.weight -= copy.weight();
        self.all.0.fetch_sub(copy.weight(), Ordering::Relaxed);
        Some(copy)
    }

    /// Whether more may be remembered. Bytes of copies that are not remembered come from the origin.
    fn has_room(&self) -> bool {
        self.weight < ONE_FILE_MAX && self.all.0.load(Ordering::Relaxed) < ALL_FILES_MAX
    }

    /// Adds the parts of a copy that are not known yet, as far as they are in `window`.
    fn insert(&mut self, copy: &Copy, window: ByteRange) {
        let end = window.end / BLOCK;
        let all = copy.blocks.range();
        let (mut at, end) =
            ((window.start / BLOCK).max(all.start / BLOCK), end.min(all.end / BLOCK));
        while at < end && self.has_room() {
            let before = self.copies.range(..=at).next_back();
            let known_to = before.map_or(0, |(_, known)| known.blocks.range().end / BLOCK);
            if known_to > at {
                at = known_to;
                continue;
            }
            let next = self.copies.range(at..).next().map_or(end, |(first, _)| (*first).min(end));
            if let Some(part) = copy.cut(at, next) {
                self.put(part);
            }
            at = next;
        }
    }

    /// Removes all blocks that have a byte in `range`.
    fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let (from, to) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let before = self.copies.range(..from).next_back();
        let before = before.filter(|(_, copy)| copy.blocks.range().end > from * BLOCK);
        let behind = self.copies.range(from..to);
        let overlapping: Vec<u64> =
            before.into_iter().chain(behind).map(|(first, _)| *first).collect();
        for first in overlapping {
            let Some(copy) = self.take(first) else { continue };
            for kept in [copy.cut(0, from), copy.cut(to, u64::MAX)].into_iter().flatten() {
                self.put(kept);
            }
        }
    }
}

impl Drop for FileCopies {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

fn window(number: u64) -> ByteRange {
    ByteRange::at(number * WINDOW, WINDOW)
}

#[cfg(test)]
mod tests;
