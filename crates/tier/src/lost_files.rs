//! Names whose file is gone from its lower tier: they are visible, and can be removed and replaced.
//!
//! A name is lost if its tier answers and has nothing at the place that its link names. What must hold: no program
//! takes a lost file for an empty one. It has no permissions, no bytes and no extended attributes, the kernel caches
//! nothing of it, and opening it fails with EIO; one that is restored is the file again.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::inode::{Away, Inode, Place};
use super::tiers::Tiers;
use halocline_os::counted::counted_with;
use halocline_os::error::Result;
use halocline_vfs::Stat;

/// Lost names that were removed since the mount.
#[derive(Debug, Default)]
pub(super) struct LostFiles(Mutex<Option<(u64, PathBuf)>>);

impl LostFiles {
    /// Notes that the name of a lost file that was at `place` was removed or replaced.
    pub(super) fn removed(&self, name: PathBuf, place: &Path) {
        tracing::warn!(
            "{}: the name is removed; its file {} was gone before",
            name.display(),
            place.display()
        );
        let mut removed = self.0.lock();
        let count = removed.as_ref().map_or(0, |(count, _)| *count);
        *removed = Some((count + 1, name));
    }

    /// For people to read.
    pub(super) fn note(&self) -> Option<String> {
        let removed = self.0.lock();
        let (count, last) = removed.as_ref()?;
        Some(format!(
            "{} removed whose data had been lost before, the last {}",
            counted_with(*count, "name", ("was", "were")),
            last.display()
        ))
    }
}

/// Whether a tier answers and has no file at its place.
pub(super) fn is_lost(tiers: &Tiers, away: &Away) -> bool {
    let nameless = away.path.as_os_str().is_empty();
    !nameless
        && matches!(tiers.dirs()[away.tier].look(&away.path), Err(Errno::NOENT | Errno::NOTDIR))
}

/// The file itself; `None` if it is lost.
pub(super) fn found(tiers: &Tiers, inode: &Inode, place: &Place) -> Result<Option<Arc<OwnedFd>>> {
    match (inode.physical(tiers, place), &place.away) {
        (Err(_), Some(away)) if is_lost(tiers, away) => Ok(None),
        (found, _) => found.map(Some),
    }
}

/// What programs see of a lost file: its owner, no permissions, no bytes.
pub(super) fn stat_lost(tiers: &Tiers, inode: &Inode, place: &Place) -> Result<Stat> {
    let mut stat = tiers.tree().stat(&place.entry)?;
    let raw = &mut stat.raw;
    raw.st_mode = libc::S_IFREG;
    (raw.st_size, raw.st_blocks) = (0, 0);
    // A link's mtime may stand for its file's number.
    (raw.st_mtime, raw.st_mtime_nsec) = (raw.st_ctime, raw.st_ctime_nsec);
    Ok(inode.show_at(tiers, place, stat))
}
