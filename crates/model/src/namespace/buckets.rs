//! The shards that have the names of a large directory between them.

use std::sync::Arc;

use super::{InodeNumber, Name};

/// The buckets of a directory that was split, in their order; none for any other directory. They stay the same as long
/// as the directory exists, and their numbers are never used again: whoever remembers them asks the right shard, or one
/// that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Buckets(Arc<[InodeNumber]>);

impl Buckets {
    /// How many a directory gets.
    pub const COUNT: usize = 16;

    /// `None` if it is not a power of two from 2 to [`COUNT`](Self::COUNT), or if a number is there twice.
    #[must_use]
    pub fn new(numbers: &[InodeNumber]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let fits = (2..=Self::COUNT).contains(&numbers.len())
            && numbers.len().is_power_of_two()
            && sorted.len() == numbers.len();
        fits.then(|| Self(numbers.into()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their numbers, in order.
    #[must_use]
    pub fn numbers(&self) -> &[InodeNumber] {
        &self.0
    }

    /// The index of the bucket that has a name, if there are any. The same on all nodes, in all versions.
    #[must_use]
    pub fn index(&self, name: &Name) -> usize {
        // FNV-1a; the upper bits of a product are mixed best.
        let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mixed = usize::try_from(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48);
        mixed.unwrap_or_default() & self.0.len().saturating_sub(1)
    }

    /// The bucket that has a name; `None` if there are no buckets.
    #[must_use]
    pub fn of(&self, name: &Name) -> Option<InodeNumber> {
        self.0.get(self.index(name)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spread_evenly_and_for_ever_alike() {
        let numbers: Vec<_> = (100..116).map(InodeNumber).collect();
        let buckets = Buckets::new(&numbers).unwrap();
        let mut counts = [0_u32; Buckets::COUNT];
        for number in 0..16_000 {
            counts[buckets.index(&Name::from(format!("file{number}").as_str()))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        // As the store has them: another hash would not find what is there.
        let at = |name: &str| buckets.index(&Name::from(name));
        assert_eq!(["a", "b", "file1", ""].map(at), [5, 5, 11, 11]);
        assert_eq!(Buckets::default().of(&Name::from("a")), None);
    }

    #[test]
    fn other_numbers_are_none() {
        let of = |numbers: &[u64]| {
            Buckets::new(&numbers.iter().copied().map(InodeNumber).collect::<Vec<_>>())
        };
        assert!(of(&[5, 6]).is_some());
        for wrong in [&[][..], &[5], &[5, 6, 7], &[5, 5], &(1..33).collect::<Vec<_>>()] {
            assert!(of(wrong).is_none(), "{wrong:?}");
        }
    }
}
