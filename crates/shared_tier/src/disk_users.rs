//! Who may change the disks of a tier: its mounts, or one repair.
//!
//! A repair begins once the leases of all nodes are over. But a process may stand still (SIGSTOP, a suspended machine)
//! between an answer of the store and the step on a disk that follows it, and would make that step when it goes on: on
//! what the repair has named meanwhile. What must hold (I15): while a repair changes names or disks, no process has a
//! step left to make. So each mount keeps a lock on a file of the shared disk, from before its first step to its end,
//! and a repair has the locks of all nodes. A lock ends with its process, and with nothing else.
//!
//! A lock is taken once for each mount, so steps cost nothing. It reaches as far as the locks (`flock(2)`) of the shared
//! disk's file system.

mod ssds;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use halocline_api::control::tier::PRIVATE;
pub(crate) use halocline_api::file_tier::shared_disk::CHECK;
use halocline_api::file_tier::shared_disk::MOUNTED;
use halocline_os::bounded;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{PrivateDir, Use};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

pub use ssds::SsdLocks;
pub(crate) use ssds::{lock_own, of_tier};

/// The file in the directory of checks that a repair keeps locked.
const REPAIRING: &str = "in-use";
/// For how long a process that has just ended, or is about to, is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The most bytes of such a file.
const BYTES_MAX: u64 = 1024;

/// What became of a lock.
#[derive(Debug)]
enum Tried {
    Locked(LockedFile),
    /// Another process has it.
    Held(File),
    /// The file system has no such locks.
    Unsupported(Errno),
}

fn try_lock(file: File, how: FlockOperation) -> Result<Tried> {
    match flock(&file, how) {
        Ok(()) => Ok(Tried::Locked(LockedFile::shared(file))),
        Err(Errno::WOULDBLOCK) => Ok(Tried::Held(file)),
        Err(
            errno @ (Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL | Errno::BADF),
        ) => Ok(Tried::Unsupported(errno)),
        Err(errno) => Err(errno.into()),
    }
}

/// Tries for a while to lock a file. `None` if its file system has no such locks.
fn lock(
    mut file: File,
    how: FlockOperation,
    clock: &Clock,
    held: impl FnOnce(&File) -> Error,
) -> Result<Option<LockedFile>> {
    let begun = clock.instant();
    loop {
        match try_lock(file, how)? {
            Tried::Locked(locked) => return Ok(Some(locked)),
            Tried::Held(by) if clock.elapsed(begun) >= ENDS_WITHIN => return Err(held(&by)),
            Tried::Held(by) => file = by,
            Tried::Unsupported(errno) => {
                tracing::warn!(
                    %errno,
                    "a disk has no locks (flock): before names are repaired, see yourself that no process of \
                     the tier is left, not even a stopped one"
                );
                return Ok(None);
            }
        }
        clock.sleep(LOOK_AGAIN);
    }
}

/// Writes this process into a file, for messages. A full disk is no error.
fn sign(file: &File) {
    let host = rustix::system::uname();
    let own = format!("process {} on {}\n", std::process::id(), host.nodename().to_string_lossy());
    let signed = file.set_len(0).and_then(|()| (&*file).write_all(own.as_bytes()));
    if let Err(error) = signed {
        tracing::debug!(%error, "the lock of this process does not tell whose it is");
    }
}

/// Which process has written that it has a file.
fn signed(file: &File) -> String {
    let found = io::Seek::rewind(&mut &*file).and_then(|()| bounded::read_from(file, BYTES_MAX));
    let found: String = found
        .unwrap_or_default()
        .into_iter()
        .filter(|byte| matches!(byte, b' '..=b'~'))
        .map(char::from)
        .collect();
    if found.is_empty() { "another process".to_owned() } else { found }
}

fn is_repaired(file: &File) -> Error {
    Error::Cluster {
        what: format!("the names of the tier are being put in order, by {}", signed(file)),
        remedy: "wait until halocline cluster fsck has ended".to_owned(),
    }
}

/// That another process is putting the names in order, if one is; `check` is the directory with the state of checks.
///
/// # Errors
/// If its lock cannot be examined.
pub(crate) fn repaired_by_another(check: &PrivateDir) -> Result<Option<Error>> {
    let file = match check.file(REPAIRING, Use::Read) {
        Err(error) if error.errno() == libc::ENOENT => return Ok(None),
        file => file?,
    };
    match try_lock(file, FlockOperation::NonBlockingLockShared)? {
        Tried::Held(by) => Ok(Some(is_repaired(&by))),
        Tried::Locked(_) | Tried::Unsupported(_) => Ok(None),
    }
}

/// That a node is mounted. Dropping it says that this process makes no more steps.
#[derive(Debug)]
pub(crate) struct MountLock {
    _kept: Option<LockedFile>,
}

impl MountLock {
    /// Says so, before the first step; `common` is the private directory of the shared disk.
    ///
    /// # Errors
    /// If names are being repaired.
    pub(crate) fn take(common: &PrivateDir, node: &str, clock: &Clock) -> Result<Self> {
        let (file, to_sign) = match files_of(common, node) {
            Err(error) if error.is_full() => {
                tracing::warn!(%error, "a repair of the names will not notice this mount");
                return Ok(Self { _kept: None });
            }
            files => files?,
        };
        // Shared: of a machine that has crashed, the file system may keep the lock for a while.
        let how = FlockOperation::NonBlockingLockShared;
        let kept = lock(file, how, clock, is_repaired)?;
        sign(&to_sign);
        drop(to_sign);
        // In this order: a repair that did not see the lock has begun before, and is seen here.
        let repairing = match common.sub(CHECK).and_then(|check| check.file(REPAIRING, Use::Write))
        {
            Err(error) if error.is_full() => return Ok(Self { _kept: kept }),
            file => file?,
        };
        drop(lock(repairing, how, clock, is_repaired)?);
        Ok(Self { _kept: kept })
    }
}

