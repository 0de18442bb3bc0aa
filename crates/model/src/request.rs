//! What requests consist of: a direction and a byte range.

use serde::{Deserialize, Serialize};

/// Direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Bytes move from the servers to the program.
    Read,
    /// Bytes move from the program to the servers.
    Write,
}

/// A half-open byte range `[start, end)` of a file; `start <= end` always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// An offset or a length in a buffer, as its index.
///
/// # Panics
/// If no buffer is so long.
#[must_use]
pub fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset inside a buffer fits a usize")
}

impl From<ByteRange> for (u64, u64) {
    fn from(range: ByteRange) -> Self {
        (range.start, range.end)
    }
}

/// Ranges in input may be invalid.
impl TryFrom<(u64, u64)> for ByteRange {
    type Error = &'static str;

    fn try_from((start, end): (u64, u64)) -> Result<Self, Self::Error> {
        if start <= end {
            Ok(Self { start, end })
        } else {
            Err("a byte range ends before it starts")
        }
    }
}

impl ByteRange {
    /// The range `[start, end)`.
    ///
    /// # Panics
    /// If `start > end`.
    pub const fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "a byte range ends before it starts");
        Self { start, end }
    }

    /// The range of `len` bytes from `offset`; saturates at the end of the address space.
    pub const fn at(offset: u64, len: u64) -> Self {
        Self { start: offset, end: offset.saturating_add(len) }
    }

    /// Length in bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range holds no byte.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether both ranges share at least one byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether `other` lies inside this range.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The shared bytes, or `None` when there are none.
    pub fn intersect(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// The parts of this range outside `hole`.
    pub fn without(self, hole: Self) -> impl Iterator<Item = Self> {
        let before = Self { start: self.start, end: hole.start.clamp(self.start, self.end) };
        let after = Self { start: hole.end.clamp(self.start, self.end), end: self.end };
        let parts =
            if self.overlaps(hole) { [Some(before), Some(after)] } else { [Some(self), None] };
        parts.into_iter().flatten().filter(|part| !part.is_empty())
    }

    /// The smallest range of whole `unit`-byte blocks that covers this one, up to the last address.
    #[must_use]
    pub const fn widen_to(self, unit: u64) -> Self {
        let end = self.end.div_ceil(unit).saturating_mul(unit);
        Self { start: self.start / unit * unit, end }
    }
}
