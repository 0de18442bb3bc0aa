//! Polling briefly for an answer before sleeping.
//!
//! A server nearby answers in less time than it takes to put a processor to sleep and wake it again. So a thread that
//! has sent a request polls the socket for a moment, and yields its processor to any thread that wants it. What must
//! hold: where polling does not pay, because the server is far away or other threads need the processors, it nearly
//! stops (`docs/decisions/0063-creates-of-a-shared-tier.md`).

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use halocline_os::clock::Clock;

/// How long to poll.
const LIMIT: Duration = Duration::from_micros(100);
/// If yielding the processor takes longer than this, another thread was given it.
const AWAY: Duration = Duration::from_micros(10);
/// After `n` failed polls in a row, the next `2^n - 1` answers are waited for without polling.
const VAIN_MAX: u32 = 8;

thread_local! {
    static POLLED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long the calling thread has polled for answers of servers so far. A thread that polls is busy, and yet only waits.
#[must_use]
pub fn polled_by_this_thread() -> Duration {
    POLLED.get()
}

/// Whether to poll for the next answer on a socket.
#[derive(Debug, Default)]
pub(super) struct AnswerPoll {
    /// Failed polls in a row.
    vain: u32,
    /// Number of answers not to poll for.
    rest: u32,
}

impl AnswerPoll {
    /// Polls until something `comes`, if that seems worthwhile; `None` if it did not come.
    pub(super) fn poll<T>(&mut self, mut comes: impl FnMut() -> Option<T>) -> Option<T> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let begun = Clock::MACHINE.instant();
        let mut last = begun;
        let came = loop {
            let came = comes();
            if came.is_some() {
                break came;
            }
            thread::yield_now();
            let now = Clock::MACHINE.instant();
            if now - last > AWAY {
                // Another thread had the processor. If the answer came meanwhile, nothing was lost by waiting awake:
                // threads that share a processor and poll pass it to each other, and none of them must be woken.
                break comes();
            }
            if now - begun > LIMIT {
                break None;
            }
            last = now;
        };
        // The last look is the answer's, or that of a thread that was away.
        POLLED.set(POLLED.get() + (last - begun));
        self.vain = if came.is_some() { 0 } else { (self.vain + 1).min(VAIN_MAX) };
        self.rest = (1 << self.vain) - 1;
        came
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_is_polled_for_less_and_less_often() {
        let mut poll = AnswerPoll::default();
        let polls_for = |poll: &mut AnswerPoll, comes: bool| {
            let mut polled = false;
            let came = poll.poll(|| {
                polled = true;
                comes.then_some(())
            });
            assert_eq!(came.is_some(), polled && comes);
            polled
        };
        assert!(polls_for(&mut poll, true) && polls_for(&mut poll, true));
        let polled = (0..10_000).filter(|_| polls_for(&mut poll, false)).count();
        assert!((8..60).contains(&polled), "{polled}");
        // Once something comes, each answer is polled for again.
        while !polls_for(&mut poll, true) {}
        assert!((0..100).all(|_| polls_for(&mut poll, true)));
    }

    /// Regression: two threads that shared a processor took each other's work for answers that do not come, and slept.
    #[test]
    fn what_came_while_another_thread_had_the_processor_is_no_failed_poll() {
        let mut poll = AnswerPoll::default();
        let mut asked = 0;
        let came = poll.poll(|| {
            asked += 1;
            if asked == 1 {
                thread::sleep(AWAY * 100);
                return None;
            }
            Some(())
        });
        assert_eq!((came, asked, poll.vain), (Some(()), 2, 0));
    }
}
