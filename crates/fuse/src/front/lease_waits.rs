//! Requests that meet a program's lease of a file below ([`halocline_os::leased_files`]).
//!
//! The engine waits for no lease: the request fails with `EAGAIN`, and the holder has been told. It is tried again here, with
//! pauses, for as long as a holder needs that gives its lease up. After that the program gets `EAGAIN`, as from `open(2)`
//! with `O_NONBLOCK`. Nothing is locked during a pause, so only the caller of this request waits. The same holds for both
//! transports.
//!
//! What must hold: of the threads that take requests from one queue, at least one never waits for a lease, whoever holds
//! how many; and of those that may wait, one user's requests occupy at most half. Where no more may wait, the program gets
//! `EAGAIN` at once.

use std::cell::Cell;

use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_os::leased_files::pauses;
use halocline_os::served_program::is_killed;
use halocline_vfs::Caller;
use parking_lot::Mutex;

thread_local! {
    /// What this thread takes requests from, unless that is `/dev/fuse`.
    static OWN: Cell<Option<Queue>> = const { Cell::new(None) };
}

/// A queue of requests, with so many threads that take them: the kernel's queue of a processor, or `/dev/fuse`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) processor: Option<u16>,
    pub(crate) threads: usize,
}

impl Queue {
    /// Notes that this thread takes requests from this queue.
    pub(crate) fn is_of_this_thread(self) {
        OWN.set(Some(self));
    }

    /// That of this thread, if it is one of a processor.
    pub(crate) fn of_this_thread() -> Option<Self> {
        OWN.get()
    }

    /// How many of its threads may wait, for whomever and for one user.
    const fn limits(self) -> (usize, usize) {
        let all = self.threads.saturating_sub(1);
        (all, all.div_ceil(2))
    }
}

/// The waits for leases of one mount.
#[derive(Debug)]
pub(super) struct LeaseWaits {
    device: Queue,
    /// The queue and the user of each.
    waits: Mutex<Vec<(Option<u16>, u32)>>,
}

/// One wait. Dropping it ends it.
struct Waiting<'a> {
    all: &'a LeaseWaits,
    of: (Option<u16>, u32),
}

impl LeaseWaits {
    /// Those of a mount whose requests come from `/dev/fuse` to so many threads, or through rings.
    pub(super) fn new(device_threads: usize) -> Self {
        let device = Queue { processor: None, threads: device_threads };
        Self { device, waits: Mutex::default() }
    }

    /// Calls `act` for a program, repeatedly as long as it meets a lease and this thread may wait.
    ///
    /// # Errors
    /// Those of `act`.
    pub(super) fn wait<T>(&self, caller: Caller, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        let mut done = act();
        if !is_leased(&done) {
            return done;
        }
        let Some(_waiting) = self.enter(caller.uid) else { return done };
        for pause in pauses() {
            Clock::MACHINE.sleep(pause);
            done = act();
            if !is_leased(&done) || is_killed() {
                break;
            }
        }
        done
    }

    /// Counts one more wait of this thread, if it may.
    fn enter(&self, user: u32) -> Option<Waiting<'_>> {
        let queue = Queue::of_this_thread().unwrap_or(self.device);
        let of = (queue.processor, user);
        let (all_max, of_one_max) = queue.limits();
        let mut waits = self.waits.lock();
        let all = waits.iter().filter(|(processor, _)| *processor == of.0).count();
        let own = waits.iter().filter(|other| **other == of).count();
        if all >= all_max || own >= of_one_max {
            tracing::debug!(user, "a request does not wait for a lease: too many do");
            return None;
        }
        waits.push(of);
        Some(Waiting { all: self, of })
    }
}

fn is_leased<T>(done: &Result<T>) -> bool {
    done.as_ref().is_err_and(halocline_os::error::Error::is_leased)
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waits = self.all.waits.lock();
        let at = waits.iter().position(|other| *other == self.of);
        waits.swap_remove(at.expect("it was counted"));
    }
}

#[cfg(test)]
mod tests {
    use halocline_os::error::Error;

    use super::*;

    #[test]
    fn one_thread_of_each_queue_never_waits_and_one_user_takes_half() {
        let waits = LeaseWaits::new(4);
        let entered = |users: &[u32]| {
            let waiting: Vec<_> = users.iter().map(|user| waits.enter(*user)).collect();
            waiting.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(entered(&[7, 7, 7, 8, 9]), [true, true, false, true, false]);
        assert_eq!(entered(&[7, 8]), [true, true], "they ended");
        let _others = [7, 7, 8].map(|user| waits.enter(user).unwrap());
        Queue { processor: Some(0), threads: 2 }.is_of_this_thread();
        assert_eq!(entered(&[7, 8]), [true, false], "another queue");
        Queue { processor: Some(1), threads: 1 }.is_of_this_thread();
        assert_eq!(entered(&[0]), [false]);
        OWN.set(None);
    }

    #[test]
    fn a_request_is_tried_again_until_the_lease_is_given_up() {
        let (waits, caller) = (LeaseWaits::new(2), Caller { uid: 7, gid: 7, pid: 0 });
        let mut tries = 0;
        let done = waits.wait(caller, || {
            tries += 1;
            if tries < 4 { Err(Error::Leased) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 4);
        assert!(waits.waits.lock().is_empty());
        let mut tries = 0;
        let alone = LeaseWaits::new(1);
        let done: Result<()> = alone.wait(caller, || {
            tries += 1;
            Err(Error::Leased)
        });
        assert!(done.unwrap_err().is_leased());
        assert_eq!(tries, 1, "no thread may wait");
    }
}
