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
    /// Blocks that became ghosts so far.
    ghosts: u32,
}

/// Misses of a cache of `slots` blocks, a tenth of them for new ones.
pub(super) fn misses(blocks: &[u32], distinct: usize, slots: usize) -> u64 {
    if slots == 0 {
        return blocks.len() as u64;
    }
    let mut cache = Cache {
        slots,
        small_slots: (slots / 10).max(1),
        small: VecDeque::new(),
        main: VecDeque::new(),
        queue_of: vec![InQueue::Nowhere; distinct],
        uses: vec![0; distinct],
        ghosts: 0,
    };
    blocks.iter().filter(|block| !cache.hits(**block)).count() as u64
}

impl Cache {
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
        // The ghost queue has as many entries as the main queue has slots.
        let remembered = self.slots - self.small_slots;
        let is_ghost = matches!(self.queue_of[at], InQueue::Ghost(number)
            if (self.ghosts - number) as usize <= remembered);
        self.uses[at] = 0;
        if is_ghost {
            self.queue_of[at] = InQueue::Main;
            self.main.push_back(block);
        } else {
            self.queue_of[at] = InQueue::Small;
            self.small.push_back(block);
        }
        false
    }

    /// Moves blocks that were used more than once to the main queue, until one leaves.
    fn evict_small(&mut self) {
        while let Some(block) = self.small.pop_front() {
            let at = block as usize;
            if self.uses[at] > 1 {
                self.uses[at] = 0;
                self.queue_of[at] = InQueue::Main;
                self.main.push_back(block);
            } else {
                self.queue_of[at] = InQueue::Ghost(self.ghosts);
                self.ghosts += 1;
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
