//! When files were made: with the inode's number it tells one from another that got its number later.

use std::fs::Metadata;
use std::time::SystemTime;

/// Birth time in nanoseconds since the epoch; 0 where the file system knows none.
pub fn born_ns(found: &Metadata) -> u64 {
    let born = found.created().unwrap_or(SystemTime::UNIX_EPOCH);
    let born_ns = born.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(born_ns).unwrap_or(u64::MAX)
}
