//! Looking out for the next request for a moment before sleeping until it comes.
//!
//! A program that reads or creates one thing after the other sends its next request some
//! microseconds after the last answer. Sleeping in between costs it a wake-up across processors,
//! which on an otherwise idle machine takes as long as the rest of a small request. So a thread
//! that has answered goes on looking, and gives its processor to whoever wants it meanwhile.
//!
//! It pays only with a processor for each of the two: threads that share one hand it to each other
//! at the price of a switch, and a thread that never sleeps stays where it is, so that each answer
//! wakes a program on another processor. What must hold: an idle mount has no thread that looks; and
//! where looking does not pay, because requests come slowly or others need the processors, threads
//! nearly stop doing so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread looks for its next request.
const WAIT_LIMIT: Duration = Duration::from_micros(50);

/// A processor that is away for longer, when it was offered to others, went to one: then a wake-up
/// is only a switch on the same processor, and looking costs more than it saves.
const AWAY: Duration = Duration::from_micros(5);

/// After looking in vain `n` times in a row, the next `2^n - 1` requests are slept for: this `n` at
/// most where nothing came, and [`CROWDED_MAX`] where the processor was away.
const QUIET_MAX: u32 = 4;
const CROWDED_MAX: u32 = 10;

/// One thread in an average of threads, and how much of it each new number replaces.
const ONE: usize = 256;
const RENEWED: usize = 16;

/// The threads of a mount that do not sleep for a request.
#[derive(Debug)]
pub(super) struct Awake {
    now: AtomicUsize,
    /// With more of them on average, in parts of [`ONE`], none looks.
    most: usize,
}

/// Whether and how long one thread looks for its next request.
#[derive(Debug)]
pub(super) struct BusyPoll {
    awake: Arc<Awake>,
    /// Decaying average of the threads awake at each request, in parts of [`ONE`].
    crowd: usize,
    /// How often it looked in vain in a row.
    vain: u32,
    /// Requests that it sleeps for until it looks again.
    rest: u32,
}

/// How looking ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The next request came.
    Request,
    /// Nothing did.
    Nothing,
    /// Other programs needed the processor.
    Others,
}

impl Awake {
    /// For a mount on `processors`: each thread that looks, and the program it waits for, have one.
    /// Now and then there may be a thread too many: one that puts an end to something, such as a
    /// closed file, while its program goes on.
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

    /// Whether to look for the request that comes next; asked once a request.
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

    /// Looks until a request is `there`, for a moment at most.
    pub(super) fn look(&mut self, mut there: impl FnMut() -> bool) {
        let begin = Instant::now();
        let mut last = begin;
        let seen = loop {
            if there() {
                break Seen::Request;
            }
            thread::yield_now();
            let now = Instant::now();
            if now - last > AWAY {
                break Seen::Others;
            }
            if now - begin > WAIT_LIMIT {
                break Seen::Nothing;
            }
            last = now;
        };
        self.learn(seen);
    }

    fn learn(&mut self, seen: Seen) {
        self.vain = match seen {
            Seen::Request => 0,
            Seen::Nothing => (self.vain + 1).min(QUIET_MAX),
            Seen::Others => (self.vain + 1).min(CROWDED_MAX),
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

    /// How many of 10,000 requests are looked for, if looking always ends so.
    fn looked(seen: Seen) -> usize {
        let mut poll = poll();
        let looks = |_: &usize| {
            let due = poll.is_due();
            if due {
                poll.learn(seen);
            }
            due
        };
        (0..10_000).filter(looks).count()
    }

    #[test]
    fn requests_are_looked_for_as_far_as_it_pays() {
        assert_eq!(looked(Seen::Request), 10_000);
        assert!((600..=650).contains(&looked(Seen::Nothing)), "one in 16");
        assert!((15..=20).contains(&looked(Seen::Others)), "one in 1024");
    }

    #[test]
    fn one_request_that_came_makes_up_for_those_that_did_not() {
        let mut poll = poll();
        for _ in 0..CROWDED_MAX {
            poll.learn(Seen::Others);
        }
        poll.learn(Seen::Nothing);
        let slept = (0..100).take_while(|_| !poll.is_due()).count();
        assert_eq!(slept, 15);
        poll.learn(Seen::Request);
        assert!(poll.is_due());
    }

    #[test]
    fn nobody_looks_where_programs_need_the_processors() {
        // What it comes to after some requests.
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
    fn looking_ends_by_itself() {
        let mut poll = poll();
        let mut times = 0;
        poll.look(|| {
            times += 1;
            false
        });
        assert!(times > 0 && poll.vain > 0);
        poll.look(|| true);
        assert_eq!(poll.vain, 0);
    }
}
