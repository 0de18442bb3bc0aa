//! `lru`: a list through the slots, the longest unused at its head.

use super::{Eviction, Walk};

/// No slot.
const NONE: u32 = u32::MAX;

/// Least recently used. Eight bytes a slot.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self { links: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl Lru {
    fn link(&mut self, slot: u32) -> &mut Link {
        &mut self.links[slot as usize]
    }

    fn append(&mut self, slot: u32) {
        *self.link(slot) = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.link(newest).newer = slot,
        }
        self.newest = slot;
    }

    fn take_out(&mut self, slot: u32) {
        let Link { older, newer } = *self.link(slot);
        match older {
            NONE => self.oldest = newer,
            older => self.link(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.link(newer).older = older,
        }
    }
}

impl Eviction for Lru {
    fn inserted(&mut self, slot: u32, _bytes: u64) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Link { older: NONE, newer: NONE });
        }
        self.append(slot);
    }

    fn touched(&mut self, slot: u32) {
        if self.newest != slot {
            self.take_out(slot);
            self.append(slot);
        }
    }

    fn removed(&mut self, slot: u32) {
        self.take_out(slot);
    }

    fn victims(&mut self, visit: &mut dyn FnMut(u32) -> Walk) {
        let mut slot = self.oldest;
        while slot != NONE {
            let newer = self.link(slot).newer;
            if visit(slot) == Walk::Stop {
                return;
            }
            slot = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_leaves_first() {
        let mut lru = Lru::default();
        for slot in 0..5 {
            lru.inserted(slot, 1);
        }
        lru.touched(1);
        lru.removed(3);
        let mut order = Vec::new();
        lru.victims(&mut |slot| {
            order.push(slot);
            Walk::Skip
        });
        assert_eq!(order, [0, 2, 4, 1]);
    }
}
