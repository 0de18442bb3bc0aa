//! The fastest choices of the fastest kinds, which are replayed with all of the sample in the end.
//!
//! The gaps of a part of the sample cost some layouts more seeks than others: the fastest of one kind may be one of the
//! slowest.

use std::collections::BTreeMap;

use super::choice::{Choice, Replayed};
use crate::servers::Servers;

/// How many kinds there are at most.
const KINDS: usize = 24;
/// Limit of the memory of their choices, in bytes: with many files and servers there are fewer kinds.
const BYTES: usize = 64 << 20;

/// How many choices for so many items on so many servers may be kept.
pub(super) fn choices_max(items: usize, servers: usize) -> usize {
    let bytes = items.saturating_mul(servers).saturating_mul(2 * size_of::<u64>());
    BYTES / bytes.max(1)
}

/// What the classes of servers have of a region, roughly: how many bits each width has.
type Kind = Vec<u32>;

/// The fastest choice of each kind; without a limit of its own, none.
#[derive(Debug, Default)]
pub(super) struct Finalists {
    kinds_max: usize,
    by_kind: BTreeMap<Kind, Replayed>,
}

impl Finalists {
    /// None yet, for choices of so many items on so many servers.
    pub(super) fn new(items: usize, servers: usize) -> Self {
        Self { kinds_max: KINDS.min(choices_max(items, servers)), by_kind: BTreeMap::new() }
    }

    /// Notes a choice if it is the fastest of its kind, by the widths of item `index`, and that is one of the fastest
    /// kinds.
    pub(super) fn note(&mut self, servers: &Servers, index: usize, choice: &Choice, seconds: f64) {
        let widths = &choice.first[index];
        let bits = |width: u64| width.checked_ilog2().map_or(0, |log| log + 1);
        let classes = servers.classes().iter();
        let kind: Kind = classes.map(|class| bits(widths[class.members[0]])).collect();
        if self.by_kind.get(&kind).is_some_and(|fastest| fastest.seconds <= seconds) {
            return;
        }
        if self.by_kind.len() >= self.kinds_max && !self.by_kind.contains_key(&kind) {
            let others = self.by_kind.iter();
            let slowest = others.max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
            match slowest {
                Some((kind, slowest)) if slowest.seconds > seconds => {
                    let kind = kind.clone();
                    self.by_kind.remove(&kind);
                }
                _ => return,
            }
        }
        self.by_kind.insert(kind, Replayed { seconds, choice: choice.clone() });
    }

    /// All of them.
    pub(super) fn into_choices(self) -> impl Iterator<Item = Choice> {
        self.by_kind.into_values().map(|fastest| fastest.choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::disk_and_ssd;

    fn noted(finalists: &mut Finalists, widths: [u64; 2], seconds: f64) {
        let choice =
            Choice { first: vec![widths.to_vec()], rest: vec![vec![4096, 0]], shared: false };
        finalists.note(&disk_and_ssd(), 0, &choice, seconds);
    }

    fn widths(finalists: Finalists) -> Vec<Vec<u64>> {
        finalists.into_choices().map(|mut choice| choice.first.remove(0)).collect()
    }

    #[test]
    fn each_kind_has_its_fastest() {
        let mut finalists = Finalists::new(1, 2);
        for (widths, seconds) in
            [([0, 4096], 3.0), ([0, 5000], 2.0), ([0, 6000], 4.0), ([4096, 4096], 9.0)]
        {
            noted(&mut finalists, widths, seconds);
        }
        assert_eq!(widths(finalists), [[0, 5000], [4096, 4096]]);
    }

    #[test]
    fn of_many_kinds_the_fastest_stay() {
        let mut finalists = Finalists::new(1, 2);
        for bits in (0..40).rev() {
            noted(&mut finalists, [0, 1 << bits], f64::from(bits));
        }
        noted(&mut finalists, [0, 1 << 50], 50.0);
        let expected: Vec<_> = (0..24).map(|bits| vec![0, 1 << bits]).collect();
        assert_eq!(widths(finalists), expected);
    }

    /// 256 files of eight regions each on 4096 servers: a choice has 134 MB.
    #[test]
    fn where_choices_are_large_there_are_few_or_none() {
        assert_eq!(Finalists::new(256 * 8, 4096).kinds_max, 0);
        assert_eq!(Finalists::new(64, 4096).kinds_max, 16);
        let mut none = Finalists { kinds_max: 0, ..Finalists::new(1, 2) };
        noted(&mut none, [0, 4096], 1.0);
        assert_eq!(widths(none), Vec::<Vec<u64>>::new());
    }
}
