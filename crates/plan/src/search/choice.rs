//! Widths for all regions, and how long their replays take.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Widths for each item: with and without space on SSDs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Choice {
    pub(super) first: Vec<Vec<u64>>,
    pub(super) rest: Vec<Vec<u64>>,
    /// Whether regions that are alike get each its share of the space on SSDs, not one after the other.
    pub(super) shared: bool,
}

impl Choice {
    /// The same in each run; a few thousand choices do not meet by chance.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }

    /// The same with other widths where there is no space on SSDs.
    pub(super) fn with_rest(&self, rest: &[u64]) -> Self {
        Self { rest: vec![rest.to_vec(); self.rest.len()], ..self.clone() }
    }

    /// The widths of each item where it has space on SSDs, or where it has none.
    pub(super) const fn widths(&mut self, of: Stretch) -> &mut Vec<Vec<u64>> {
        match of {
            Stretch::First => &mut self.first,
            Stretch::Rest => &mut self.rest,
        }
    }
}

/// Which widths of an item are meant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stretch {
    /// Those with space on SSDs.
    First,
    /// Those without.
    Rest,
}

/// A choice, and the seconds that its replay takes.
#[derive(Debug, Clone)]
pub(super) struct Replayed {
    pub(super) seconds: f64,
    pub(super) choice: Choice,
}

/// The fastest first.
pub(super) fn rank(replayed: &mut [Replayed]) {
    replayed.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
}

/// Keeps the faster one of what everything on a class, or on one server, takes.
pub(super) fn note(
    fastest: &mut BTreeMap<Option<usize>, Replayed>,
    class: Option<usize>,
    replayed: &Replayed,
) {
    if fastest.get(&class).is_none_or(|known| replayed.seconds < known.seconds) {
        fastest.insert(class, replayed.clone());
    }
}
