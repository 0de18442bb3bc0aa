//! Opening files of which programs may hold leases.
//!
//! Whoever owns a file may take a lease of it (`fcntl(2)`, `F_SETLEASE`). Another's `open(2)` then waits in the kernel until the
//! holder gives the lease up, and at most as long as `/proc/sys/fs/lease-break-time` says: 45 s. No signal but a deadly one ends
//! that wait. The files below a mount belong to its users, so a user with as many leases as the mount has threads
//! could stop it for everybody.
//!
//! What must hold: a file that a user may own is opened by [`open_at`] or [`reopen`] only, which never wait. Who opens it for a program, or
//! for a command, tries again a few times, where nobody else is held up by that. `unlink`, `rename`, `link`, `chmod` and
//! `ftruncate` break no lease; `truncate(2)` does, and waits: call `ftruncate` with what was opened here.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, fcntl_setfl, openat};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::write_lease::OwnChecks;

/// How long an open is tried again for a program, or for one file of a command.
pub const WAIT: Duration = Duration::from_secs(1);
/// How long a command waits for the leases of all its files: who holds thousands must not make it last hours.
const WAIT_FOR_ALL: Duration = Duration::from_secs(5);
/// The first pause between two tries. Each further one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How often an open is repeated because a check of our own held a lease.
const OWN_TRIES: usize = 16;

/// As `openat(2)`, without waiting for a lease. The open file has `O_NONBLOCK` only if `flags` have it.
///
/// # Errors
/// Those of `openat(2)`. `EAGAIN` if a program holds a lease that the open would break: the holder has been told to give it up,
/// and loses it after some time.
pub fn open_at<P: Arg + Copy>(
    dir: impl AsFd,
    path: P,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    if flags.intersects(OFlags::PATH | OFlags::DIRECTORY) {
        // Neither waits for anybody.
        return openat(dir, path, flags, mode);
    }
    let checks = OwnChecks::now();
    let open = || openat(&dir, path, flags | OFlags::NONBLOCK, mode);
    let mut opened = open();
    for _ in 0..OWN_TRIES {
        if opened.as_ref().err() != Some(&Errno::AGAIN) || !checks.may_have_held_one() {
            break;
        }
        Clock::MACHINE.sleep(FIRST_PAUSE);
        opened = open();
    }
    let opened = opened?;
    if !flags.contains(OFlags::NONBLOCK) {
        // Of the others, `F_SETFL` changes these alone.
        fcntl_setfl(&opened, flags & (OFlags::APPEND | OFlags::DIRECT | OFlags::NOATIME))?;
    }
    Ok(opened)
}

/// Opens the file at a path below `/proc` to a descriptor of it, as [`open_at`].
///
/// # Errors
/// [`Error::Leased`] in place of `EAGAIN`.
pub fn reopen(path: &impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd> {
    open_at(CWD, path.as_ref(), flags, Mode::empty()).map_err(failed)
}

/// The error of an [`open_at`], saying so where a lease is the reason.
pub fn failed(errno: Errno) -> Error {
    if errno == Errno::AGAIN { Error::Leased } else { errno.into() }
}

/// The times between tries of something that meets a lease, [`WAIT`] in all.
pub fn pauses() -> impl Iterator<Item = Duration> {
    let mut left = WAIT;
    let doubled = std::iter::successors(Some(FIRST_PAUSE), |pause| Some(*pause * 2));
    doubled.map_while(move |pause| {
        let pause = pause.min(left);
        left -= pause;
        (!pause.is_zero()).then_some(pause)
    })
}

/// How long a command still waits for leases.
#[derive(Debug)]
pub struct Patience(Mutex<Duration>);

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

impl Patience {
    /// That of a command that begins.
    pub const fn new() -> Self {
        Self(Mutex::new(WAIT_FOR_ALL))
    }

    /// Calls `act` until it meets no lease, as `is_leased` says of its result, or the patience with this file, or with all,
    /// is at its end.
    pub fn wait<T>(
        &self,
        clock: &Clock,
        mut act: impl FnMut() -> T,
        is_leased: impl Fn(&T) -> bool,
    ) -> T {
        let mut done = act();
        for pause in pauses() {
            if !is_leased(&done) || !self.take(pause) {
                break;
            }
            clock.sleep(pause);
            done = act();
        }
        done
    }

    fn take(&self, pause: Duration) -> bool {
        let mut left = self.0.lock();
        let is_enough = *left >= pause;
        if is_enough {
            *left -= pause;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;

    use rustix::fs::fcntl_getfl;

    use super::*;

    /// A file with a lease, until it is dropped. It is one of this process, which ignores that it is to be given up.
    fn leased(path: &Path, kind: i32) -> File {
        let holder = File::open(path).unwrap();
        // SAFETY: these calls take plain numbers, and the signal is one that is ignored.
        let taken = unsafe {
            const F_SETSIG: i32 = 10;
            libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, kind) == 0
        };
        assert!(taken, "the file system of temporary files has leases");
        holder
    }

    #[test]
    fn an_open_does_not_wait_for_a_lease() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "bytes").unwrap();
        let open = |flags| open_at(CWD, &path, flags, Mode::empty()).map(drop);
        let holder = leased(&path, libc::F_RDLCK);
        assert_eq!(open(OFlags::RDONLY), Ok(()));
        for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC] {
            assert_eq!(open(flags), Err(Errno::AGAIN), "{flags:?}");
        }
        drop(holder);
        assert_eq!(open(OFlags::RDWR), Ok(()));
        let holder = leased(&path, libc::F_WRLCK);
        assert_eq!(open(OFlags::RDONLY), Err(Errno::AGAIN));
        assert_eq!(open(OFlags::PATH), Ok(()));
        drop(holder);
        assert_eq!(fs::read(&path).unwrap(), b"bytes", "it was not emptied");
    }

    #[test]
    fn what_was_opened_blocks_as_asked_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for flags in [OFlags::RDONLY, OFlags::RDWR | OFlags::APPEND, OFlags::NONBLOCK] {
            let opened = open_at(CWD, file.path(), flags, Mode::empty()).unwrap();
            let kept = OFlags::APPEND | OFlags::NONBLOCK | OFlags::ACCMODE;
            assert_eq!(fcntl_getfl(&opened).unwrap() & kept, flags & kept);
        }
    }

    /// A check whether a file is open elsewhere takes a lease for a moment: our own opens must not be refused by that.
    #[test]
    fn our_own_checks_refuse_no_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let checked = File::open(file.path()).unwrap();
        std::thread::scope(|scope| {
            let checks = scope.spawn(|| {
                (0..20_000).filter(|_| crate::write_lease::is_exclusive(&checked)).count()
            });
            while !checks.is_finished() {
                open_at(CWD, file.path(), OFlags::RDONLY, Mode::empty()).unwrap();
            }
        });
    }

    #[test]
    fn a_command_waits_a_second_for_a_file_and_a_few_for_all() {
        assert_eq!(pauses().sum::<Duration>(), WAIT);
        let (patience, clock) = (Patience::new(), Clock::simulated());
        let _work = clock.work().begin();
        let begun = clock.instant();
        let leased = || patience.wait(&clock, || true, |leased| *leased);
        assert!(leased());
        assert_eq!(clock.elapsed(begun), WAIT);
        assert!((0..1000).all(|_| leased()));
        assert!(clock.elapsed(begun) <= WAIT_FOR_ALL);
        let mut tries = 0;
        let patience = Patience::new();
        let act = || {
            tries += 1;
            tries
        };
        assert_eq!(patience.wait(&clock, act, |tries| *tries < 3), 3, "it was given up");
    }
}
