//! Operations of `fallocate` on a range.

use rustix::fs::FallocateFlags;

/// How `fallocate` changes a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Free the blocks; the range reads as zeros; the size stays.
    PunchHole,
    /// Reserve blocks, and extend the file if the range goes beyond its end.
    Reserve,
    /// Reserve blocks; the size stays.
    ReserveKeepSize,
    /// Make the range read as zeros, keeping the blocks; extends the file unless `keep_size`.
    Zero {
        /// Whether the file's size stays.
        keep_size: bool,
    },
}

impl Allocate {
    /// The mode of `fallocate(2)`.
    pub const fn mode(self) -> FallocateFlags {
        match self {
            Self::PunchHole => FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
            Self::Reserve => FallocateFlags::empty(),
            Self::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            Self::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
            Self::Zero { keep_size: true } => {
                FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE)
            }
        }
    }
}
