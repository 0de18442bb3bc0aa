//! Looking for data and holes.

use rustix::fs::SeekFrom;

/// Where a `seek` for data or a hole starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may be data.
    Data,
    /// The next hole.
    Hole,
}

impl Seek {
    /// The same for a system call that starts at `offset`.
    pub const fn at(self, offset: u64) -> SeekFrom {
        match self {
            Self::Data => SeekFrom::Data(offset),
            Self::Hole => SeekFrom::Hole(offset),
        }
    }
}
