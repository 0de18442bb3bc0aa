//! Programs that wait for locks: how many may, and what ends a wait.
//!
//! Each waits in a thread of the mount, in the origin's file system, which wakes it when its turn comes. One more
//! thread watches them: if a program gets a signal, or the mount is gone, it wakes the waiting thread by a signal,
//! repeatedly until the thread has noticed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, Weak};
use std::thread;
use std::time::Duration;

use fuser::Errno;
use halocline_vfs::Caller;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::interrupted::{PendingSignal, look};
use crate::front::{Answer, Refused};

/// Limit of simultaneous waits on one mount; each has a thread.
const WAITS_MAX: usize = 1024;
/// Limit for one user, except root and the mount's own user.
const OF_ONE_USER_MAX: usize = WAITS_MAX / 4;
/// How often signals are checked for; for how many files of `/proc` that are read a millisecond is added to that time;
/// and how many files are read at most.
const TICK: Duration = Duration::from_millis(20);
const READS_PER_MS: usize = 8;
const READS_MAX: usize = 1024;
/// After this many reads, no further program of the same user is looked at in this round, so that other users' programs
/// do not wait for all of them.
const READS_OF_ONE_USER: usize = 8;

/// All waits of one mount.
#[derive(Debug, Default)]
pub(in crate::front) struct Waiters(Arc<Mutex<Waits>>);

#[derive(Debug, Default)]
struct Waits {
    all: Vec<Waiter>,
    next: u64,
    watched: bool,
    /// How often programs were looked at.
    rounds: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    user: u32,
    /// The program's thread.
    program: u32,
    /// The thread that waits for it, once it does.
    thread: Option<libc::pthread_t>,
    /// Whether a signal of its process was pending at the last check.
    seen: bool,
    /// The round of that check.
    looked: u64,
    end: Arc<End>,
}

/// Why a wait is to end.
#[derive(Debug, Default)]
struct End {
    interrupted: AtomicBool,
    gone: AtomicBool,
}

/// One wait. Dropping it ends it.
#[derive(Debug)]
pub(in crate::front) struct Waiting {
    waits: Arc<Mutex<Waits>>,
    number: u64,
    end: Arc<End>,
}

impl Waiters {
    /// Counts one more waiting program.
    ///
    /// # Errors
    /// `ENOLCK` if too many do, or no signal could end its wait.
    pub(in crate::front) fn enter(&self, caller: Caller, device: Weak<OwnedFd>) -> Answer<Waiting> {
        if look(caller.pid).0 == PendingSignal::Nothing {
            tracing::debug!("a program out of sight may not wait for a lock");
            return Err(Refused(Errno::ENOLCK));
        }
        let mut waits = self.0.lock();
        let is_bound = ![0, rustix::process::geteuid().as_raw()].contains(&caller.uid);
        let of_one = || waits.all.iter().filter(|one| one.user == caller.uid).count();
        if waits.all.len() >= WAITS_MAX || (is_bound && of_one() >= OF_ONE_USER_MAX) {
            return Err(Refused(Errno::ENOLCK));
        }
        if !waits.watched {
            let watched = Arc::clone(&self.0);
            let watch = move || watch(&watched, &device);
            let started = thread::Builder::new().name("lock waits".to_owned()).spawn(watch);
            started.map_err(|_| Refused(Errno::ENOLCK))?;
            waits.watched = true;
        }
        let (number, end) = (waits.next, Arc::<End>::default());
        waits.next += 1;
        waits.all.push(Waiter {
            number,
            user: caller.uid,
            program: caller.pid,
            thread: None,
            seen: false,
            looked: 0,
            end: Arc::clone(&end),
        });
        Ok(Waiting { waits: Arc::clone(&self.0), number, end })
    }
}

impl Waiting {
    /// Repeats `lock`, which a signal to this thread interrupts, until it succeeds or the wait is to end.
    pub(super) fn wait(&self, lock: impl Fn() -> io::Result<()>) -> Answer<()> {
        allow_signal();
        if let Some(own) = self.waits.lock().all.iter_mut().find(|one| one.number == self.number) {
            // SAFETY: this function has no preconditions.
            own.thread = Some(unsafe { libc::pthread_self() });
        }
        loop {
            if self.end.gone.load(Ordering::Acquire) {
                return Err(Refused(Errno::ENOTCONN));
            }
            if self.end.interrupted.load(Ordering::Acquire) {
                return Err(Refused(Errno::EINTR));
            }
            match lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done.map_err(|error| super::refused(&error)),
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.lock().all.retain(|one| one.number != self.number);
    }
}

/// Watches the waits until there are none.
fn watch(waits: &Mutex<Waits>, device: &Weak<OwnedFd>) {
    while let Some(reads) = look_round(waits, &|| is_gone(device), &look) {
        let more = reads.min(READS_MAX) / READS_PER_MS;
        thread::sleep(TICK + Duration::from_millis(more as u64));
    }
}

/// Looks at the programs whose turn it is, without holding the lock, and wakes those whose wait is to end. Returns how
/// many files were read, or `None` if nobody waits.
fn look_round(
    waits: &Mutex<Waits>,
    is_gone: &dyn Fn() -> bool,
    look: &dyn Fn(u32) -> (PendingSignal, usize),
) -> Option<usize> {
    let waiting = {
        let mut waits = waits.lock();
        if waits.all.is_empty() {
            waits.watched = false;
            return None;
        }
        waits.to_check()
    };
    let gone = is_gone();
    let (mut found, mut reads) = (HashMap::new(), 0);
    for of_one in waiting.chunk_by(|one, other| one.user == other.user).filter(|_| !gone) {
        let mut left = READS_OF_ONE_USER;
        for program in of_one {
            let (seen, read) = look(program.id);
            found.insert(program.number, seen);
            reads += read;
            left = left.saturating_sub(read.max(1));
            if left == 0 {
                break;
            }
        }
    }
    let mut waits = waits.lock();
    waits.rounds += 1;
    let round = waits.rounds;
    for waiter in &mut waits.all {
        if gone {
            waiter.end.gone.store(true, Ordering::Release);
        } else if let Some(seen) = found.get(&waiter.number) {
            waiter.note(*seen, round);
        }
        waiter.wake();
    }
    Some(reads)
}

/// A program that waits, as it is checked for signals.
#[derive(Debug)]
struct WatchedProgram {
    user: u32,
    looked: u64,
    number: u64,
    id: u32,
}

impl Waits {
    /// The programs ordered by user; for each user, those that were not looked at for the longest time come first.
    fn to_check(&self) -> Vec<WatchedProgram> {
        let waiting = self.all.iter().filter(|one| !one.end.interrupted.load(Ordering::Acquire));
        let program = |one: &Waiter| WatchedProgram {
            user: one.user,
            looked: one.looked,
            number: one.number,
            id: one.program,
        };
        let mut programs: Vec<_> = waiting.map(program).collect();
        programs.sort_by_key(|program| (program.user, program.looked));
        programs
    }
}

/// Whether the kernel has ended the mount's connection.
fn is_gone(device: &Weak<OwnedFd>) -> bool {
    let Some(device) = device.upgrade() else { return true };
    let mut asked = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::empty())];
    let told = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    told.is_ok() && asked[0].revents().contains(PollFlags::ERR)
}

