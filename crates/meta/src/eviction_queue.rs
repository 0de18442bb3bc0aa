//! The eviction queue over all extents of all files: a policy that knows slots, and the extent of each slot.
//!
//! Dirty and pinned extents that a search for victims finds are parked: they leave the queue until they can be evicted
//! again, so that no search finds them twice.

use std::sync::atomic::Ordering::Relaxed;

use halocline_model::evict::{Eviction, Walk};
use parking_lot::{Mutex, MutexGuard};

use super::FileId;
use super::rangemap::Entry;

/// The extent of a slot, in 16 bytes, because there is one for each extent.
#[derive(Debug, Clone, Copy)]
struct QueuedExtent {
    start: u64,
    /// Twice the file's id, plus one while the slot is parked.
    file_parked: u64,
}

impl QueuedExtent {
    fn new(file: FileId, start: u64) -> Self {
        Self { start, file_parked: file.0 << 1 }
    }

    fn file(self) -> FileId {
        FileId(self.file_parked >> 1)
    }

    fn parked(self) -> bool {
        self.file_parked & 1 == 1
    }
}

/// What a search does with an extent offered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// Not now.
    Skip,
    /// Not until it is put back, because it is dirty or pinned.
    Park,
    /// Taken.
    Take,
    /// Taken, and enough.
    TakeLast,
}

/// A loaded extent and when it was last used, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoadedUse {
    pub(crate) last_use_ms: u64,
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
}

/// The uses of extents by one request.
pub(crate) struct Uses<'q> {
    now_ms: u64,
    queue: &'q Mutex<EvictionQueue>,
    locked: Option<MutexGuard<'q, EvictionQueue>>,
}

impl<'q> Uses<'q> {
    /// Those at `now_ms`.
    pub(crate) fn at(now_ms: u64, queue: &'q Mutex<EvictionQueue>) -> Self {
        Self { now_ms, queue, locked: None }
    }

    /// Marks an extent as just used. The queue is a hint: a use within the same millisecond, or during a search for
    /// victims, may not be noted there.
    pub(crate) fn note(&mut self, entry: &Entry) {
        if entry.last_use_ms.swap(self.now_ms, Relaxed) != self.now_ms {
            self.locked = self.locked.take().or_else(|| self.queue.try_lock());
            if let Some(queue) = &mut self.locked {
                queue.touch(entry.slot);
            }
        }
    }
}

/// The queue in which extents leave the cache.
#[derive(Debug)]
pub(crate) struct EvictionQueue {
    policy: Box<dyn Eviction>,
    slots: Vec<QueuedExtent>,
    free: Vec<u32>,
}

impl EvictionQueue {
    /// An empty queue under a policy.
    pub(crate) fn new(policy: Box<dyn Eviction>) -> Self {
        Self { policy, slots: Vec::new(), free: Vec::new() }
    }

    /// Adds an extent as just used.
    pub(crate) fn insert(&mut self, file: FileId, start: u64, bytes: u64) -> u32 {
        let entry = QueuedExtent::new(file, start);
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = entry;
            slot
        } else {
            self.slots.push(entry);
            slot_number(self.slots.len() - 1)
        };
        self.policy.inserted(slot, bytes);
        slot
    }

    /// Adds an extent whose place [`EvictionQueue::start`] will set.
    pub(crate) fn load(&mut self, file: FileId, start: u64) -> u32 {
        self.slots.push(QueuedExtent::new(file, start));
        slot_number(self.slots.len() - 1)
    }

    /// Puts the loaded extents in the order of their last use, oldest first.
    pub(crate) fn start(&mut self, mut uses: Vec<LoadedUse>) {
        uses.sort_unstable();
        for LoadedUse { slot, bytes, .. } in uses {
            self.policy.inserted(slot, bytes);
        }
    }

    /// Removes an extent.
    pub(crate) fn remove(&mut self, slot: u32) {
        if !self.slots[slot as usize].parked() {
            self.policy.removed(slot);
        }
        self.free.push(slot);
    }

    /// Changes the start of a slot's extent, of which only the rest is left.
    pub(crate) fn renamed(&mut self, slot: u32, start: u64) {
        self.slots[slot as usize].start = start;
    }

    /// Notes a use.
    pub(crate) fn touch(&mut self, slot: u32) {
        if !self.slots[slot as usize].parked() {
            self.policy.touched(slot);
        }
    }

    /// Puts back a parked extent of `bytes` bytes, which can now be evicted.
    pub(crate) fn unpark(&mut self, slot: u32, bytes: u64) {
        let entry = &mut self.slots[slot as usize];
        if entry.parked() {
            entry.file_parked &= !1;
            self.policy.inserted(slot, bytes);
        }
    }

    /// Offers extents in the policy's order to `judge` until it has enough.
    pub(crate) fn search(&mut self, mut judge: impl FnMut(FileId, u64) -> Offered) {
        let mut park = Vec::new();
        let mut enough = false;
        let Self { policy, slots, .. } = self;
        policy.victims(&mut |slot| {
            if enough {
                return Walk::Stop;
            }
            let entry = slots[slot as usize];
            match judge(entry.file(), entry.start) {
                Offered::Skip => Walk::Skip,
                Offered::Take => Walk::Take,
                Offered::Park => {
                    park.push(slot);
                    Walk::Skip
                }
                Offered::TakeLast => {
                    enough = true;
                    Walk::Take
                }
            }
        });
        for slot in park {
            self.slots[slot as usize].file_parked |= 1;
            self.policy.removed(slot);
        }
    }
}

fn slot_number(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 extents fit in memory")
}
