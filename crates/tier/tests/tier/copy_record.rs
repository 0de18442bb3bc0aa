//! Records of clean copies as they lie on disk (docs/FORMAT.md): symbolic links whose names say what
//! file and copy looked like, and whose targets name the copies. Read and written here without the engine's code.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_api::control::tier::PRIVATE;

/// The directory of records, below the root of the SSD.
pub(crate) fn records_dir() -> PathBuf {
    Path::new(PRIVATE).join("copies")
}

/// What an inode looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl Stamp {
    /// That of what is at `path` now.
    pub(crate) fn at(path: &Path) -> Self {
        let meta = path.symlink_metadata().unwrap();
        Self {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let hex = |part| u64::from_str_radix(part, 16).ok();
        let numbers: Vec<u64> = text.split('.').map(hex).collect::<Option<_>>()?;
        let &[inode, size, one, two, three, four] = &numbers[..] else { return None };
        let time = |seconds: u64, nanos: u64| (seconds.cast_signed(), nanos.cast_signed());
        Some(Self { inode, size, modified: time(one, two), changed: time(three, four) })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, size, modified, changed } = self;
        write!(f, "{inode:x}.{size:x}")?;
        [modified, changed]
            .iter()
            .try_for_each(|(seconds, nanos)| write!(f, ".{seconds:x}.{nanos:x}"))
    }
}

/// The record of a clean copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyRecord {
    pub(crate) file: Stamp,
    pub(crate) copy: Stamp,
    pub(crate) era: String,
    pub(crate) tier: usize,
    /// Relative to the tier's root.
    pub(crate) place: PathBuf,
}

impl CopyRecord {
    /// The one that a link is; `None` for the link that names the era.
    pub(crate) fn of(name: &str, target: &Path) -> Option<Self> {
        let mut parts = name.split('-');
        let (file, copy) = (Stamp::parse(parts.next()?)?, Stamp::parse(parts.next()?)?);
        let era = parts.next()?.to_owned();
        let tier = target.iter().next()?.to_str()?;
        let place = target.strip_prefix(tier).ok()?.to_owned();
        Some(Self { file, copy, era, tier: tier.parse().ok()?, place })
    }

    /// The name of its link.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}-{}", self.file, self.copy, self.era)
    }
}
