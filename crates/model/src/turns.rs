//! Whether processes that take turns in one stream are in step: whether their requests come in the order of the file, so
//! that a disk without a queue of its own serves them without a seek (ours; docs/ALGORITHMS.md, section 3.2).
//!
//! The order in which requests come is the order in which a disk would get them. Where it is that of the file for a while
//! it is worth a seek to go to the origin and stay there: processes that wait for one disk keep their order. It is worth it only
//! if it lasts. After an attempt that did not, twice as many requests must come in order before the next.

use crate::request::ByteRange;

/// Requests in order before the first attempt.
const NEEDED: u32 = 4;
/// After the first failure.
const NEEDED_AGAIN: u32 = 64;
/// Most that failures ask for.
const NEEDED_MAX: u32 = 1 << 16;
/// An attempt has failed if the order breaks before so many requests, which is what its seek would have served on an SSD.
const LASTS: u32 = 128;

/// The order of a file's requests.
#[derive(Debug)]
pub struct Turns {
    /// Where the last request ended.
    end: u64,
    /// Requests that each began where the one before it ended.
    in_order: u32,
    /// So many make an attempt.
    needed: u32,
}

impl Default for Turns {
    fn default() -> Self {
        Self { end: u64::MAX, in_order: 0, needed: NEEDED }
    }
}

impl Turns {
    /// Notes a request of any process; whether they are in step.
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

    /// Whether the requests so far are.
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
