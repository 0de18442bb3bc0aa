//! Polling briefly for an answer before sleeping.
//!
//! A server nearby answers in less time than it takes to put a processor to sleep and wake it again. So a thread that
//! has sent a request polls the socket for a moment, and yields its processor to any thread that wants it. Threads that
//! share a processor and ask a server pass it to each other like this, and none of them must be woken. What must hold:
//! where polling does not pay, because the server is far away or threads that compute want the processors, it nearly
//! stops (`docs/decisions/0063-creates-of-a-shared-tier.md`, `docs/decisions/0073-threads-that-poll-together.md`).

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use halocline_os::clock::Clock;

/// How long to poll, without the time in which other threads had the processor.
const LIMIT: Duration = Duration::from_micros(100);
/// The same with that time.
const WAIT_LIMIT: Duration = Duration::from_millis(1);
/// If yielding the processor takes longer than this, another thread was given it.
const AWAY: Duration = Duration::from_micros(10);
/// One that keeps it for longer than this computes. A thread that sleeps gets the processor from it when its answer
/// comes, one that polls when the scheduler takes turns, after some milliseconds.
const COMPUTES: Duration = Duration::from_micros(500);
/// After `n` failed polls in a row, the next `2^n - 1` answers are waited for without polling.
const VAIN_MAX: u32 = 10;

thread_local! {
    /// Processor time, if it is measured.
    static POLLED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// How much processor time polling for answers of servers has taken from the calling thread since it first called this.
/// A thread that polls is busy, and yet only waits.
#[must_use]
pub fn polled_by_this_thread() -> Duration {
    let polled = POLLED.get().unwrap_or_default();
    POLLED.set(Some(polled));
    polled
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
    pub(super) fn poll<T>(&mut self, comes: impl FnMut() -> Option<T>) -> Option<T> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let measured = POLLED.get().map(|before| (before, Clock::thread_time()));
        let (came, has_failed) = poll(comes);
        if let Some((before, begun)) = measured {
            POLLED.set(Some(before + Clock::thread_time().saturating_sub(begun)));
        }
        self.vain = if has_failed { (self.vain + 1).min(VAIN_MAX) } else { 0 };
        self.rest = (1 << self.vain) - 1;
        came
    }
}

/// What came, and whether it would have been better to sleep.
fn poll<T>(mut comes: impl FnMut() -> Option<T>) -> (Option<T>, bool) {
    let begun = Clock::MACHINE.instant();
    let (mut last, mut polled) = (begun, Duration::ZERO);
    loop {
        let came = comes();
        if came.is_some() {
            return (came, false);
        }
        thread::yield_now();
        let now = Clock::MACHINE.instant();
        let away = now - last;
        if away > COMPUTES {
            return (comes(), true);
        }
        if away <= AWAY {
            polled += away;
        }
        if polled > LIMIT || now - begun > WAIT_LIMIT {
            return (None, true);
        }
        last = now;
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

    /// What comes at the `looks`-th look, before each of which other threads have the processor for `away`.
    fn comes_after(poll: &mut AnswerPoll, looks: usize, away: Duration) -> (bool, usize) {
        let mut looked = 0;
        let came = poll.poll(|| {
            looked += 1;
            (looked == looks).then_some(()).or_else(|| {
                thread::sleep(away);
                None
            })
        });
        (came.is_some(), looked)
    }

    /// Regression: two threads that shared a processor took each other's work for answers that do not come, and slept;
    /// the second of them even where the answer came a moment later (2 clients were slower than one).
    #[test]
    fn threads_that_pass_each_other_the_processor_poll_on() {
        let is_polled_on = || {
            let mut poll = AnswerPoll::default();
            comes_after(&mut poll, 3, AWAY * 3) == (true, 3) && poll.vain == 0
        };
        // On a busy machine, such a moment may be long.
        assert!((0..200).any(|_| is_polled_on()));
    }

    /// Regression: a thread that polled beside one that computes had its answer only after the other's turn, each time.
    #[test]
    fn beside_threads_that_compute_it_sleeps_even_if_answers_come_meanwhile() {
        let mut poll = AnswerPoll::default();
        assert_eq!(comes_after(&mut poll, 2, COMPUTES * 2), (true, 2));
        assert_eq!((poll.vain, poll.rest), (1, 1));
        let polled = (0..1000).filter(|_| comes_after(&mut poll, 2, COMPUTES * 2).1 > 0).count();
        assert!((5..12).contains(&polled), "{polled}");
    }

    #[test]
    fn a_server_that_does_not_answer_is_not_polled_for_long_however_busy_the_others_are() {
        let mut poll = AnswerPoll::default();
        let (came, looked) = comes_after(&mut poll, usize::MAX, AWAY * 3);
        assert!(!came && looked < 50 && poll.vain == 1, "{looked}");
    }

    #[test]
    fn only_processor_time_counts_as_polled() {
        let mut poll = AnswerPoll::default();
        let before = polled_by_this_thread();
        assert!(!comes_after(&mut poll, usize::MAX, COMPUTES * 40).0);
        let polled = polled_by_this_thread().saturating_sub(before);
        assert!(!polled.is_zero() && polled < COMPUTES * 20, "{polled:?}");
    }
}
