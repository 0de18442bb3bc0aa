//! The steps in which a tier changes, each of them one call that its file system does or refuses.
//!
//! What must hold: every change of the tree, of the private directories and of a copy is made in a
//! step, and every sync is one. So `status` knows of a device that fails, and tests fail a step,
//! kill the mount after it, or cut the power there.

use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::fs::{fdatasync, fsync, syncfs};

use halocline_os::error::Result;

#[cfg(test)]
pub(super) mod watch;

/// Nobody watches steps but tests.
#[cfg(not(test))]
mod watch {
    use std::os::fd::AsFd;

    #[expect(clippy::unnecessary_wraps, reason = "tests fail steps")]
    pub(super) const fn before(
        _tier: usize,
        _what: &'static str,
    ) -> halocline_os::error::Result<()> {
        Ok(())
    }

    pub(super) const fn after(_tier: usize, _what: &'static str) {}

    pub(super) const fn synced(_fd: &impl AsFd) {}

    pub(super) const fn synced_all(_tier: usize) {}

    /// What is free is what the file system says.
    #[derive(Debug)]
    pub(crate) struct Room;

    impl Room {
        pub(super) const fn new() -> Self {
            Self
        }

        pub(crate) const fn shown(&self, totals: libc::statvfs64) -> libc::statvfs64 {
            let Self = self;
            totals
        }
    }

    /// What threads of one change share.
    #[derive(Debug)]
    pub(crate) struct Inherited;

    impl Inherited {
        pub(crate) const fn take(&self) {
            let Self = self;
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "tests watch single threads")]
    pub(crate) const fn inherit() -> Option<Inherited> {
        Some(Inherited)
    }
}

pub(super) use watch::inherit;

/// The steps of one tier, and how its device has failed at them.
#[derive(Debug)]
pub(super) struct Steps {
    tier: usize,
    failed: Mutex<Failed>,
    /// Tests say how much is free.
    pub(super) room: watch::Room,
}

#[derive(Debug, Default)]
struct Failed {
    count: u64,
    last: String,
}

impl Steps {
    /// No steps yet.
    pub(super) fn new(tier: usize) -> Self {
        Self { tier, failed: Mutex::default(), room: watch::Room::new() }
    }

    /// Does a step; `what` is for people, as in "failed at: renaming".
    pub(super) fn step<T>(&self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = watch::before(self.tier, what).and_then(|()| act());
        match &done {
            Ok(_) => watch::after(self.tier, what),
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
            watch::synced(fd);
            Ok(())
        })
    }

    /// Makes a file's bytes durable.
    pub(super) fn sync_data(&self, what: &'static str, file: &impl AsFd) -> Result<()> {
        self.step(what, || {
            fdatasync(file)?;
            watch::synced(file);
            Ok(())
        })
    }

    /// Makes the whole file system durable.
    pub(super) fn sync_all(&self, what: &'static str, fd: &impl AsFd) -> Result<()> {
        self.step(what, || {
            syncfs(fd)?;
            watch::synced_all(self.tier);
            Ok(())
        })
    }

    /// What the device failed at, if it did since the mount.
    pub(super) fn failure(&self) -> Option<String> {
        let failed = self.failed.lock();
        (failed.count > 0).then(|| format!("{} I/O errors, the last {}", failed.count, failed.last))
    }
}

/// Whether an errno tells of a device rather than of what was asked.
const fn is_a_failure(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::EROFS | libc::ENXIO | libc::ENODEV | libc::EUCLEAN)
}