/// The file that a mount locks, and the same to be written. The first one is kept, and can only be read: else the file
/// system could not be remounted to be read only.
fn files_of(common: &PrivateDir, node: &str) -> Result<(File, File)> {
    let mounted = common.sub(MOUNTED)?;
    let to_sign = mounted.file(node, Use::Write)?;
    Ok((mounted.file(node, Use::Read)?, to_sign))
}

/// That no node is mounted, and none can be meanwhile: whoever repairs names or disks has it.
#[derive(Debug)]
pub struct Alone {
    _kept: Vec<LockedFile>,
    _ssds: SsdLocks,
}

impl Alone {
    /// Finds out, for the tier below `root`, whose nodes have no leases any more, and whose SSDs are reached by `peers`.
    ///
    /// # Errors
    /// If a process of a node is left, as one that was stopped is, or another repair is at work.
    pub fn on(root: &Path, peers: Option<&str>) -> Result<Self> {
        let kept = Self::on_shared_disk(root)?;
        Ok(Self { _kept: kept, _ssds: SsdLocks::take(root, peers)? })
    }

    /// The same, where the shared disk may be another one than nodes were mounted with, so that what is on the SSDs counts
    /// before anything is made on it.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn with(ssds: SsdLocks, root: &Path) -> Result<Self> {
        Ok(Self { _kept: Self::on_shared_disk(root)?, _ssds: ssds })
    }

    fn on_shared_disk(root: &Path) -> Result<Vec<LockedFile>> {
        let shared = root.join("hdd");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, &shared, flags, Mode::empty())
            .map_err(|errno| Error::at(&shared, "open the tier (is it mounted?)")(errno.into()))?;
        Self::in_private(&PrivateDir::make_in(&dir, &shared, PRIVATE)?, &Clock::MACHINE)
    }

    fn in_private(common: &PrivateDir, clock: &Clock) -> Result<Vec<LockedFile>> {
        let how = FlockOperation::NonBlockingLockExclusive;
        let repairing = common.sub(CHECK)?.file(REPAIRING, Use::Write)?;
        let Some(own) = lock(repairing, how, clock, is_repaired)? else {
            return Ok(Vec::new());
        };
        sign(&own);
        let mut kept = vec![own];
        let mounted = common.sub(MOUNTED)?;
        for node in mounted.names()? {
            let file = match mounted.file(&node, Use::Read) {
                // Somebody knows that this node never goes on.
                Err(error) if error.errno() == libc::ENOENT => continue,
                file => file?,
            };
            let path = mounted.path().join(&node);
            let is_left = |file: &File| is_left((&node.to_string_lossy(), &path), file);
            kept.extend(lock(file, how, clock, is_left)?);
        }
        Ok(kept)
    }
}

fn is_left((node, path): (&str, &Path), file: &File) -> Error {
    Error::Cluster {
        what: format!(
            "node {} is not over, though its lease is: {} still has the tier, and may change its disks once it goes on",
            node.escape_default(),
            signed(file)
        ),
        remedy: format!(
            "end it first: kill -9, on its machine, also ends a stopped process. If that machine is switched off for good, \
             and the file system of the shared disk does not let go of its lock: rm {}",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    fn private() -> (tempfile::TempDir, PrivateDir) {
        let scratch = tempfile::tempdir().unwrap();
        let common = PrivateDir::make(&scratch.path().join(PRIVATE)).unwrap();
        (scratch, common)
    }

    #[test]
    fn i15_a_repair_and_mounts_exclude_each_other_until_they_end() {
        let (_scratch, common) = private();
        let clock = Clock::simulated();
        let take = |node| MountLock::take(&common, node, &clock);
        let both = [take("n1").unwrap(), take("n2").unwrap()];
        drop(take("n1").unwrap());
        let refused = Alone::in_private(&common, &clock).unwrap_err().to_string();
        let own = format!("process {} on ", std::process::id());
        assert!(refused.contains("node n") && refused.contains(&own), "{refused}");
        drop(both);
        let alone = Alone::in_private(&common, &clock).unwrap();
        for refused in [
            take("n1").unwrap_err(),
            take("n3").unwrap_err(),
            Alone::in_private(&common, &clock).unwrap_err(),
        ] {
            assert!(refused.to_string().contains(&own), "{refused}");
        }
        drop(alone);
        take("n1").unwrap();
    }

    /// As an operator does whose node is off, while its lock is left.
    #[test]
    fn a_lock_that_nobody_lets_go_of_is_removed_with_its_file() {
        let (scratch, common) = private();
        let _off = MountLock::take(&common, "n1", &Clock::MACHINE).unwrap();
        std::fs::remove_file(scratch.path().join(PRIVATE).join("mounted/n1")).unwrap();
        Alone::in_private(&common, &Clock::MACHINE).unwrap();
        drop(MountLock::take(&common, "n1", &Clock::MACHINE).unwrap());
    }

    #[test]
    fn what_is_about_to_end_is_waited_for() {
        let (_scratch, common) = private();
        let mount = MountLock::take(&common, "n1", &Clock::MACHINE).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let ended = Arc::clone(&ended);
            scope.spawn(move || {
                Clock::MACHINE.sleep(Duration::from_millis(100));
                ended.store(true, Ordering::SeqCst);
                drop(mount);
            });
            Alone::in_private(&common, &Clock::MACHINE).unwrap();
        });
        assert!(ended.load(Ordering::SeqCst));
    }
}
