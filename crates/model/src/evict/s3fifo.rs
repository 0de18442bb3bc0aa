//! S3-FIFO (Yang et al., SOSP 2023) without its ghost queue: scan-resistant. 9 bytes per slot.
//!
//! New slots queue in `small`, a tenth of all; only those that are touched again there move on to `main`, the others
//! leave. In `main`, a slot gets another round for each touch, up to three. So a scan passes through `small` and does
//! not displace the hot set in `main`. The ghost queue of the original remembers what left; it needs an identity that
//! outlives the slot number, for which the memory limit per slot leaves no room.

use super::slots::{END, Queue, Slots};
use super::{Eviction, Walk};

/// While `small` holds at least one slot in this many, it is the one that evicts.
const SMALL_SHARE: usize = 10;
/// Limit of the use count.
const USES_MAX: u8 = 3;
/// Flag in a slot's state: the slot is in `main`. The low bits count uses.
const IN_MAIN: u8 = 0x80;

/// Two FIFO queues with a use count per slot.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    slots: Slots,
    small: Queue,
    main: Queue,
    state: Vec<u8>,
}

impl S3Fifo {
    fn uses(&self, slot: u32) -> u8 {
        self.state[slot as usize] & !IN_MAIN
    }

    /// Moves a used slot to the newest end of `main` with `uses` left.
    fn requeue(&mut self, slot: u32, uses: u8) {
        self.removed(slot);
        self.main.push(&mut self.slots, slot);
        self.state[slot as usize] = IN_MAIN | uses;
    }
}

impl Eviction for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn inserted(&mut self, slot: u32, _bytes: u64) {
        self.slots.reach(slot);
        if self.state.len() <= slot as usize {
            self.state.resize(slot as usize + 1, 0);
        }
        self.small.push(&mut self.slots, slot);
        self.state[slot as usize] = 0;
    }

    fn touched(&mut self, slot: u32) {
        assert!(self.slots.present(slot), "slot {slot} is in no queue");
        if self.uses(slot) < USES_MAX {
            self.state[slot as usize] += 1;
        }
    }

    fn removed(&mut self, slot: u32) {
        let in_main = self.state[slot as usize] & IN_MAIN != 0;
        let queue = if in_main { &mut self.main } else { &mut self.small };
        queue.unlink(&mut self.slots, slot);
    }

    /// Both cursors only move towards newer slots, and only slots that were not offered yet are moved ahead of a
    /// cursor: none is offered twice. Each move uses up a use, so the walk ends.
    fn victims(&mut self, f: &mut dyn FnMut(u32) -> Walk) {
        let (mut small, mut main) = (self.small.oldest(), self.main.oldest());
        let (mut small_left, mut main_left) = (self.small.len(), self.main.len());
        loop {
            let from_small = small_left * SMALL_SHARE >= small_left + main_left;
            let slot = if from_small { small } else { main };
            if slot == END {
                debug_assert!(small == END && main == END, "both queues walked to the end");
                return;
            }
            let newer = self.slots.newer(slot);
            let uses = self.uses(slot);
            let offered = uses == 0;
            if !offered {
                self.requeue(slot, if from_small { 0 } else { uses - 1 });
            } else if f(slot) == Walk::Stop {
                return;
            }
            if from_small {
                small = newer;
                small_left -= 1;
                if !offered {
                    main_left += 1;
                    main = if main == END { slot } else { main };
                }
            } else {
                main = if newer == END && !offered { slot } else { newer };
                main_left -= usize::from(offered);
            }
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
