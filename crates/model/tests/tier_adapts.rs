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

    /// A rank by Zipf's law, whose weights have these cumulative `sums`.
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
    [113_890, 342_110, 342_110],
    [90_649, 228_179, 178_757],
    [62_330, 146_015, 122_711],
    [37_351, 91_963, 73_865],
    [22_392, 22_008, 152_471],
    [76_783, 228_855, 208_290],
    [82_901, 222_962, 167_827],
    [53_530, 155_074, 115_290],
];

/// Bytes read from the disk and written back to it.
fn moved(policy: &str, trace: &Trace) -> u64 {
    let done = replay_with(trace, false, by_name(policy).unwrap().as_mut());
    done.read + done.evicted
}

/// How many traces of each kind, sizes and capacity; `HALOCLINE_TIER_SEEDS` says otherwise.
fn seeds() -> u64 {
    let wanted = std::env::var("HALOCLINE_TIER_SEEDS").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(2)
}

/// No trace is more than 5 % behind, of those of the first seeds. Among hundreds of seeds one is
/// (docs/decisions/0032-insured-foresight.md).
#[test]
fn foresight_is_never_far_behind_the_better_of_lru_and_lfu() {
    let mut behind = Vec::new();
    for kind in KINDS {
        for mixed in [false, true] {
            for percent in [5, 20, 40, 60, 80] {
                for seed in 1..=seeds() {
                    let trace = trace(kind, percent, mixed, seed);
                    let ours = moved("foresight", &trace);
                    let best = moved("lru", &trace).min(moved("lfu", &trace));
                    if ours * 100 > best * 105 {
                        let what = format!("{kind}, mixed {mixed}, {percent} %, seed {seed}");
                        behind.push(format!("{what}: foresight {ours}, the better {best}"));
                    }
                }
            }
        }
    }
    assert!(behind.is_empty(), "{} traces: {behind:#?}", behind.len());
}

/// Regression: it left one rule for another at every few bytes, and moved up to 29 % more than LRU.
#[test]
fn phases_that_foresight_was_far_behind_on() {
    for (percent, mixed, seed) in [(80, true, 6), (80, true, 2049)] {
        let trace = trace("phases", percent, mixed, seed);
        let (ours, lru) = (moved("foresight", &trace), moved("lru", &trace));
        assert!(ours * 100 <= lru * 105, "{percent} %, seed {seed}: foresight {ours}, lru {lru}");
    }
}

/// Files `old` are used many times, then files `new` as often, each some times in a row; then
/// those of one half again. All have a byte, and the SSD holds one half and one file more.
fn fork(half: usize, old_again: bool) -> Trace {
    let mut refs = Vec::new();
    for _ in 0..20 {
        refs.extend(0..half);
    }
    for file in half..2 * half {
        refs.extend([file; 4]);
    }
    refs.extend(if old_again { 0..half } else { half..2 * half });
    let names = (0..2 * half).map(|file| format!("{file:04}")).collect();
    Trace { capacity: half as u64 + 1, names, sizes: vec![1; 2 * half], refs }
}

/// Nothing can be within 5 % on every trace: until these two part no policy can tell them from each
/// other, and what it keeps is wrong for one of them, where LRU or LFU moves nothing more.
#[test]
fn no_policy_is_within_5_percent_on_both_of_two_traces_that_begin_alike() {
    for policy in ["foresight", "heuristic", "lru", "lfu"] {
        let far = [false, true].map(|old_again| {
            let trace = fork(100, old_again);
            let best = moved("lru", &trace).min(moved("lfu", &trace));
            moved(policy, &trace) * 100 > best * 105
        });
        assert!(far[0] || far[1], "{policy}");
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
