//! S3-FIFO as published (Yang et al., SOSP 2023), for comparison: with the ghost queue for which ours has no memory.
//! The engine's version is in `evict`.

use std::collections::VecDeque;

/// Limit of the use count.
const USES_MAX: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InQueue {
    Nowhere,
    Small,
    Main,
    /// Left the small queue unused, as the ghost with this number.
    Ghost(u32),
}

struct Cache {
    slots: usize,
    small_slots: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    queue_of: Vec<InQueue>,
    uses: Vec<u8>,
    /// Blocks that became ghosts, with their numbers, the oldest first; some are none any more.
    ghosts: VecDeque<(u32, u32)>,
    /// How many of them are.
    ghosts_left: usize,
    /// Blocks that became ghosts so far.
    became_ghosts: u32,
}

/// Misses of a cache of `slots` blocks, a tenth of them for new ones.
pub(super) fn misses(blocks: &[u32], distinct: usize, slots: usize) -> u64 {
    if slots == 0 {
        return blocks.len() as u64;
    }
    let mut cache = Cache::new(slots, (slots / 10).max(1), distinct);
    blocks.iter().filter(|block| !cache.hits(**block)).count() as u64
}

impl Cache {
    /// An empty one, for blocks with numbers below `distinct`.
    fn new(slots: usize, small_slots: usize, distinct: usize) -> Self {
        Self {
            slots,
            small_slots,
            small: VecDeque::new(),
            main: VecDeque::new(),
            queue_of: vec![InQueue::Nowhere; distinct],
            uses: vec![0; distinct],
            ghosts: VecDeque::new(),
            ghosts_left: 0,
            became_ghosts: 0,
        }
    }

    fn hits(&mut self, block: u32) -> bool {
        let at = block as usize;
        if matches!(self.queue_of[at], InQueue::Small | InQueue::Main) {
            self.uses[at] = (self.uses[at] + 1).min(USES_MAX);
            return true;
        }
        while self.small.len() + self.main.len() >= self.slots {
            if self.small.len() >= self.small_slots || self.main.is_empty() {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
        self.uses[at] = 0;
        if matches!(self.queue_of[at], InQueue::Ghost(_)) {
            // Its place is free for another one.
            self.ghosts_left -= 1;
            self.queue_of[at] = InQueue::Main;
            self.main.push_back(block);
        } else {
            self.queue_of[at] = InQueue::Small;
            self.small.push_back(block);
        }
        false
    }

    /// Slots of the main queue.
    const fn main_slots(&self) -> usize {
        self.slots - self.small_slots
    }

    /// Remembers a block that left the small queue, and forgets the oldest ghost if there are more than the main queue has
    /// slots.
    fn remember(&mut self, block: u32) {
        let number = self.became_ghosts;
        self.became_ghosts = self.became_ghosts.wrapping_add(1);
        self.queue_of[block as usize] = InQueue::Ghost(number);
        self.ghosts.push_back((block, number));
        self.ghosts_left += 1;
        while self.ghosts_left > self.main_slots() {
            let Some((oldest, number)) = self.ghosts.pop_front() else { break };
            if self.queue_of[oldest as usize] == InQueue::Ghost(number) {
                self.queue_of[oldest as usize] = InQueue::Nowhere;
                self.ghosts_left -= 1;
            }
        }
    }

    /// Moves blocks that were used more than once to the main queue, which evicts if it has more than its slots then, until
    /// one leaves.
    fn evict_small(&mut self) {
        while let Some(block) = self.small.pop_front() {
            let at = block as usize;
            if self.uses[at] > 1 {
                self.uses[at] = 0;
                self.queue_of[at] = InQueue::Main;
                self.main.push_back(block);
                if self.main.len() > self.main_slots() {
                    self.evict_main();
                }
            } else {
                self.remember(block);
                return;
            }
        }
    }

    /// Gives used blocks another round, until one leaves.
    fn evict_main(&mut self) {
        while let Some(block) = self.main.pop_front() {
            let at = block as usize;
            if self.uses[at] == 0 {
                self.queue_of[at] = InQueue::Nowhere;
                return;
            }
            self.uses[at] -= 1;
            self.main.push_back(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cache of `slots` slots after `blocks`: its main queue and its small one, the oldest first, and its ghosts.
    fn after(slots: usize, small_slots: usize, blocks: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let mut cache = Cache::new(slots, small_slots, 100);
        for block in blocks {
            cache.hits(*block);
        }
        let is_ghost = |block: &u32| matches!(cache.queue_of[*block as usize], InQueue::Ghost(_));
        let ghosts = (0..100).filter(is_ghost).collect();
        (cache.main.into(), cache.small.into(), ghosts)
    }

    /// Regression: a block that moved on to a full main queue took a slot of the small one.
    #[test]
    fn a_full_main_queue_evicts_for_what_moves_there() {
        // 0, 1 and 2 move on when 4 comes, to two slots: 0 leaves, which nobody used since; then 3.
        let blocks = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4];
        assert_eq!(after(4, 2, &blocks), (vec![1, 2], vec![4], vec![3]));
    }

    /// Regression: a ghost that came back still counted among those that are remembered.
    #[test]
    fn a_ghost_that_comes_back_makes_room_for_another() {
        // A small queue of one and a main queue of three. 1 comes back when 2 has become a ghost and 9 was forgotten for it;
        // its place is taken by 3, not that of 0.
        let blocks = [9, 0, 1, 2, 3, 4, 5, 1, 6];
        assert_eq!(after(4, 1, &blocks[..7]).2, [0, 1, 9]);
        assert_eq!(after(4, 1, &blocks), (vec![1], vec![4, 5, 6], vec![0, 2, 3]));
    }
}
