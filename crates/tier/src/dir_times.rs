//! Times of directories: a move renames something into a directory, which is not a change made by a program.
//!
//! What must hold: a directory shows the times of the last change that a program made to it, and never an older time
//! after a newer change. So a cutover reads the times, renames and sets them back while it holds `names` exclusively;
//! everything else that changes a directory through the mount, or shows its times, holds `names` shared.
//!
//! The time of last change (ctime) cannot be set; nor can the others by a mount whose user does not own the directory.
//! In both cases, the times to show are remembered together with the real ones for as long as the mount lives. A change
//! by a program gives a directory other real times. A mount that is killed between the two calls leaves the later time,
//! which is the safe one.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT, utimensat};

use super::tiers::{Entry, Tiers};
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{Vnode, stat_descriptor};

/// The most directories that are remembered: a few megabytes.
const KNOWN_MAX: usize = 1 << 16;

/// Times of last modification and last change, each in seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Times {
    const fn of(stat: &Stat) -> Self {
        let raw = &stat.raw;
        Self {
            modified: (raw.st_mtime, raw.st_mtime_nsec),
            changed: (raw.st_ctime, raw.st_ctime_nsec),
        }
    }
}

/// Directories whose last real change was one of our moves.
#[derive(Debug, Default)]
pub(super) struct DirTimes {
    /// How many there are; usually there are none to look for.
    count: AtomicUsize,
    /// Real times, and those to show instead.
    known: Mutex<FxHashMap<Entry, (Times, Times)>>,
}

impl DirTimes {
    /// Attributes of a directory as programs see them. The caller has held `names` since before they
    /// were read.
    pub(super) fn show(&self, mut stat: Stat) -> Stat {
        if self.count.load(Ordering::Acquire) == 0 || stat.kind() != libc::S_IFDIR {
            return stat;
        }
        if let Some((real, shown)) = self.known.lock().get(&stat.key())
            && *real == Times::of(&stat)
        {
            (stat.raw.st_mtime, stat.raw.st_mtime_nsec) = shown.modified;
            (stat.raw.st_ctime, stat.raw.st_ctime_nsec) = shown.changed;
        }
        stat
    }

    /// Called when a program has changed a directory's attributes: the real times are shown from now on. A clock may be
    /// so coarse that they equal the remembered ones.
    pub(super) fn changed(&self, dir: Entry) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut known = self.known.lock();
            known.remove(&dir);
            self.count.store(known.len(), Ordering::Release);
        }
    }

    /// A directory has the times `real` after a move and shows those of `before`.
    fn moved(&self, dir: Entry, real: Times, before: Times) {
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            // Forget any half of them: those directories then show the time of our move, which does no harm.
            let mut stays = false;
            known.retain(|_, _| {
                stays = !stays;
                stays
            });
        }
        known.insert(dir, (real, before));
        self.count.store(known.len(), Ordering::Release);
    }

    /// Puts what `from` names in the place of a name, as
    /// [`Namespace::replace`](halocline_vfs::namespace::Namespace::replace) does, and leaves the times of
    /// its directory alone. The caller holds `names` exclusively.
    pub(super) fn replace_unseen(
        &self,
        tiers: &Tiers,
        what: &'static str,
        from: (BorrowedFd<'_>, &OsStr),
        to: (&Vnode, &OsStr),
        expected: Entry,
    ) -> Result<(Vnode, Stat)> {
        let dir = tiers.tree().descriptor(to.0)?;
        let real = stat_descriptor(&*dir)?;
        let key = real.key();
        let before = Times::of(&self.show(real));
        let steps = &tiers.ssd().steps;
        let replaced = steps.step(what, || tiers.tree().replace(from, to, expected))?;
        let set = || set_modified(dir.as_fd(), before.modified);
        if let Err(error) = steps.step("leaving a directory its times", set) {
            tracing::debug!(%error, "the times of a directory are remembered, not set");
        }
        if let Ok(now) = stat_descriptor(&*dir) {
            self.moved(key, Times::of(&now), before);
        }
        Ok(replaced)
    }
}

/// By name: descriptors of directories are `O_PATH` here.
fn set_modified(dir: BorrowedFd<'_>, (seconds, nanoseconds): (i64, i64)) -> Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    };
    Ok(utimensat(dir, ".", &times, AtFlags::empty())?)
}
