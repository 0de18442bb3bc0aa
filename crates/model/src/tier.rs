//! Whole-file tier: which files are kept on the SSD, replayed over a known sequence of
//! references (SPEC section 5; `HyCache`, Algorithms 4 and 5).

mod heuristic;
mod recency;

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::policy::UnknownPolicy;

/// A sequence of references to files of known sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Bytes the SSD holds.
    pub capacity: u64,
    /// Names of the files, ascending; a file's index is its id.
    pub names: Vec<String>,
    /// Size of each file in bytes.
    pub sizes: Vec<u64>,
    /// Files in the order in which they are referenced.
    pub refs: Vec<usize>,
}

/// What happened at one reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The file was on the SSD.
    Hit(usize),
    /// It was brought to the SSD and the others evicted, in this order.
    Admit(usize, Vec<usize>),
    /// It was served in place.
    Bypass(usize),
}

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Bytes read from the disk.
    pub read: u64,
    /// Bytes evicted.
    pub evicted: u64,
    /// References served by the SSD.
    pub hits: u64,
    /// One step a reference.
    pub steps: Vec<Step>,
    /// Files on the SSD at the end.
    pub cached: BTreeSet<usize>,
}

/// Decides at a miss. The caller guarantees that the file fits an empty SSD and is not on it.
pub trait Keep: Debug {
    /// Sees reference `index` of the trace, hit or miss, before anything is decided.
    fn referenced(&mut self, trace: &Trace, index: usize);
    /// Files to evict so that the file of reference `index` fits, in order; `None` bypasses it.
    fn make_room(
        &mut self,
        trace: &Trace,
        index: usize,
        cached: &BTreeSet<usize>,
        free: u64,
    ) -> Option<Vec<usize>>;
}

/// A row of [`POLICIES`]: name and how to make one.
pub type Row = (&'static str, fn() -> Box<dyn Keep>);

/// All tier policies.
pub const POLICIES: &[Row] = &[
    ("heuristic", || Box::new(heuristic::Heuristic)),
    ("lru", || Box::new(recency::Recency::lru())),
    ("lfu", || Box::new(recency::Recency::lfu())),
];

/// Makes the policy called `name`.
pub fn by_name(name: &str) -> Result<Box<dyn Keep>, UnknownPolicy> {
    let row = POLICIES.iter().find(|row| row.0 == name);
    row.map(|row| row.1())
        .ok_or_else(|| UnknownPolicy::new("tier", name, POLICIES.iter().map(|row| row.0)))
}

/// Replays `trace` under `policy`.
pub fn replay(trace: &Trace, policy: &mut dyn Keep) -> Replay {
    let mut done =
        Replay { read: 0, evicted: 0, hits: 0, steps: Vec::new(), cached: BTreeSet::new() };
    let mut used = 0;
    for (index, &file) in trace.refs.iter().enumerate() {
        policy.referenced(trace, index);
        if done.cached.contains(&file) {
            done.hits += 1;
            done.steps.push(Step::Hit(file));
            continue;
        }
        let size = trace.sizes[file];
        done.read += size;
        let room = if size > trace.capacity {
            None
        } else {
            policy.make_room(trace, index, &done.cached, trace.capacity - used)
        };
        let Some(leaving) = room else {
            done.steps.push(Step::Bypass(file));
            continue;
        };
        for gone in &leaving {
            assert!(done.cached.remove(gone), "only what is cached can be evicted");
            done.evicted += trace.sizes[*gone];
            used -= trace.sizes[*gone];
        }
        used += size;
        assert!(used <= trace.capacity, "a policy that admits has made room");
        done.cached.insert(file);
        done.steps.push(Step::Admit(file, leaving));
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The worked example of the paper, section 5.3.
    fn example() -> Trace {
        Trace {
            capacity: 100,
            names: ["F1", "F2", "F3", "F4"].map(str::to_owned).to_vec(),
            sizes: vec![20, 40, 9, 40],
            refs: vec![0, 1, 2, 3, 2, 0, 1, 3, 2],
        }
    }

    fn run(name: &str, trace: &Trace) -> Replay {
        replay(trace, by_name(name).expect("a row").as_mut())
    }

    #[test]
    fn the_worked_example() {
        let done = run("heuristic", &example());
        assert_eq!((done.read, done.evicted, done.hits), (127, 9, 3));
        assert_eq!(
            done.steps,
            [
                Step::Admit(0, vec![]),
                Step::Admit(1, vec![]),
                Step::Admit(2, vec![]),
                Step::Admit(3, vec![2]),
                Step::Bypass(2),
                Step::Hit(0),
                Step::Hit(1),
                Step::Hit(3),
                Step::Bypass(2),
            ]
        );
        assert_eq!(run("lru", &example()).read, 218);
        assert_eq!(run("lfu", &example()).read, 218);
    }

    #[test]
    fn a_file_larger_than_the_ssd_is_never_admitted() {
        let trace = Trace { capacity: 30, ..example() };
        for (name, _) in POLICIES {
            assert!(
                run(name, &trace).steps.iter().all(|step| !matches!(step, Step::Admit(1 | 3, _)))
            );
        }
    }

    proptest! {
        #[test]
        fn no_policy_overfills_or_reads_less_than_each_file_once(
            capacity in 0..60u64,
            sizes in prop::collection::vec(0..30u64, 1..6),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let refs: Vec<usize> = picks.iter().map(|pick| pick.index(sizes.len())).collect();
            let names = (0..sizes.len()).map(|id| format!("F{id}")).collect();
            let trace = Trace { capacity, names, sizes, refs };
            let seen: BTreeSet<usize> = trace.refs.iter().copied().collect();
            let once: u64 = seen.iter().map(|&file| trace.sizes[file]).sum();
            let all: u64 = trace.refs.iter().map(|&file| trace.sizes[file]).sum();
            for (name, _) in POLICIES {
                let done = run(name, &trace);
                prop_assert!(once <= done.read && done.read <= all, "{name}");
                prop_assert_eq!(done.steps.len(), trace.refs.len());
            }
        }
    }
}
