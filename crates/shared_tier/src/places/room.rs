//! Room on a disk on which clean copies lie: a full one is no error for a step as long as some of them can go.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::{OnceLock, Weak};

use halocline_os::error::Result;
use parking_lot::ReentrantMutex;

use super::copy_sizes::CopySizes;

/// The least and the most that is made free on a full disk at once; in between it is one part in so many of the disk, which is
/// less than what is left free by those who make copies.
const ROOM_MIN: Need = Need { bytes: 1 << 20, files: 8 };
const ROOM_MAX: Need = Need { bytes: 16 << 20, files: 64 };
const ROOM_SHARE: u64 = 100;

/// What is to be free on a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bytes: u64,
    /// Inodes.
    pub(crate) files: u64,
}

impl Need {
    pub(crate) const fn bytes(bytes: u64) -> Self {
        Self { bytes, files: 0 }
    }

    /// What is made free at once on a disk that is full.
    pub(crate) fn at_once(totals: &libc::statvfs64) -> Self {
        let bytes = totals.f_blocks.saturating_mul(totals.f_frsize) / ROOM_SHARE;
        let files = totals.f_files / ROOM_SHARE;
        Self {
            bytes: bytes.clamp(ROOM_MIN.bytes, ROOM_MAX.bytes),
            files: files.clamp(ROOM_MIN.files, ROOM_MAX.files),
        }
    }

    /// What a disk does not have of it.
    const fn missing(self, totals: &libc::statvfs64) -> Self {
        let has_bytes = Self { files: 0, ..self }.is_free(totals);
        let has_files = Self { bytes: 0, ..self }.is_free(totals);
        Self {
            bytes: if has_bytes { 0 } else { self.bytes },
            files: if has_files { 0 } else { self.files },
        }
    }

    /// Whether a disk has so much; some file systems count no inodes.
    pub(crate) const fn is_free(self, totals: &libc::statvfs64) -> bool {
        totals.f_bavail.saturating_mul(totals.f_frsize) >= self.bytes
            && (totals.f_files == 0 || totals.f_favail >= self.files)
    }
}

/// Makes room on a disk that has none for a step.
pub(crate) trait MakesRoom: Debug + Send + Sync {
    /// Makes it, in the quota of a user if there is one; returns whether there is more room now.
    fn make_room(&self, need: Need, user: Option<u32>) -> bool;
}

/// What makes room on a disk, if anything does.
#[derive(Debug, Default)]
pub(crate) struct Room {
    by: OnceLock<Weak<dyn MakesRoom>>,
    /// What may give way.
    pub(super) copies: CopySizes,
    /// Whether room is being made: its own steps make none.
    is_under_way: ReentrantMutex<Cell<bool>>,
}

impl Room {
    /// From now on this makes room.
    pub(super) fn is_made_by(&self, by: Weak<dyn MakesRoom>) {
        let _only_once = self.by.set(by);
    }

    /// Makes room, if the disk is full. Not each error that says so means that: a file may have too many attributes.
    pub(super) fn make(&self, totals: impl Fn() -> Result<libc::statvfs64>) -> bool {
        let Some(by) = self.by.get().and_then(Weak::upgrade) else { return false };
        let Ok(all) = totals() else { return false };
        let need = Need::at_once(&all);
        if need.is_free(&all) {
            return false;
        }
        let is_under_way = self.is_under_way.lock();
        if is_under_way.replace(true) {
            return false;
        }
        // Somebody else may have made some meanwhile.
        let missing = totals().map_or(need, |now| need.missing(&now));
        let is_made = missing == Need::default() || by.make_room(missing, None);
        is_under_way.set(false);
        is_made
    }

    /// Makes room in the quota of a user, which is used up.
    pub(super) fn make_in_quota(&self, user: u32, bytes: u64) -> bool {
        let Some(by) = self.by.get().and_then(Weak::upgrade) else { return false };
        let is_under_way = self.is_under_way.lock();
        if is_under_way.replace(true) {
            return false;
        }
        let need = Need { bytes: bytes.max(ROOM_MIN.bytes), ..ROOM_MIN };
        let is_made = by.make_room(need, Some(user));
        is_under_way.set(false);
        is_made
    }
}
