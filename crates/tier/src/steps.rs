//! The steps in which a tier changes, each of them one call that its file system does or refuses.
//!
//! What must hold: every change of the tree, of the private directories and of a copy is made in a step, and every sync
//! is one. So `status` knows about a failing device, and a [`Watcher`] may fail a step, kill the mount after it, or cut
//! the power there.

use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{fdatasync, fsync, syncfs};

use super::watcher::Watcher;
use halocline_os::error::Result;

/// The steps of one tier, and how its device has failed at them.
#[derive(Debug)]
pub(super) struct Steps {
    tier: usize,
    failed: Mutex<Failed>,
    watcher: Option<Arc<dyn Watcher>>,
}

#[derive(Debug, Default)]
struct Failed {
    count: u64,
    last: String,
}

impl Steps {
    /// No steps yet; `watcher` is told of each.
    pub(super) fn new(tier: usize, watcher: Option<Arc<dyn Watcher>>) -> Self {
        Self { tier, failed: Mutex::default(), watcher }
    }

    /// Executes a step; `what` is for people, as in "failed at: renaming".
    pub(super) fn step<T>(&self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = match &self.watcher {
            None => act(),
            Some(watcher) => watcher.before(self.tier, what).and_then(|()| act()),
        };
        match &done {
            Ok(_) => self.tell(|watcher| watcher.after(self.tier, what)),
            Err(error) if is_a_failure(error.errno()) => {
                let mut failed = self.failed.lock();
                failed.count += 1;
                failed.last = format!("{what}: {error}");
            }
            Err(_) => {}
        }
        done
    }

    /// Makes a file or directory durable.
    pub(super) fn sync(&self, what: &'static str, fd: &impl AsFd) -> Result<()> {
        self.step(what, || {
            fsync(fd)?;
            self.tell(|watcher| watcher.synced(self.tier, fd.as_fd()));
            Ok(())
        })
    }

    /// Makes a file's bytes durable.
    pub(super) fn sync_data(&self, what: &'static str, file: &impl AsFd) -> Result<()> {
        self.step(what, || {
            fdatasync(file)?;
            self.tell(|watcher| watcher.synced(self.tier, file.as_fd()));
            Ok(())
        })
    }

    /// Makes the whole file system durable.
    pub(super) fn sync_all(&self, what: &'static str, fd: &impl AsFd) -> Result<()> {
        self.step(what, || {
            syncfs(fd)?;
            self.tell(|watcher| watcher.synced_all(self.tier));
            Ok(())
        })
    }

    /// The totals to be used for the tier's file system, which reports `totals`.
    pub(super) fn room(&self, totals: libc::statvfs64) -> libc::statvfs64 {
        self.watcher.as_ref().map_or(totals, |watcher| watcher.room(self.tier, totals))
    }

    /// Whether the steps of one call must come one after the other from its thread.
    pub(super) fn one_by_one(&self) -> bool {
        self.watcher.as_ref().is_some_and(|watcher| watcher.one_by_one())
    }

    fn tell(&self, what: impl FnOnce(&dyn Watcher)) {
        if let Some(watcher) = &self.watcher {
            what(&**watcher);
        }
    }

    /// What the device has failed at since the mount, if anything.
    pub(super) fn failure(&self) -> Option<String> {
        let failed = self.failed.lock();
        (failed.count > 0).then(|| format!("{} I/O errors, the last {}", failed.count, failed.last))
    }
}

/// Whether an errno reports a failing device rather than a wrong request.
const fn is_a_failure(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::EROFS | libc::ENXIO | libc::ENODEV | libc::EUCLEAN)
}
