//! Where a listing of a directory continues: a number that also serves once the directory was split.

use super::{Buckets, InodeNumber};

/// The highest place in a bucket that a cursor can have. A bucket takes no name behind it.
pub const PLACE_MAX: u64 = (1 << PLACE_BITS) - 64;
/// The highest place of a name in a directory that is split: a listing that had come further has seen all.
pub const SPLIT_PLACE_MAX: u64 = (1 << MET_BITS) - 1;

const PLACE_BITS: u32 = 32;
const MET_BITS: u32 = 26;
const BUCKET_BITS: u32 = 4;
/// Set once the listing has met buckets. The highest bit is free: programs get cursors as signed numbers.
const HAS_BUCKETS: u64 = 1 << (PLACE_BITS + MET_BITS + BUCKET_BITS);

/// Where a listing continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// After this place of a directory without buckets.
    Directory(u64),
    /// In a directory with buckets.
    Bucket {
        /// The index of the bucket.
        index: usize,
        /// The place that the listing had reached when it met the buckets; 0 if it began there. A name keeps its place
        /// when it moves to a bucket, so the listing begins each bucket behind this.
        met: u64,
        /// The place after which it continues in the bucket.
        after: u64,
    },
}

const fn bits(number: u64, shift: u32, count: u32) -> u64 {
    (number >> shift) & ((1 << count) - 1)
}

impl Cursor {
    /// The cursor with this number. Any number is one: programs may ask for any.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        if number & HAS_BUCKETS == 0 {
            return Self::Directory(number);
        }
        let index = bits(number, PLACE_BITS + MET_BITS, BUCKET_BITS);
        Self::Bucket {
            index: usize::try_from(index).unwrap_or_default(),
            met: bits(number, PLACE_BITS, MET_BITS),
            after: bits(number, 0, PLACE_BITS),
        }
    }

    /// Its number; greater for what is listed later. What is beyond a limit counts as the limit.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Directory(after) => after.min(HAS_BUCKETS - 1),
            Self::Bucket { index, met, after } => {
                let index = (index as u64).min((1 << BUCKET_BITS) - 1);
                let (met, after) = (met.min(SPLIT_PLACE_MAX), after.min(PLACE_MAX));
                HAS_BUCKETS | index << (PLACE_BITS + MET_BITS) | met << PLACE_BITS | after
            }
        }
    }

    /// The same in a directory that has buckets.
    #[must_use]
    pub fn among_buckets(self) -> Self {
        match self {
            Self::Directory(after) => {
                let met = after.min(SPLIT_PLACE_MAX);
                Self::Bucket { index: 0, met, after: met }
            }
            among @ Self::Bucket { .. } => among,
        }
    }

    /// The start of the next bucket, if there is one.
    #[must_use]
    pub fn next_bucket(self, buckets: &Buckets) -> Option<Self> {
        match self {
            Self::Bucket { index, met, .. } if index + 1 < buckets.numbers().len() => {
                Some(Self::Bucket { index: index + 1, met, after: met })
            }
            _ => None,
        }
    }

    /// The same, after a place of the shard that it leads to.
    #[must_use]
    pub const fn after(self, place: u64) -> Self {
        match self {
            Self::Directory(_) => Self::Directory(place),
            Self::Bucket { index, met, .. } => Self::Bucket { index, met, after: place },
        }
    }

    /// The shard of a directory that it leads to, and the place there; `None` if there is no such bucket.
    #[must_use]
    pub fn shard(
        self,
        directory: InodeNumber,
        buckets: Option<&Buckets>,
    ) -> Option<(InodeNumber, u64)> {
        match self {
            Self::Directory(after) => Some((directory, after)),
            Self::Bucket { index, after, .. } => buckets
                .and_then(|buckets| buckets.numbers().get(index))
                .map(|shard| (*shard, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cursor_has_a_number_of_its_own_in_the_order_of_the_listing() {
        let mut all = vec![Cursor::Directory(0), Cursor::Directory(7)];
        for index in 0..Buckets::COUNT {
            for after in [0, 5, PLACE_MAX] {
                all.push(Cursor::Bucket { index, met: SPLIT_PLACE_MAX, after });
            }
        }
        let numbers: Vec<u64> = all.iter().map(|cursor| cursor.number()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
        // A front end adds 2 for `.` and `..`.
        assert!(numbers.iter().all(|number| number + 2 < 1 << 63));
        for (cursor, number) in all.iter().zip(&numbers) {
            assert_eq!(Cursor::from_number(*number), *cursor);
        }
        for any in [u64::MAX, HAS_BUCKETS, HAS_BUCKETS - 1, 1 << 63] {
            let _cursor = Cursor::from_number(any).among_buckets().number();
        }
    }
}