impl Waiter {
    /// Records what was seen of its program.
    fn note(&mut self, seen: PendingSignal, round: u64) {
        if seen == PendingSignal::Own || (seen == PendingSignal::Shared && self.seen) {
            self.end.interrupted.store(true, Ordering::Release);
        }
        self.seen = seen == PendingSignal::Shared;
        self.looked = round;
    }

    /// Wakes its thread if the wait is to end.
    fn wake(&self) {
        let ends =
            self.end.gone.load(Ordering::Acquire) || self.end.interrupted.load(Ordering::Acquire);
        if let Some(thread) = self.thread.filter(|_| ends) {
            // SAFETY: a thread removes its wait from the list, which is locked, before it ends; the signal has a
            // handler.
            let told = unsafe { libc::pthread_kill(thread, signal()) };
            debug_assert_eq!(told, 0, "the thread is there");
        }
    }
}

/// The signal that wakes a thread: one that no one else sends.
fn signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Unblocks the signal in this thread. Its handler does nothing: the arrival alone interrupts the system call.
fn allow_signal() {
    extern "C" fn handler(_signal: i32) {}
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: zeros are a `sigaction` without flags, so interrupted calls are not restarted. The handler accesses
        // nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: both calls get a complete set of signals.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(users: impl IntoIterator<Item = u32>) -> Mutex<Waits> {
        let waiter = |(number, user): (usize, u32)| Waiter {
            number: number as u64,
            user,
            program: u32::try_from(number).unwrap(),
            thread: None,
            seen: false,
            looked: 0,
            end: Arc::default(),
        };
        let all = users.into_iter().enumerate().map(waiter).collect();
        Mutex::new(Waits { all, ..Waits::default() })
    }

    /// Regression: a program's signal was noticed only after the programs of all others had been looked at, and in the
    /// meantime no program could begin or end a wait.
    #[test]
    fn programs_of_one_user_are_looked_at_in_turns_and_without_the_lock() {
        let waits = waits((0..200).map(|_| 7).chain([8]));
        let looked = Mutex::new(vec![0; 201]);
        for round in 1..=25 {
            let look = |program: u32| {
                assert!(waits.try_lock().is_some(), "others can begin and end waits");
                looked.lock()[program as usize] += 1;
                (PendingSignal::Quiet, 1)
            };
            assert_eq!(look_round(&waits, &|| false, &look), Some(READS_OF_ONE_USER + 1));
            assert_eq!(looked.lock()[200], round, "another user's is looked at each time");
        }
        assert!(looked.lock()[..200].iter().all(|times| *times == 1), "each had its turn");
    }

    #[test]
    fn who_got_a_signal_ends_and_all_do_where_the_mount_is_gone() {
        let waits = waits([7, 7, 8]);
        let look = |program: u32| {
            (if program == 1 { PendingSignal::Own } else { PendingSignal::Shared }, 1)
        };
        let ended = || {
            let waits = waits.lock();
            let is_ended = |one: &Waiter| {
                one.end.interrupted.load(Ordering::Acquire) || one.end.gone.load(Ordering::Acquire)
            };
            waits.all.iter().map(is_ended).collect::<Vec<_>>()
        };
        look_round(&waits, &|| false, &look).unwrap();
        assert_eq!(ended(), [false, true, false]);
        look_round(&waits, &|| false, &look).unwrap();
        assert_eq!(ended(), [true; 3], "a signal of the process that stays pending");
        assert_eq!(look_round(&self::waits([]), &|| false, &look), None);
        let waits = self::waits([7, 8]);
        look_round(&waits, &|| true, &|_| unreachable!("nobody is looked at")).unwrap();
        assert!(waits.lock().all.iter().all(|one| one.end.gone.load(Ordering::Acquire)));
    }
}
