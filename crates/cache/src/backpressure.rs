//! Backpressure: for a critical write that finds the cache full of dirty data, waiting for the flush may be better
//! than going to the origin (ours).
//!
//! A flush writes dense regions in order; a write that goes to the origin meanwhile makes it seek away from them and
//! back. So while a flush for room runs, a policy with a wait limit lets writes wait for its next region. A wait never
//! lasts longer than a few times what the origin itself is expected to take (D11), and after fruitless waits some
//! writes do not wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use halocline_model::backpressure::{WAIT_MAX, backoff_writes};
use parking_lot::{Condvar, Mutex};

use halocline_os::clock::Clock;

/// Where writes wait for the rebuilder to make room.
#[derive(Debug)]
pub(crate) struct Backpressure {
    clock: Clock,
    /// Counts how often room was made.
    made: Mutex<u64>,
    more: Condvar,
    waiting: AtomicU32,
    /// How many of the next writes go to the origin without waiting.
    backoff_writes: AtomicU32,
    /// Fruitless waits since the last one that got room.
    in_vain: AtomicU32,
}

impl Backpressure {
    /// `clock` measures the waits.
    pub(crate) fn new(clock: Clock) -> Self {
        let [waiting, backoff_writes, in_vain] = [(); 3].map(|()| AtomicU32::new(0));
        Self { clock, made: Mutex::new(0), more: Condvar::new(), waiting, backoff_writes, in_vain }
    }

    /// Tries `take` again each time room was made, until it succeeds or `wait_limit` is over.
    pub(crate) fn wait<T, E>(
        &self,
        wait_limit: Duration,
        mut take: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        if wait_limit.is_zero() || self.backs_off() {
            return Ok(None);
        }
        let until = self.clock.instant() + wait_limit.min(WAIT_MAX);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (mut before, mut late) = (*self.made.lock(), false);
        let taken = loop {
            // First for room made since the caller tried, which is not signalled again.
            match take() {
                Ok(None) if !late => {}
                other => break other,
            }
            let mut made = self.made.lock();
            late = self.clock.wait_while(&self.more, &mut made, |made| *made == before, until);
            before = *made;
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match taken {
            Ok(None) => {
                let writes = backoff_writes(self.in_vain.load(Ordering::Relaxed));
                self.backoff_writes.store(writes, Ordering::Relaxed);
                // A lost count costs a wait.
                let _ = self.in_vain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
                    before.checked_add(1)
                });
            }
            Ok(Some(_)) => self.in_vain.store(0, Ordering::Relaxed),
            Err(_) => {}
        }
        taken
    }

    /// Whether any write waits.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes the waiting writes: dirty data became evictable.
    pub(crate) fn room_was_made(&self) {
        *self.made.lock() += 1;
        self.more.notify_all();
    }

    fn backs_off(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.backoff_writes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_write_gets_the_room_that_is_made() {
        let (backpressure, made) = (Backpressure::new(Clock::MACHINE), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !backpressure.has_waiters() {
                    std::thread::yield_now();
                }
                made.store(true, Ordering::Release);
                backpressure.room_was_made();
            });
            // A wait that ended before the other thread looked is repeated.
            let take = || Ok::<_, ()>(made.load(Ordering::Acquire).then_some("room"));
            while backpressure.wait(WAIT_MAX, take) != Ok(Some("room")) {}
        });
    }

    #[test]
    fn waits_in_vain_make_more_and_more_writes_back_off() {
        let backpressure = Backpressure::new(Clock::simulated());
        let waits = |room: Option<()>| {
            let mut tries = 0;
            let taken = backpressure.wait(Duration::from_millis(1), || {
                tries += 1;
                Ok::<Option<()>, ()>(room)
            });
            assert!(taken.is_ok());
            tries > 0
        };
        let in_vain: Vec<usize> = (0..200).filter(|_| waits(None)).collect();
        assert_eq!(in_vain[..6], [0, 2, 5, 10, 19, 36], "1, 2, 4, 8, 16 and 16 did not wait");
        while !waits(Some(())) {}
        assert!(waits(None) && !waits(None) && waits(None), "what got room is believed again");
    }
}
