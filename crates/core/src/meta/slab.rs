//! All extents by slot, and the order in which they leave.
//!
//! A slot says enough of its extent to decide whether it may be evicted without asking its file:
//! only clean extents whose cleanness is durable (or never mattered) and whose file is not pinned.
//! Dirty extents keep their place in the order and are passed over.

use std::collections::{BTreeMap, HashSet};

use halocline_model::evict::{Eviction, Walk};
use halocline_model::request::ByteRange;

use super::rangemap::{Located, Piece};
use super::{BLOCK, FileId};

/// Never to be evicted as it is.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    file: FileId,
    start: u64,
    /// 0 when the slot is free.
    len: u64,
    /// The epoch that must be durable before the extent may go.
    ready: u64,
}

impl Slot {
    const FREE: Self = Self { file: FileId(0), start: 0, len: 0, ready: NEVER };

    fn range(&self) -> ByteRange {
        ByteRange::at(self.start, self.len)
    }
}

/// Slots and eviction order of all extents.
#[derive(Debug)]
pub(super) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    policy: Box<dyn Eviction>,
    pinned: HashSet<FileId>,
    /// Bytes in whole blocks of extents that may go.
    evictable: u64,
    /// The same by the epoch they wait for.
    waiting: BTreeMap<u64, u64>,
    durable: u64,
}

/// An upper bound of the blocks that go with an extent.
fn weight(range: ByteRange) -> u64 {
    range.widen_to(BLOCK).len()
}

impl Slab {
    /// No extents, under `policy`.
    pub(super) fn new(policy: Box<dyn Eviction>) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            policy,
            pinned: HashSet::new(),
            evictable: 0,
            waiting: BTreeMap::new(),
            durable: 0,
        }
    }

    /// Makes room for `count` more extents at once.
    pub(super) fn expect(&mut self, count: usize) {
        self.slots.reserve_exact(count);
    }

    /// Gives an extent a slot, as the most recently used.
    pub(super) fn insert(&mut self, file: FileId, piece: &Piece) -> u32 {
        let slot = self.give(file, piece);
        self.policy.inserted(slot, piece.range.len());
        slot
    }

    /// Gives an extent a slot and no place in the order yet: [`Slab::enter`] must follow.
    pub(super) fn give(&mut self, file: FileId, piece: &Piece) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::FREE);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 extents fit in memory")
        });
        self.fill(slot, file, piece);
        slot
    }

    /// Enters a slot into the order as the most recently used.
    pub(super) fn enter(&mut self, slot: u32) {
        self.policy.inserted(slot, self.slots[slot as usize].len);
    }

    /// Tells that the extent in its slot changed.
    pub(super) fn update(&mut self, file: FileId, piece: &Piece) {
        self.empty(piece.slot);
        self.fill(piece.slot, file, piece);
    }

    /// Takes an extent's slot away.
    pub(super) fn remove(&mut self, slot: u32) {
        self.policy.removed(slot);
        self.empty(slot);
        self.free.push(slot);
    }

    fn fill(&mut self, slot: u32, file: FileId, piece: &Piece) {
        let ready = if piece.dirty { NEVER } else { piece.epoch };
        self.slots[slot as usize] =
            Slot { file, start: piece.range.start, len: piece.range.len(), ready };
        if ready <= self.durable {
            self.evictable += weight(piece.range);
        } else if ready != NEVER {
            *self.waiting.entry(ready).or_insert(0) += weight(piece.range);
        }
    }

    fn empty(&mut self, slot: u32) {
        let old = std::mem::replace(&mut self.slots[slot as usize], Slot::FREE);
        debug_assert!(old.len > 0, "a slot is emptied once");
        if old.ready <= self.durable {
            self.evictable -= weight(old.range());
        } else if let Some(bytes) = self.waiting.get_mut(&old.ready) {
            *bytes -= weight(old.range());
        }
    }

    /// Marks an extent as just used.
    pub(super) fn touch(&mut self, slot: u32) {
        if self.slots.get(slot as usize).is_some_and(|slot| slot.len > 0) {
            self.policy.touched(slot);
        }
    }

    /// Everything up to `epoch` is durable now.
    pub(super) fn promote(&mut self, epoch: u64) {
        self.durable = self.durable.max(epoch);
        let later = self.waiting.split_off(&(self.durable + 1));
        self.evictable += std::mem::replace(&mut self.waiting, later).values().sum::<u64>();
    }

    /// Keeps a file's extents, or lets them go again.
    pub(super) fn pin(&mut self, file: FileId, pinned: bool) {
        if pinned {
            self.pinned.insert(file);
        } else {
            self.pinned.remove(&file);
        }
    }

    /// An upper bound of the bytes that evictions can free.
    pub(super) fn evictable(&self) -> u64 {
        self.evictable
    }

    /// Walks the candidates in the policy's order until `visit` has enough (it returns `Stop`).
    pub(super) fn walk(&mut self, visit: &mut dyn FnMut(u32, Located) -> Walk) {
        let Self { slots, policy, pinned, durable, .. } = self;
        policy.victims(&mut |slot| {
            let held = &slots[slot as usize];
            if held.ready > *durable || (!pinned.is_empty() && pinned.contains(&held.file)) {
                return Walk::Skip;
            }
            visit(slot, Located { file: held.file, range: held.range() })
        });
    }
}
