//! Doubly linked queues within one array of slots: 8 bytes per slot, no separate allocations.

/// End of a queue.
pub(super) const END: u32 = u32::MAX;
/// Marks a slot that is in no queue.
const ABSENT: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

/// The links of all slots; a slot is in at most one queue.
#[derive(Debug, Default)]
pub(super) struct Slots {
    links: Vec<Link>,
}

impl Slots {
    /// Makes room for `slot`.
    pub(super) fn reach(&mut self, slot: u32) {
        assert!(slot < ABSENT, "slot numbers end below u32::MAX - 1");
        let needed = slot as usize + 1;
        if self.links.len() < needed {
            self.links.resize(needed, Link { older: ABSENT, newer: ABSENT });
        }
    }

    /// Whether `slot` is in a queue.
    pub(super) fn present(&self, slot: u32) -> bool {
        self.links.get(slot as usize).is_some_and(|link| link.older != ABSENT)
    }

    /// The next newer neighbour of `slot`, or [`END`].
    pub(super) fn newer(&self, slot: u32) -> u32 {
        self.links[slot as usize].newer
    }
}

/// A queue of slots from oldest to newest.
#[derive(Debug)]
pub(super) struct Queue {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self { oldest: END, newest: END, len: 0 }
    }
}

impl Queue {
    /// The oldest slot, or [`END`].
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds `slot`, which is in no queue, at the newest end.
    pub(super) fn push(&mut self, slots: &mut Slots, slot: u32) {
        assert!(!slots.present(slot), "slot {slot} is in a queue already");
        slots.links[slot as usize] = Link { older: self.newest, newer: END };
        match self.newest {
            END => self.oldest = slot,
            newest => slots.links[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Removes `slot`, which is in this queue.
    pub(super) fn unlink(&mut self, slots: &mut Slots, slot: u32) {
        assert!(slots.present(slot), "slot {slot} is in no queue");
        let Link { older, newer } = slots.links[slot as usize];
        match older {
            END => self.oldest = newer,
            older => slots.links[older as usize].newer = newer,
        }
        match newer {
            END => self.newest = older,
            newer => slots.links[newer as usize].older = older,
        }
        slots.links[slot as usize] = Link { older: ABSENT, newer: ABSENT };
        self.len -= 1;
    }
}
