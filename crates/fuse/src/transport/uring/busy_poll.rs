//! Polling briefly for the next request before sleeping.
//!
//! A program that reads or creates one thing after another sends its next request some microseconds after the last
//! answer. If the thread sleeps in between, each request costs a wake-up across processors, which on an otherwise idle
//! machine takes as long as the rest of a small request. So a thread that has answered keeps polling, and yields its
//! processor to any thread that wants it.
//!
//! This pays only if the thread and the program have a processor each: if they share one, they must switch in turn, and
//! a thread that never sleeps stays where it is, so that each answer wakes a program on another processor. What must
//! hold: no thread of an idle mount polls; and where polling does not pay, because requests come slowly or other
//! threads need the processors, threads nearly stop polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread polls for its next request.
const WAIT_LIMIT: Duration = Duration::from_micros(50);

/// If yielding the processor takes longer than this, another thread was given it: then a wake-up is only a switch on
/// the same processor, and polling costs more than it saves.
const AWAY: Duration = Duration::from_micros(5);

/// After `n` failed polls in a row, the thread sleeps for the next `2^n - 1` requests. `n` grows to this limit if
/// nothing came, and to [`CROWDED_MAX`] if another thread took the processor.
const QUIET_MAX: u32 = 4;
const CROWDED_MAX: u32 = 10;

/// The value of one thread in an average of threads, and how much of the average each new number replaces.
const ONE: usize = 256;
const RENEWED: usize = 16;

/// The threads of a mount that are not asleep.
#[derive(Debug)]
pub(super) struct Awake {
    now: AtomicUsize,
    /// If more are awake on average, in parts of [`ONE`], none polls.
    most: usize,
}

/// Whether and how long one thread polls for its next request.
#[derive(Debug)]
pub(super) struct BusyPoll {
    awake: Arc<Awake>,
    /// Decaying average of the threads awake at each request, in parts of [`ONE`].
    crowd: usize,
    /// Failed polls in a row.
    vain: u32,
    /// Number of requests to sleep for before it polls again.
    rest: u32,
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollEnd {
    /// The next request arrived.
    Request,
    /// Nothing happened.
    Nothing,
    /// Other threads needed the processor.
    Others,
}

impl Awake {
    /// For a mount on `processors`: each polling thread and the program it waits for have one. Now and then there may
    /// be one thread too many, for example one that completes the close of a file while its program continues.
    pub(super) fn on(processors: usize) -> Self {
        Self { now: AtomicUsize::new(0), most: processors / 2 * ONE * 5 / 4 }
    }

    /// For a mount whose threads sleep at once.
    pub(super) fn off() -> Self {
        Self { now: AtomicUsize::new(0), most: 0 }
    }
}

impl BusyPoll {
    /// For a thread that is awake.
    pub(super) fn new(awake: Arc<Awake>) -> Self {
        awake.now.fetch_add(1, Ordering::Relaxed);
        Self { awake, crowd: 0, vain: 0, rest: 0 }
    }

    /// Whether to poll for the next request; called once per request.
    pub(super) fn is_due(&mut self) -> bool {
        let awake = self.awake.now.load(Ordering::Relaxed);
        self.crowd = self.crowd - self.crowd / RENEWED + awake * (ONE / RENEWED);
        if self.crowd > self.awake.most {
            return false;
        }
        let due = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        due
    }

    /// Sleeps in `wait`.
    pub(super) fn asleep<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.awake.now.fetch_sub(1, Ordering::Relaxed);
        let woken = wait();
        self.awake.now.fetch_add(1, Ordering::Relaxed);
        woken
    }

    /// Polls until a request is `there`, at most for [`WAIT_LIMIT`].
    pub(super) fn poll(&mut self, mut there: impl FnMut() -> bool) {
        let begin = Instant::now();
        let mut last = begin;
        let end = loop {
            if there() {
                break PollEnd::Request;
            }
            thread::yield_now();
            let now = Instant::now();
            if now - last > AWAY {
                break PollEnd::Others;
            }
            if now - begin > WAIT_LIMIT {
                break PollEnd::Nothing;
            }
            last = now;
        };
        self.note_end(end);
    }

    fn note_end(&mut self, end: PollEnd) {
        self.vain = match end {
            PollEnd::Request => 0,
            PollEnd::Nothing => (self.vain + 1).min(QUIET_MAX),
            PollEnd::Others => (self.vain + 1).min(CROWDED_MAX),
        };
        self.rest = (1 << self.vain) - 1;
    }
}

impl Drop for BusyPoll {
    fn drop(&mut self) {
        self.awake.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll() -> BusyPoll {
        BusyPoll::new(Arc::new(Awake::on(2)))
    }

    /// For how many of 10,000 requests a thread polls, if every poll ends like this.
    fn looked(end: PollEnd) -> usize {
        let mut poll = poll();
        let looks = |_: &usize| {
            let due = poll.is_due();
            if due {
                poll.note_end(end);
            }
            due
        };
        (0..10_000).filter(looks).count()
    }

    #[test]
    fn requests_are_looked_for_as_far_as_it_pays() {
        assert_eq!(looked(PollEnd::Request), 10_000);
        assert!((600..=650).contains(&looked(PollEnd::Nothing)), "one in 16");
        assert!((15..=20).contains(&looked(PollEnd::Others)), "one in 1024");
    }

    #[test]
    fn one_request_that_came_makes_up_for_those_that_did_not() {
        let mut poll = poll();
        for _ in 0..CROWDED_MAX {
            poll.note_end(PollEnd::Others);
        }
        poll.note_end(PollEnd::Nothing);
        let slept = (0..100).take_while(|_| !poll.is_due()).count();
        assert_eq!(slept, 15);
        poll.note_end(PollEnd::Request);
        assert!(poll.is_due());
    }

    #[test]
    fn no_thread_polls_where_programs_need_the_processors() {
        // The answer after some requests.
        let due = |poll: &mut BusyPoll| (0..100).map(|_| poll.is_due()).last().unwrap();
        let mut first = poll();
        let second = BusyPoll::new(first.awake.clone());
        assert!(!due(&mut first), "two requests on two processors");
        second.asleep(|| assert!(due(&mut first)));
        assert!(!due(&mut first));
        assert!(!due(&mut BusyPoll::new(Arc::new(Awake::off()))));
        assert!(!due(&mut BusyPoll::new(Arc::new(Awake::on(1)))), "its program has no processor");
    }

    #[test]
    fn polling_ends_by_itself() {
        let mut poll = poll();
        let mut times = 0;
        poll.poll(|| {
            times += 1;
            false
        });
        assert!(times > 0 && poll.vain > 0);
        poll.poll(|| true);
        assert_eq!(poll.vain, 0);
    }
}
