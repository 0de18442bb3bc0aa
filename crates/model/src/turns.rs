//! Whether processes that take turns in one stream are in step, that is, whether their requests arrive in file order,
//! so that a disk without a queue of its own serves them without seeks (ours; docs/ALGORITHMS.md, section 3.2).
//!
//! The order in which requests arrive is the order in which a disk would get them. If they are in file order for a
//! while, it is worth a seek to go to the origin and stay there: processes that wait for one disk keep their order.
//! That pays only if it lasts. After an attempt that did not last, twice as many requests must arrive in order before
//! the next one.

use crate::request::ByteRange;

/// Requests in order required before the first attempt.
const NEEDED: u32 = 4;
/// Requests in order required after the first failure.
const NEEDED_AGAIN: u32 = 64;
/// Limit of that number.
const NEEDED_MAX: u32 = 1 << 16;
/// An attempt has failed if the order breaks before this many requests, which is how many an SSD would have served
/// during its seek.
const LASTS: u32 = 128;

/// The order of a file's requests.
#[derive(Debug)]
pub struct Turns {
    /// Where the last request ended.
    end: u64,
    /// Requests that each began where the previous one ended.
    in_order: u32,
    /// How many of those lead to an attempt.
    needed: u32,
}

impl Default for Turns {
    fn default() -> Self {
        Self { end: u64::MAX, in_order: 0, needed: NEEDED }
    }
}

impl Turns {
    /// Notes a request of any process; returns whether they are in step.
    pub fn note(&mut self, range: ByteRange) -> bool {
        if range.start == self.end {
            self.in_order = self.in_order.saturating_add(1);
        } else {
            if self.in_order >= self.needed {
                let failed = self.in_order - self.needed < LASTS;
                self.needed =
                    if failed { (2 * self.needed).clamp(NEEDED_AGAIN, NEEDED_MAX) } else { NEEDED };
            }
            self.in_order = 0;
        }
        self.end = range.end;
        self.in_step()
    }

    /// Whether the requests so far are in step.
    #[must_use]
    pub const fn in_step(&self) -> bool {
        self.in_order >= self.needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes requests of 10 bytes one behind the other, from `from` on; how many are in step.
    fn in_step(turns: &mut Turns, from: u64, count: u64) -> usize {
        (0..count).filter(|at| turns.note(ByteRange::at(from + at * 10, 10))).count()
    }

    #[test]
    fn four_in_order_are_in_step_until_the_order_breaks() {
        let mut turns = Turns::default();
        assert_eq!(in_step(&mut turns, 0, 200), 196);
        assert!(!turns.note(ByteRange::at(0, 10)));
        assert_eq!(in_step(&mut turns, 5000, 200), 196, "it had lasted");
    }

    #[test]
    fn what_did_not_last_takes_longer_to_be_believed() {
        let mut turns = Turns::default();
        let mut tried = 0;
        for at in 0..100 {
            tried += usize::from(in_step(&mut turns, at * 1000, 70) > 0);
        }
        assert_eq!(tried, 2, "after 4 and after 64 requests; 128 never come");
        assert!(in_step(&mut turns, 0, 1000) > 0);
        turns.note(ByteRange::at(7, 1));
        assert_eq!(in_step(&mut turns, 0, 10), 6, "what has lasted is believed again");
    }
}
