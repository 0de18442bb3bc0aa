//! `foresight` without announcements: never much behind the better of LRU and LFU.

use halocline_model::tier::{Trace, by_name, replay_with};

/// Numbers that are the same everywhere (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    /// Ranks by Zipf's law over `files` files.
    fn zipf(&mut self, sums: &[f64]) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "a share of a sum")]
        let at = self.below(1 << 40) as f64 / (1_u64 << 40) as f64 * sums[sums.len() - 1];
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
    }
}

fn sums(files: usize, skew: f64) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "few files")]
    let weight = |rank: usize| (rank as f64 + 1.0).powf(-skew);
    (0..files)
        .scan(0.0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        })
        .collect()
}

const KINDS: [&str; 8] = [
    "loop",
    "zipf 0.6",
    "zipf 0.9",
    "zipf 1.2",
    "phases",
    "scans",
    "zipf and scans",
    "shifting zipf",
];

/// References to `files` files of a kind.
fn references(kind: &str, files: usize, count: usize, numbers: &mut Numbers) -> Vec<usize> {
    let mut references = Vec::with_capacity(count);
    let skewed =
        |skew: f64, shift: usize, length: usize, numbers: &mut Numbers, out: &mut Vec<usize>| {
            let sums = sums(files, skew);
            out.extend((0..length).map(|_| (numbers.zipf(&sums) * 181 + shift) % files));
        };
    while references.len() < count {
        match kind {
            "loop" => references.extend(0..files),
            "zipf 0.6" => skewed(0.6, 0, 100, numbers, &mut references),
            "zipf 0.9" => skewed(0.9, 0, 100, numbers, &mut references),
            "zipf 1.2" => skewed(1.2, 0, 100, numbers, &mut references),
            // A working set for some time, then another.
            "phases" => {
                let first = usize::try_from(numbers.below(files as u64)).unwrap();
                let set = (files / 6).max(2);
                references.extend((0..set * 12).map(|_| {
                    (first + usize::try_from(numbers.below(set as u64)).unwrap()) % files
                }));
            }
            // Each file once, in order, between short loops over a few.
            "scans" => {
                references.extend((0..files / 2).map(|at| at % (files / 8).max(2)));
                references.extend(0..files);
            }
            "zipf and scans" => {
                skewed(1.0, 0, files * 2, numbers, &mut references);
                references.extend(0..files);
            }
            _ => {
                let shift = references.len();
                skewed(0.9, shift, files * 8, numbers, &mut references);
            }
        }
    }
    references.truncate(count);
    references
}

fn trace(kind: &str, percent: u64, mixed: bool, seed: u64) -> Trace {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ (seed << 32 | seed));
    for _ in 0..20 {
        let _ = numbers.below(2);
    }
    let files = 60 + usize::try_from(numbers.below(120)).unwrap();
    let refs = references(kind, files, 6000, &mut numbers);
    let size = |numbers: &mut Numbers| if mixed { 1 << numbers.below(8) } else { 16 };
    let sizes: Vec<u64> = (0..files).map(|_| size(&mut numbers)).collect();
    let capacity = sizes.iter().sum::<u64>() * percent / 100;
    let names = (0..files).map(|file| format!("{file:04}")).collect();
    Trace { capacity, names, sizes, refs }
}

/// What `foresight`, `lru` and `lfu` move of each kind: mixed sizes, an SSD for 35 % of them.
const GOLDEN: [[u64; 3]; 8] = [
    [112_240, 342_110, 342_110],
    [90_391, 228_179, 178_757],
    [63_102, 146_015, 122_711],
    [37_221, 91_963, 73_865],
    [23_168, 22_008, 152_471],
    [75_351, 228_855, 208_290],
    [81_485, 222_962, 167_827],
    [53_417, 155_074, 115_290],
];

/// Bytes read from the disk and written back to it.
fn moved(policy: &str, trace: &Trace) -> u64 {
    let done = replay_with(trace, false, by_name(policy).unwrap().as_mut());
    done.read + done.evicted
}

/// What is allowed is 5 %, and what finding out may cost: a part of the SSD's size, once.
#[test]
fn foresight_is_never_far_behind_the_better_of_lru_and_lfu() {
    for kind in KINDS {
        let (mut all_ours, mut all_best) = (0, 0);
        for mixed in [false, true] {
            for percent in [5, 20, 50, 80] {
                for seed in 1..=2 {
                    let trace = trace(kind, percent, mixed, seed);
                    let ours = moved("foresight", &trace);
                    let best = moved("lru", &trace).min(moved("lfu", &trace));
                    let what = format!("{kind}, mixed {mixed}, {percent} %, seed {seed}");
                    let allowed = best * 105 / 100 + trace.capacity / 4;
                    assert!(ours <= allowed, "{what}: foresight {ours}, the better {best}");
                    all_ours += ours;
                    all_best += best;
                }
            }
        }
        assert!(all_ours * 100 <= all_best * 105, "{kind}: foresight {all_ours}, {all_best}");
    }
}

/// What each policy moves, as measured: a change of a rule shows here.
#[test]
fn golden_numbers() {
    let found = KINDS.map(|kind| {
        let trace = trace(kind, 35, true, 1);
        ["foresight", "lru", "lfu"].map(|policy| moved(policy, &trace))
    });
    assert_eq!(found, GOLDEN);
}
