//! Bytes that parsers do not expect: samples of what they read, changed at random from fixed seeds.
//!
//! A target is called with each. It may refuse what it likes; it must not panic (release builds check
//! for overflow, too), and what it accepts must hold what the target asserts. `HALOCLINE_HOSTILE_ROUNDS`
//! multiplies the rounds, for longer runs; docs/decisions/0025-hostile-bytes.md has the reasons.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Numbers at which counting goes wrong.
const NUMBERS: [u64; 14] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A generator of numbers (`SplitMix64`): the same seed gives the same ones.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.any() % (bound.max(1) as u64)).expect("below a usize")
    }
}

/// Calls `target` `rounds` times with `samples` that were changed, and once with each as it is.
///
/// # Panics
/// As `target` does, after the seed and the bytes were written to standard error.
pub fn attack(samples: &[&[u8]], rounds: u64, mut target: impl FnMut(&[u8])) {
    let times = std::env::var("HALOCLINE_HOSTILE_ROUNDS").ok().and_then(|times| times.parse().ok());
    for sample in samples {
        target(sample);
    }
    for seed in 0..rounds * times.unwrap_or(1) {
        let bytes = changed(samples, &mut Random(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            eprintln!("hostile bytes of seed {seed}: {}", bytes.escape_ascii());
            resume_unwind(panic);
        }
    }
}

/// One of `samples`, changed in some places.
pub fn changed(samples: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = samples[random.below(samples.len())].to_vec();
    for _ in 0..=random.below(6) {
        change(&mut bytes, samples, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, samples: &[&[u8]], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let len = random.below((bytes.len() - at).min(64) + 1);
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).expect("a byte"),
        2 => drop(bytes.drain(at..at + len)),
        3 => {
            let again = bytes[at..at + len].to_vec();
            bytes.splice(at..at, again);
        }
        4 => {
            let other = samples[random.below(samples.len())];
            let from = random.below(other.len() + 1);
            let to = from + random.below((other.len() - from).min(256) + 1);
            bytes.splice(at..at + len, other[from..to].iter().copied());
        }
        5 => bytes.truncate(at),
        6 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        _ => replace_number(bytes, at, random),
    }
}

/// Replaces the first number in digits at or after `at`.
fn replace_number(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let is_digit = u8::is_ascii_digit;
    let Some(start) = bytes[at..].iter().position(is_digit).map(|found| at + found) else { return };
    let end = bytes[start..].iter().position(|byte| !is_digit(byte));
    let end = end.map_or(bytes.len(), |found| start + found);
    let number = NUMBERS[random.below(NUMBERS.len())];
    let text = match random.below(8) {
        0 => format!("-{number}"),
        1 => format!("{number}.5e3"),
        2 => format!("{number}{number}"),
        _ => number.to_string(),
    };
    bytes.splice(start..end, text.into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_that_panics_is_found() {
        let found = catch_unwind(|| {
            attack(&[b"count: 12\n"], 2000, |bytes| {
                let text = String::from_utf8_lossy(bytes);
                let count = text.strip_prefix("count: ").and_then(|rest| rest.trim().parse().ok());
                assert!(count.is_none_or(|count: u64| count.checked_mul(8).is_some()));
            });
        });
        assert!(found.is_err());
    }

    #[test]
    fn a_seed_gives_the_same_bytes() {
        let samples: [&[u8]; 2] = [b"one 1", b"two 22"];
        for seed in 0..100 {
            let one = changed(&samples, &mut Random(seed));
            assert_eq!(one, changed(&samples, &mut Random(seed)));
        }
    }
}
