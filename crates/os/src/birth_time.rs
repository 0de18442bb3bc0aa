//! When files were created: together with the inode number, this distinguishes a file from a later one with the same
//! number.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::time::SystemTime;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

/// Birth time in nanoseconds since the epoch; 0 if the file system reports none.
pub fn born_ns(found: &Metadata) -> u64 {
    let born = found.created().unwrap_or(SystemTime::UNIX_EPOCH);
    let born_ns = born.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(born_ns).unwrap_or(u64::MAX)
}

/// The same of an open file, which may be opened with `O_PATH`.
///
/// # Errors
/// Those of `statx(2)`, but for a kernel without it, where nothing is known.
pub fn born_ns_of(file: impl AsFd) -> rustix::io::Result<u64> {
    let found = match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME) {
        Err(Errno::NOSYS) => return Ok(0),
        found => found?,
    };
    if found.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return Ok(0);
    }
    let seconds = u64::try_from(found.stx_btime.tv_sec).unwrap_or(0);
    Ok(seconds.saturating_mul(1_000_000_000).saturating_add(found.stx_btime.tv_nsec.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_say_the_same() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(born_ns_of(&file).unwrap(), born_ns(&file.metadata().unwrap()));
    }
}
