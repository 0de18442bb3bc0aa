//! Least recently used first: the papers' order. 8 bytes per slot.

use super::slots::{END, Queue, Slots};
use super::{Eviction, Walk};

/// Least recently inserted or touched first.
#[derive(Debug, Default)]
pub struct Lru {
    slots: Slots,
    queue: Queue,
}

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn inserted(&mut self, slot: u32, _bytes: u64) {
        self.slots.reach(slot);
        self.queue.push(&mut self.slots, slot);
    }

    fn touched(&mut self, slot: u32) {
        self.queue.unlink(&mut self.slots, slot);
        self.queue.push(&mut self.slots, slot);
    }

    fn removed(&mut self, slot: u32) {
        self.queue.unlink(&mut self.slots, slot);
    }

    fn victims(&mut self, f: &mut dyn FnMut(u32) -> Walk) {
        let mut slot = self.queue.oldest();
        while slot != END && f(slot) != Walk::Stop {
            slot = self.slots.newer(slot);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
