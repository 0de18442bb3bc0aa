//! What a file looked like, to determine whether it has changed since.

use std::fmt;

use halocline_vfs::Stat;

/// What an inode looks like, so that a change of it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

impl Stamp {
    /// The stamp of a file with these attributes.
    pub(super) const fn of(stat: &Stat) -> Self {
        let raw = &stat.raw;
        Self {
            inode: raw.st_ino,
            size: raw.st_size.unsigned_abs(),
            modified: (raw.st_mtime, raw.st_mtime_nsec),
            changed: (raw.st_ctime, raw.st_ctime_nsec),
        }
    }

    /// Whether a regular file with one name still has this stamp.
    pub(super) fn is(&self, stat: &Stat) -> bool {
        stat.kind() == libc::S_IFREG && stat.raw.st_nlink == 1 && *self == Self::of(stat)
    }

    /// The same, or the file has only been closed to everybody since, as we close copies.
    pub(super) fn is_or_closed(&self, stat: &Stat) -> bool {
        let was =
            if is_closed(stat) { Self { changed: Self::of(stat).changed, ..*self } } else { *self };
        was.is(stat)
    }

    /// A stamp from its text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| u64::from_str_radix(part, 16).ok());
        let mut next = || parts.next().flatten();
        let (inode, size) = (next()?, next()?);
        let mut time = || Some((next()?.cast_signed(), next()?.cast_signed()));
        let stamp = Self { inode, size, modified: time()?, changed: time()? };
        parts.next().is_none().then_some(stamp)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, size, modified, changed } = self;
        write!(f, "{inode:x}.{size:x}")?;
        for (seconds, nanos) in [modified, changed] {
            write!(f, ".{:x}.{:x}", seconds.cast_unsigned(), nanos.cast_unsigned())?;
        }
        Ok(())
    }
}

/// Whether nobody but root may use a regular file.
pub(super) const fn is_closed(stat: &Stat) -> bool {
    stat.raw.st_mode == libc::S_IFREG
}
