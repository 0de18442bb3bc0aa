//! Programs that wait for locks: how many may, and what ends a wait.
//!
//! Each waits in a thread of the mount, in the origin's file system, which wakes it in turn. One more thread watches them:
//! where a program gets a signal, or the mount is gone, it wakes the thread by a signal, again and again until it has
//! seen that it shall end.

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

use super::interrupted::{Seen, look};
use crate::front::{Answer, Refused};

/// Most simultaneous waits on one mount; each has a thread.
const WAITS_MAX: usize = 1024;
/// Most of them that one user may have, except root and the mount's own user.
const OF_ONE_USER_MAX: usize = WAITS_MAX / 4;
/// How often signals are checked for, and for how many more waits a millisecond is added.
const TICK: Duration = Duration::from_millis(20);
const WAITS_PER_MS: usize = 8;

/// All waits of one mount.
#[derive(Debug, Default)]
pub(in crate::front) struct Waiters(Arc<Mutex<Waits>>);

#[derive(Debug, Default)]
struct Waits {
    all: Vec<Waiter>,
    next: u64,
    watched: bool,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    user: u32,
    /// The program's thread.
    program: u32,
    /// The thread that waits for it, once it does.
    thread: Option<libc::pthread_t>,
    /// A signal of its process was pending at the last check.
    seen: bool,
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
    /// Counts one more program that waits.
    ///
    /// # Errors
    /// `ENOLCK` if too many do, or no signal could end its wait.
    pub(in crate::front) fn enter(&self, caller: Caller, device: Weak<OwnedFd>) -> Answer<Waiting> {
        if look(caller.pid) == Seen::Nothing {
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
            end: Arc::clone(&end),
        });
        Ok(Waiting { waits: Arc::clone(&self.0), number, end })
    }
}

impl Waiting {
    /// Repeats `lock`, which a signal to this thread ends, until it succeeds or the wait is to end.
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

/// Looks after the waits until there are none.
fn watch(waits: &Mutex<Waits>, device: &Weak<OwnedFd>) {
    loop {
        let pause = {
            let mut waits = waits.lock();
            if waits.all.is_empty() {
                waits.watched = false;
                return;
            }
            let gone = is_gone(device);
            for waiter in &mut waits.all {
                waiter.look_after(gone);
            }
            TICK + Duration::from_millis((waits.all.len() / WAITS_PER_MS) as u64)
        };
        thread::sleep(pause);
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
    fn look_after(&mut self, gone: bool) {
        if gone {
            self.end.gone.store(true, Ordering::Release);
        } else if !self.end.interrupted.load(Ordering::Acquire) {
            let seen = look(self.program);
            if seen == Seen::Own || (seen == Seen::Shared && self.seen) {
                self.end.interrupted.store(true, Ordering::Release);
            }
            self.seen = seen == Seen::Shared;
        }
        let ends = gone || self.end.interrupted.load(Ordering::Acquire);
        if let Some(thread) = self.thread.filter(|_| ends) {
            // SAFETY: a thread takes its wait off the list, which is locked, before it ends; the signal has a handler.
            let told = unsafe { libc::pthread_kill(thread, signal()) };
            debug_assert_eq!(told, 0, "the thread is there");
        }
    }
}

/// The signal that wakes a thread: of those that nobody else sends.
fn signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Lets the signal through to this thread. Its handler does nothing: that it came ends the system call.
fn allow_signal() {
    extern "C" fn handler(_signal: i32) {}
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: zeros are a `sigaction` without flags: a call is not begun again. The handler touches nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(signal(), &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: both calls get a whole set of signals.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
}
