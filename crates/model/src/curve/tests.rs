//! Curves against plain caches, exhaustive search, and whole traces.

#![expect(
    clippy::float_cmp,
    clippy::cast_precision_loss,
    reason = "shares of small counts, computed alike"
)]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn whole(blocks: &[u64]) -> Accesses {
    sample(blocks, usize::MAX)
}

fn sample(blocks: &[u64], most: usize) -> Accesses {
    let mut taking = Sampler::new(most);
    for block in blocks {
        taking.push(0, *block);
    }
    taking.finish()
}

/// A plain LRU cache.
fn lru_misses(blocks: &[u64], slots: usize) -> usize {
    let mut cache = VecDeque::new();
    let mut misses = 0;
    for block in blocks {
        match cache.iter().position(|other| other == block) {
            Some(at) => {
                cache.remove(at);
            }
            None => misses += 1,
        }
        cache.push_back(*block);
        if cache.len() > slots {
            cache.pop_front();
        }
    }
    misses
}

/// The fewest misses of any choice of what leaves, the new block among it.
fn least_misses(blocks: &[u64], cache: &mut Vec<u64>, slots: usize) -> usize {
    let Some((block, rest)) = blocks.split_first() else { return 0 };
    if cache.contains(block) {
        return least_misses(rest, cache, slots);
    }
    cache.push(*block);
    if cache.len() <= slots {
        let least = 1 + least_misses(rest, cache, slots);
        cache.retain(|other| other != block);
        return least;
    }
    let choices = (0..cache.len()).map(|victim| {
        let mut left = cache.clone();
        left.swap_remove(victim);
        1 + least_misses(rest, &mut left, slots)
    });
    let least = choices.min().unwrap_or(0);
    cache.retain(|other| other != block);
    least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lru_and_the_optimum_are_exact(
        blocks in proptest::collection::vec(0..6_u64, 1..12), slots in 1..5_u64,
    ) {
        let point = curve(&whole(&blocks), &[slots])[0];
        let share = |misses: usize| ratio(misses as u64, blocks.len() as f64);
        let slots = usize::try_from(slots).unwrap();
        prop_assert_eq!(point.lru, share(lru_misses(&blocks, slots)));
        prop_assert_eq!(point.optimum, share(least_misses(&blocks, &mut Vec::new(), slots)));
        prop_assert_eq!(point.error, 0.0);
        for other in [point.lru, point.s3fifo, point.ours] {
            prop_assert!(other >= point.optimum);
        }
    }

    /// The production code of LRU misses what stack distances say.
    #[test]
    fn every_size_of_lru_is_right(
        blocks in proptest::collection::vec(0..30_u64, 1..200), slots in 1..40_u64,
    ) {
        let point = curve(&whole(&blocks), &[slots])[0];
        let misses = lru_misses(&blocks, usize::try_from(slots).unwrap());
        prop_assert_eq!(point.lru, ratio(misses as u64, blocks.len() as f64));
    }
}

/// A stream of numbers that are alike each time.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |step: u64| {
        let mixed = (seed ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    })
}

/// Blocks of which some are used much more often: the smaller of three numbers.
fn skewed(count: usize, of: u64) -> Vec<u64> {
    let mut numbers = random(7);
    let one = || numbers.by_ref().take(3).map(|number| number % of).min().unwrap_or(0);
    std::iter::repeat_with(one).take(count).collect()
}

#[test]
fn a_sample_is_as_good_as_it_says() {
    let blocks = skewed(200_000, 20_000);
    let sizes = [500, 2_000, 5_000, 10_000, 20_000];
    let exact = curve(&whole(&blocks), &sizes);
    let sampled = sample(&blocks, 40_000);
    assert!(sampled.share() <= 0.25 && sampled.blocks().len() <= 40_000, "{}", sampled.share());
    assert_eq!(sampled.all(), 200_000);
    assert!(sampled.footprint().abs_diff(whole(&blocks).footprint()) < 1_000);
    for (exact, sampled) in exact.iter().zip(curve(&sampled, &sizes)) {
        assert!(sampled.error > 0.0 && sampled.error < 0.06, "{sampled:?}");
        let off = [
            exact.lru - sampled.lru,
            exact.s3fifo - sampled.s3fifo,
            exact.ours - sampled.ours,
            exact.optimum - sampled.optimum,
        ];
        // Three standard errors, and what rounding a cache to whole blocks does.
        let most = 3.0 * sampled.error + 0.01;
        assert!(off.iter().all(|off| off.abs() < most), "{exact:?} {sampled:?}");
    }
}

#[test]
fn a_loop_over_more_than_fits_is_where_lru_fails() {
    let blocks: Vec<u64> = (0..10).flat_map(|_| 0..100).collect();
    let points = curve(&whole(&blocks), &[0, 50, 100]);
    let misses = |point: &Point| (point.lru, point.optimum);
    assert_eq!((points[0].lru, points[0].s3fifo, points[0].ours), (1.0, 1.0, 1.0));
    assert_eq!(points[1].lru, 1.0);
    assert!(points[1].optimum < 0.6, "{points:?}");
    assert_eq!(misses(&points[2]), (0.1, 0.1));
    assert_eq!((points[2].s3fifo, points[2].ours), (0.1, 0.1));
}

#[test]
fn nothing_was_accessed() {
    let empty = Sampler::new(10).finish();
    assert_eq!((empty.all(), empty.footprint()), (0, 0));
    assert_eq!(curve(&empty, &[1])[0].lru, 0.0);
}
