//! The fewest possible misses (Belady, 1966), if a block need not be admitted.

use std::collections::BinaryHeap;

/// Marks a block that is not used again.
const NEVER: u32 = u32::MAX;

/// For each access, the index of the next one to the same block.
pub(super) fn next_uses(blocks: &[u32], distinct: usize) -> Vec<u32> {
    let mut next = vec![NEVER; blocks.len()];
    let mut coming = vec![NEVER; distinct];
    for (now, &block) in blocks.iter().enumerate().rev() {
        next[now] = coming[block as usize];
        coming[block as usize] = u32::try_from(now).expect("fewer accesses than a number has");
    }
    next
}

/// Misses of a cache of `slots` blocks.
pub(super) fn misses(blocks: &[u32], next: &[u32], distinct: usize, slots: usize) -> u64 {
    // Next use of each block that is present.
    let mut present: Vec<Option<u32>> = vec![None; distinct];
    let mut order = BinaryHeap::new();
    let (mut held, mut misses) = (0, 0);
    for (&block, &next) in blocks.iter().zip(next) {
        if present[block as usize].replace(next).is_none() {
            misses += 1;
            held += 1;
        }
        order.push((next, block));
        while held > slots {
            let Some((use_at, victim)) = order.pop() else { break };
            // Entries of earlier uses are left in the heap.
            if present[victim as usize] == Some(use_at) {
                present[victim as usize] = None;
                held -= 1;
            }
        }
    }
    misses
}
