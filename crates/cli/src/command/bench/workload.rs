//! Which process requests which bytes, and in which order: the papers' IOR patterns.
//!
//! As in the papers, each of the n processes of an instance accesses its own 1/n of the shared
//! file in requests of one size, each byte once, in ascending order or in a random one.

use std::str::FromStr;

use halocline_os::counted::counted;

use serde::{Deserialize, Serialize};

use super::content::spread;

/// Instances of a mix: six of the ten of S4D-Cache's workload are sequential.
pub(super) const MIX_INSTANCES: u32 = 10;

/// The most bytes of a request: each process has buffers of that size.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// The most requests of all processes: their offsets are made before they are used.
const REQUESTS_MAX: u64 = 1 << 26;

/// The order of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Each process goes through its part in random order.
    Random,
    /// Each process goes through its part from beginning to end.
    Sequential,
    /// Several instances with a file each, this percentage sequential, the others random.
    Mix(u8),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mix = |share: &str| share.parse().ok().filter(|share| *share <= 100).map(Self::Mix);
        match text {
            "random" => Ok(Self::Random),
            "sequential" => Ok(Self::Sequential),
            _ => text.strip_prefix("mix:").and_then(mix).ok_or_else(|| {
                format!(
                    "{text:?} is not random, sequential or mix:PERCENT such as mix:60 \
                     (60 % of the instances are sequential)"
                )
            }),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Random => out.write_str("random"),
            Self::Sequential => out.write_str("sequential"),
            Self::Mix(share) => write!(out, "mix:{share}"),
        }
    }
}

/// One program over one shared file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instance {
    /// Its index among the workload's instances.
    pub(super) number: u32,
    /// Size of its file: a multiple of request size times processes.
    pub(super) bytes: u64,
    pub(super) random: bool,
    /// With n processes, each process has every n-th request instead of a contiguous part of the file.
    pub(super) strided: bool,
}

impl Instance {
    /// Name of its file.
    pub(super) fn file_name(&self) -> String {
        format!("shared-{}", self.number)
    }

    /// The offsets of process `rank`, in its order.
    pub(super) fn offsets(&self, shape: &Shape, rank: u32) -> Vec<u64> {
        let each = self.bytes / shape.request_size / u64::from(shape.processes);
        let first = each * u64::from(rank);
        let number = |index: u64| {
            let (processes, rank) = (u64::from(shape.processes), u64::from(rank));
            if self.strided { index * processes + rank } else { first + index }
        };
        let mut offsets: Vec<u64> =
            (0..each).map(|index| number(index) * shape.request_size).collect();
        if self.random {
            shuffle(&mut offsets, spread(shape.seed ^ spread(u64::from(self.number))), rank);
        }
        offsets
    }
}

/// What all instances have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) processes: u32,
    pub(super) request_size: u64,
    pub(super) seed: u64,
}

/// A pattern with its sizes: the input of one case.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) pattern: Pattern,
    pub(super) shape: Shape,
    pub(super) instances: Vec<Instance>,
}

impl Workload {
    /// At most `data` bytes in whole requests, the same number for each process.
    pub(super) fn new(pattern: Pattern, shape: Shape, data: u64) -> Result<Self, String> {
        let count = if matches!(pattern, Pattern::Mix(_)) { MIX_INSTANCES } else { 1 };
        if shape.request_size > REQUEST_BYTES_MAX || data / shape.request_size > REQUESTS_MAX {
            return Err(format!(
                "--request-size and --data: {data} bytes in requests of {}; a request has at most \
                 {REQUEST_BYTES_MAX} bytes, and all together are at most {REQUESTS_MAX}",
                shape.request_size
            ));
        }
        let round = shape.request_size * u64::from(shape.processes);
        let bytes = data / u64::from(count) / round * round;
        if bytes == 0 {
            return Err(format!(
                "--data: {data} bytes are less than one request of {} bytes for each of \
                 {}{}; give at least {} bytes, or smaller or fewer requests",
                shape.request_size,
                counted(shape.processes, "process"),
                if count > 1 { format!(" in each of {count} instances") } else { String::new() },
                round * u64::from(count)
            ));
        }
        let instances = (0..count).map(|number| {
            let random = match pattern {
                Pattern::Random => true,
                Pattern::Sequential => false,
                Pattern::Mix(percent) => !chosen(number, percent),
            };
            Instance { number, bytes, random, strided: false }
        });
        Ok(Self { pattern, shape, instances: instances.collect() })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.instances.iter().map(|instance| instance.bytes).sum()
    }
}

