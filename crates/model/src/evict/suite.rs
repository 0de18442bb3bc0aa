//! What every eviction policy must do, run for each row of the table, and a golden trace each.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Eviction, POLICIES, Walk, by_name};

/// All present slots from the head of the queue.
fn order(policy: &mut dyn Eviction) -> Vec<u32> {
    let mut order = Vec::new();
    policy.victims(&mut |slot| {
        order.push(slot);
        Walk::Skip
    });
    order
}

/// Evicts the first slot in the policy's order.
fn evict_one(policy: &mut dyn Eviction) -> u32 {
    let mut victim = None;
    policy.victims(&mut |slot| {
        if victim.is_some() {
            return Walk::Stop;
        }
        victim = Some(slot);
        Walk::Take
    });
    let victim = victim.expect("a victim");
    policy.removed(victim);
    victim
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u32),
    Touch(u32),
    Remove(u32),
    Walk(usize),
    Evict(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40u32).prop_map(Step::Insert),
        4 => (0..40u32).prop_map(Step::Touch),
        2 => (0..40u32).prop_map(Step::Remove),
        1 => (0..50usize).prop_map(Step::Walk),
        1 => (1..5usize).prop_map(Step::Evict),
    ]
}

/// Runs `steps` on a policy and on a plain set; compares what walks offer.
fn attack(name: &str, steps: &[Step]) {
    let mut policy = by_name(name).expect("a row");
    let mut present = BTreeSet::new();
    for step in steps {
        match *step {
            Step::Insert(slot) => {
                if present.insert(slot) {
                    policy.inserted(slot, 4096);
                }
            }
            Step::Touch(slot) => {
                if present.contains(&slot) {
                    policy.touched(slot);
                }
            }
            Step::Remove(slot) => {
                if present.remove(&slot) {
                    policy.removed(slot);
                }
            }
            Step::Walk(stop_after) => {
                let mut offered = Vec::new();
                policy.victims(&mut |slot| {
                    offered.push(slot);
                    if offered.len() > stop_after { Walk::Stop } else { Walk::Skip }
                });
                assert_eq!(offered.len(), present.len().min(stop_after + 1), "{name}");
                let unique: BTreeSet<u32> = offered.iter().copied().collect();
                assert_eq!(unique.len(), offered.len(), "{name} offered a slot twice");
                assert!(unique.is_subset(&present), "{name} offered a removed slot");
            }
            Step::Evict(count) => {
                for _ in 0..count.min(present.len()) {
                    assert!(present.remove(&evict_one(policy.as_mut())), "{name}");
                }
            }
        }
        assert_eq!(policy.len(), present.len(), "{name}");
    }
    let all: BTreeSet<u32> = order(policy.as_mut()).into_iter().collect();
    assert_eq!(all, present, "{name} loses or invents slots");
}

proptest! {
    #[test]
    fn every_policy_offers_each_present_slot_once(steps in prop::collection::vec(step(), 0..200)) {
        for policy in POLICIES {
            attack(policy.name, &steps);
        }
    }
}

#[test]
fn names_are_unique_and_found() {
    for policy in POLICIES {
        assert_eq!(by_name(policy.name).expect("a row").name(), policy.name);
    }
    let error = by_name("mru").expect_err("no row").to_string();
    assert!(error.contains("mru") && error.contains("lru"), "{error}");
}

#[test]
fn take_without_removed_keeps_the_slot() {
    for policy in POLICIES {
        let mut policy = (policy.make)();
        policy.inserted(3, 1);
        policy.victims(&mut |_| Walk::Take);
        assert_eq!(order(policy.as_mut()), [3]);
    }
}

#[test]
fn lru_golden_trace() {
    let mut lru = by_name("lru").expect("a row");
    for slot in 0..5 {
        lru.inserted(slot, 1);
    }
    lru.touched(0);
    lru.touched(3);
    assert_eq!(order(lru.as_mut()), [1, 2, 4, 0, 3]);
    lru.removed(2);
    assert_eq!(order(lru.as_mut()), [1, 4, 0, 3]);
}

#[test]
fn s3fifo_golden_trace() {
    let mut s3fifo = by_name("s3fifo").expect("a row");
    for slot in 0..5 {
        s3fifo.inserted(slot, 1);
    }
    s3fifo.touched(0);
    s3fifo.touched(3);
    s3fifo.touched(3);
    // 0 and 3 were used again: they moved to the main queue and leave after the others.
    assert_eq!(order(s3fifo.as_mut()), [1, 2, 4, 0, 3]);
    // A use in the main queue buys another round.
    s3fifo.touched(0);
    for slot in [1, 2, 4] {
        s3fifo.removed(slot);
    }
    assert_eq!(order(s3fifo.as_mut()), [3, 0]);
}

/// How many of a hot set of 50 slots, each used five times, survive a scan of 1000 others through
/// a cache of 100 slots.
fn hot_left_after_scan(name: &str) -> usize {
    let mut policy = by_name(name).expect("a row");
    let mut free: Vec<u32> = (0..100).rev().collect();
    let hot: Vec<u32> = (0..50).map(|_| free.pop().expect("room")).collect();
    for &slot in &hot {
        policy.inserted(slot, 1);
    }
    for _ in 0..5 {
        for &slot in &hot {
            policy.touched(slot);
        }
    }
    let mut left: BTreeSet<u32> = hot.into_iter().collect();
    for _ in 0..1000 {
        let slot = free.pop().unwrap_or_else(|| {
            let victim = evict_one(policy.as_mut());
            left.remove(&victim);
            victim
        });
        policy.inserted(slot, 1);
    }
    left.len()
}

#[test]
fn a_scan_pushes_the_hot_set_out_of_lru_only() {
    assert_eq!(hot_left_after_scan("lru"), 0);
    assert_eq!(hot_left_after_scan("s3fifo"), 50);
}
