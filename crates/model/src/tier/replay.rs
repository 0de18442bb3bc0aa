//! Replays a sequence of references, known from the beginning, under a policy.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::{FileId, Keep, Outlook};

/// A sequence of references to files of known sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Capacity of the SSD in bytes.
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
    /// One step per reference.
    pub steps: Vec<Step>,
    /// Files on the SSD at the end.
    pub cached: BTreeSet<usize>,
}

/// The references after a position of a trace. Positions are computed once, so that counting needs only a binary
/// search.
struct Ahead<'a> {
    trace: &'a Trace,
    positions: &'a [Vec<u64>],
    now: u64,
    /// Whether a policy may know them.
    announced: bool,
}

fn index(file: FileId) -> usize {
    usize::try_from(file).expect("ids are indices")
}

fn id(file: usize) -> FileId {
    file as FileId
}

impl Ahead<'_> {
    fn after(&self, file: FileId) -> &[u64] {
        if !self.announced {
            return &[];
        }
        let positions = &self.positions[index(file)];
        &positions[positions.partition_point(|position| *position <= self.now)..]
    }
}

impl Outlook for Ahead<'_> {
    fn size(&self, file: FileId) -> u64 {
        self.trace.sizes[index(file)]
    }

    fn is_known(&self) -> bool {
        self.announced
    }

    fn later(&self, file: FileId, horizon: u64) -> u64 {
        let last = self.now.saturating_add(horizon);
        self.after(file).partition_point(|position| *position <= last) as u64
    }

    fn next(&self, file: FileId) -> Option<u64> {
        self.after(file).first().map(|position| position - self.now)
    }

    fn by_name(&self, one: FileId, other: FileId) -> Ordering {
        self.trace.names[index(one)].cmp(&self.trace.names[index(other)])
    }
}

/// Replays `trace` under `policy`, which knows it from the beginning.
pub fn replay(trace: &Trace, policy: &mut dyn Keep) -> Replay {
    replay_with(trace, true, policy)
}

/// The same; without `announced` the policy does not know the references to come.
pub fn replay_with(trace: &Trace, announced: bool, policy: &mut dyn Keep) -> Replay {
    policy.holds(trace.capacity);
    let mut positions = vec![Vec::new(); trace.sizes.len()];
    for (position, &file) in trace.refs.iter().enumerate() {
        positions[file].push(position as u64);
    }
    let mut done =
        Replay { read: 0, evicted: 0, hits: 0, steps: Vec::new(), cached: BTreeSet::new() };
    let mut used = 0;
    for (now, &file) in trace.refs.iter().enumerate() {
        policy.referenced(id(file), trace.sizes[file]);
        if done.cached.contains(&file) {
            done.hits += 1;
            done.steps.push(Step::Hit(file));
            continue;
        }
        let size = trace.sizes[file];
        done.read += size;
        let outlook = Ahead { trace, positions: &positions, now: now as u64, announced };
        let cached = || done.cached.iter().copied().map(id).collect();
        let room = if size > trace.capacity {
            None
        } else {
            policy.make_room(id(file), trace.capacity - used, &cached, &outlook)
        };
        let Some(leaving) = room else {
            done.steps.push(Step::Bypass(file));
            continue;
        };
        let leaving: Vec<usize> = leaving.into_iter().map(index).collect();
        for gone in &leaving {
            assert!(done.cached.remove(gone), "only what is cached can be evicted");
            policy.moved(id(*gone), false);
            done.evicted += trace.sizes[*gone];
            used -= trace.sizes[*gone];
        }
        used += size;
        assert!(used <= trace.capacity, "a policy that admits has made room");
        done.cached.insert(file);
        policy.moved(id(file), true);
        done.steps.push(Step::Admit(file, leaving));
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::optimum;
    use super::super::{POLICIES, by_name};
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
        assert_eq!(optimum::read(&example()), 127);
        assert_eq!(run("lru", &example()).read, 218);
        assert_eq!(run("lfu", &example()).read, 218);
    }

    #[test]
    fn a_file_larger_than_the_ssd_is_never_admitted() {
        let trace = Trace { capacity: 30, ..example() };
        for name in POLICIES.iter().map(|policy| policy.name) {
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
            for name in POLICIES.iter().map(|policy| policy.name) {
                let done = run(name, &trace);
                prop_assert!(once <= done.read && done.read <= all, "{name}");
                prop_assert_eq!(done.steps.len(), trace.refs.len());
                if seen.len() <= 4 && trace.refs.len() <= 12 {
                    prop_assert!(optimum::read(&trace) <= done.read, "{name}");
                    prop_assert!(optimum::moved(&trace) <= done.read + done.evicted, "{name}");
                }
            }
        }
    }

    /// A fixed pseudo-random sequence of traces.
    fn traces(count: u64) -> impl Iterator<Item = Trace> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        (0..count).map(move |_| {
            let files = 3 + usize::try_from(next(3)).unwrap();
            let sizes: Vec<u64> = (0..files).map(|_| 1 + next(40)).collect();
            let total: u64 = sizes.iter().sum();
            let capacity = 10 + total * (30 + next(60)) / 100;
            let refs = (0..14).map(|_| usize::try_from(next(files as u64)).unwrap()).collect();
            let names = (0..files).map(|file| format!("F{file}")).collect();
            Trace { capacity, names, sizes, refs }
        })
    }

    /// Ours is judged by the total bytes that it moves, compared with the paper's heuristic and the optimum.
    #[test]
    fn foresight_moves_less_than_the_heuristic_and_stays_near_the_optimum() {
        let (mut ours, mut paper, mut lru, mut best) = (0, 0, 0, 0);
        for trace in traces(300) {
            let moved = |name| {
                let done = run(name, &trace);
                done.read + done.evicted
            };
            ours += moved("foresight");
            paper += moved("heuristic");
            lru += moved("lru");
            best += optimum::moved(&trace);
        }
        assert!(ours < paper && paper < lru, "foresight {ours}, heuristic {paper}, lru {lru}");
        assert!(ours * 100 <= best * 108, "foresight {ours}, optimum {best}");
    }
}
