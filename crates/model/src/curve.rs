//! Miss-ratio curves: what caches of several sizes would have missed on the same accesses
//! (docs/ALGORITHMS.md, section 10).
//!
//! An access is the part of a request in one block. Every access brings in its block: what an admission policy would
//! keep out, and the cost of writing back, are not considered. Long traces are sampled by block (SHARDS; Waldspurger et
//! al., FAST 2015), and the caches scaled down accordingly.

mod accesses;
mod optimum;
mod published;
mod stack;

pub use accesses::{Accesses, Sampler};

use crate::evict::{Eviction, POLICIES, Walk};

/// Number of parts of the sampled blocks from which the error is estimated.
const PARTS: u8 = 8;

/// What a cache of one size would have missed: shares of all accesses, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Size of the cache in blocks.
    pub blocks: u64,
    /// Least recently used, by stack distances.
    pub lru: f64,
    /// S3-FIFO as it was published, with its ghost queue.
    pub s3fifo: f64,
    /// The default eviction policy of Halocline ([`POLICIES`]).
    pub ours: f64,
    /// The least possible: the block that is used again latest leaves, or is not admitted.
    pub optimum: f64,
    /// Standard error of `lru` from the sampling; 0 if all accesses were sampled.
    pub error: f64,
}

/// The curve at these `sizes`, in blocks of the whole trace.
pub fn curve(accesses: &Accesses, sizes: &[u64]) -> Vec<Point> {
    let expected = accesses.expected();
    let share = |misses: u64| ratio(misses, expected);
    let distances = stack::distances(accesses.blocks(), accesses.distinct());
    let parts = parts(accesses);
    let next = optimum::next_uses(accesses.blocks(), accesses.distinct());
    let point = |&blocks: &u64| {
        let slots = accesses.scaled(blocks, 1);
        Point {
            blocks,
            lru: share(distances.misses(slots)),
            s3fifo: share(published::misses(accesses.blocks(), accesses.distinct(), slots)),
            ours: share(production(accesses.blocks(), slots)),
            optimum: share(optimum::misses(accesses.blocks(), &next, accesses.distinct(), slots)),
            error: error(accesses, &parts, blocks),
        }
    };
    sizes.iter().map(point).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn ratio(misses: u64, expected: f64) -> f64 {
    if expected > 0.0 { (misses as f64 / expected).min(1.0) } else { 0.0 }
}

/// Misses of the engine's eviction policy in a cache of `slots` blocks.
fn production(blocks: &[u32], slots: usize) -> u64 {
    let mut policy = (POLICIES[0].make)();
    let mut present = vec![false; blocks.iter().max().map_or(0, |most| *most as usize + 1)];
    let mut misses = 0;
    for &block in blocks {
        if present[block as usize] {
            policy.touched(block);
            continue;
        }
        misses += 1;
        if slots == 0 {
            continue;
        }
        if policy.len() >= slots {
            let victim = first_victim(&mut *policy);
            policy.removed(victim);
            present[victim as usize] = false;
        }
        policy.inserted(block, 1);
        present[block as usize] = true;
    }
    misses
}

fn first_victim(policy: &mut dyn Eviction) -> u32 {
    let mut victim = None;
    policy.victims(&mut |slot| {
        if victim.is_some() {
            return Walk::Stop;
        }
        victim = Some(slot);
        Walk::Take
    });
    victim.expect("a full cache has a victim")
}

/// Stack distances of each part of a sample, each treated as a sample of its own.
fn parts(accesses: &Accesses) -> Vec<(stack::Distances, f64)> {
    if accesses.is_whole() {
        return Vec::new();
    }
    let part = |part| {
        let (blocks, distinct) = accesses.part(usize::from(part), usize::from(PARTS));
        (stack::distances(&blocks, distinct), accesses.expected() / f64::from(PARTS))
    };
    (0..PARTS).map(part).collect()
}

/// Standard error of the mean over the parts.
fn error(accesses: &Accesses, parts: &[(stack::Distances, f64)], blocks: u64) -> f64 {
    if parts.is_empty() {
        return 0.0;
    }
    let slots = accesses.scaled(blocks, u64::from(PARTS));
    let each: Vec<f64> = parts
        .iter()
        .map(|(distances, expected)| ratio(distances.misses(slots), *expected))
        .collect();
    let count = f64::from(PARTS);
    let mean = each.iter().sum::<f64>() / count;
    let squares: f64 = each.iter().map(|share| (share - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

#[cfg(test)]
mod tests;