/// Whether instance `number` is among the given percentage, evenly distributed.
fn chosen(number: u32, percent: u8) -> bool {
    let before = |number: u32| number * u32::from(percent) / 100;
    before(number + 1) > before(number)
}

/// A Fisher-Yates shuffle with numbers that depend only on `seed` and `rank`.
fn shuffle(offsets: &mut [u64], seed: u64, rank: u32) {
    let mut state = spread(seed ^ u64::from(rank));
    for last in (1..offsets.len()).rev() {
        state = spread(state);
        let other = (u128::from(state) * (last as u128 + 1)) >> 64;
        offsets.swap(last, usize::try_from(other).expect("at most last"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { processes: 3, request_size: 1000, seed: 1 };

    fn all(workload: &Workload) -> Vec<u64> {
        let instance = &workload.instances[0];
        (0..SHAPE.processes).flat_map(|rank| instance.offsets(&SHAPE, rank)).collect()
    }

    #[test]
    fn sizes_that_no_machine_has_are_refused() {
        for (request_size, data) in [(1, 64 << 40), (64 << 40, 64 << 40), (u64::MAX, u64::MAX)] {
            let shape = Shape { request_size, ..SHAPE };
            let refused = Workload::new(Pattern::Random, shape, data).unwrap_err();
            assert!(refused.contains("--request-size"), "{refused}");
        }
    }

    #[test]
    fn every_byte_is_asked_for_once() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            let workload = Workload::new(pattern, SHAPE, 100_000).unwrap();
            assert_eq!(workload.bytes(), 99_000);
            let mut offsets = all(&workload);
            assert_eq!(offsets.is_sorted(), pattern == Pattern::Sequential);
            offsets.sort_unstable();
            assert_eq!(offsets, (0..99).map(|index| index * 1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn strided_processes_take_turns() {
        let instance = Instance { number: 0, bytes: 9000, random: false, strided: true };
        let offsets: Vec<_> = (0..3).map(|rank| instance.offsets(&SHAPE, rank)).collect();
        assert_eq!(offsets[1], [1000, 4000, 7000]);
        let mut all = offsets.concat();
        all.sort_unstable();
        assert_eq!(all, (0..9).map(|index| index * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_seed_makes_the_order() {
        let offsets = |seed| {
            let shape = Shape { seed, ..SHAPE };
            Workload::new(Pattern::Random, shape, 100_000).unwrap().instances[0].offsets(&shape, 1)
        };
        assert_eq!(offsets(1), offsets(1));
        assert_ne!(offsets(1), offsets(2));
    }

    #[test]
    fn six_of_ten_instances_of_a_mix_are_sequential() {
        let workload = Workload::new(Pattern::Mix(60), SHAPE, 100_000).unwrap();
        let random: Vec<_> = workload.instances.iter().map(|instance| instance.random).collect();
        assert_eq!(random.iter().filter(|random| !**random).count(), 6);
        assert!(random[..4].contains(&true) && random[..4].contains(&false), "{random:?}");
    }

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for text in ["random", "sequential", "mix:60", "mix:0"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for bad in ["mix", "mix:101", "Random", ""] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn too_little_data_is_refused_with_the_least_that_works() {
        let error = Workload::new(Pattern::Random, SHAPE, 2999).unwrap_err();
        assert!(error.contains("at least 3000 bytes"), "{error}");
    }
}
