//! Which of the empty directories on the SSD the store is asked about at a scan: each costs a request, and after a drain
//! there may be many that the store still has.

/// About how many directories the store is asked about at one scan.
const ASKED: u64 = 1024;
/// The most, where a scan finds far more than the one before.
const ASKED_MAX: u64 = 4 * ASKED;

/// Goes through the empty directories in turn, if there are many.
#[derive(Debug, Default)]
pub(super) struct EmptyDirectories {
    scans: u64,
    /// In how many scans each has its turn once.
    parts: u64,
    /// How many were found at this scan.
    found: u64,
    /// About how many of them the store was asked.
    asked: u64,
}

impl EmptyDirectories {
    /// A scan begins.
    pub(super) fn begin(&mut self) {
        self.parts = self.found / ASKED + 1;
        self.scans = self.scans.wrapping_add(1);
        (self.found, self.asked) = (0, 0);
    }

    /// Whether the store is to be asked about the directory with this number now.
    pub(super) fn is_due(&mut self, number: u64) -> bool {
        self.found += 1;
        let is_due = self.asked < ASKED_MAX && number % self.parts == self.scans % self.parts;
        self.asked += u64::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_has_its_turn_and_few_are_asked_about_at_once() {
        let mut empty = EmptyDirectories::default();
        empty.begin();
        assert!((0..1000).all(|number| empty.is_due(number)), "few are all asked about");
        empty.begin();
        let first = (0..100_000).filter(|number| empty.is_due(*number)).count();
        assert_eq!(first, 4096);
        let mut asked = BTreeSet::new();
        for _ in 0..98 {
            empty.begin();
            let now: Vec<u64> = (0..100_000).filter(|number| empty.is_due(*number)).collect();
            assert!(now.len() <= 2 * 1024, "{}", now.len());
            asked.extend(now);
        }
        assert_eq!(asked.len(), 100_000);
    }
}
