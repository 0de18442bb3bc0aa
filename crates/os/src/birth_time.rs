//! When files were created: together with the inode number, this distinguishes a file from a later one with the same
//! number.

use std::fs::Metadata;
use std::time::SystemTime;

/// Birth time in nanoseconds since the epoch; 0 if the file system reports none.
pub fn born_ns(found: &Metadata) -> u64 {
    let born = found.created().unwrap_or(SystemTime::UNIX_EPOCH);
    let born_ns = born.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(born_ns).unwrap_or(u64::MAX)
}
