//! Whether two directories are on one device, so that one cannot be faster than the other.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What two directories have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Common {
    /// One file system.
    FileSystem,
    /// Two file systems on one disk.
    Disk,
}

/// What `one` and `other` have in common; `None` if nothing, or if that is unknown (network file systems, device
/// mappers).
pub fn common(one: &Path, other: &Path) -> Option<Common> {
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    let (one, other) = (device(one)?, device(other)?);
    if one == other {
        return Some(Common::FileSystem);
    }
    (disk(one)? == disk(other)?).then_some(Common::Disk)
}

impl Common {
    /// What this means for a cache in front of an origin, in one line.
    pub const fn of_a_cache(self) -> &'static str {
        match self {
            Self::FileSystem => {
                "origin and cache lie on one file system, so the cache cannot be faster, and the cost \
                 models admit little or nothing; put --cache on an SSD of its own"
            }
            Self::Disk => {
                "origin and cache lie on one disk, so the cache cannot be faster, and the cost \
                 models admit little or nothing; put --cache on an SSD of its own"
            }
        }
    }

    /// What this means for a file tier, in one line.
    pub const fn of_tiers(self) -> &'static str {
        match self {
            Self::FileSystem => {
                "the two fastest tiers lie on one file system, so what is promoted gets no faster; \
                 mount an SSD at the first"
            }
            Self::Disk => {
                "the two fastest tiers lie on one disk, so what is promoted gets no faster; mount \
                 an SSD at the first"
            }
        }
    }
}

/// The disk of a block device; for a partition, the disk that contains it.
fn disk(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if node.join("partition").exists() {
        return node.parent().map(Path::to_path_buf);
    }
    Some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_system_is_told_from_two() {
        let scratch = tempfile::tempdir().unwrap();
        let (one, other) = (scratch.path().join("one"), scratch.path().join("other"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&other).unwrap();
        assert_eq!(common(&one, &other), Some(Common::FileSystem));
        assert_eq!(common(&one, Path::new("/proc")), None);
        assert_eq!(common(&one, &scratch.path().join("none")), None);
    }
}
