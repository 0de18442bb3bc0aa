//! Keeps only as many event-loop threads waiting for the kernel as the load needs.
//!
//! Calls may sleep long in slow devices, so there are many threads; but the kernel gives requests
//! to waiting threads in turn, and where calls do not sleep (the page cache answers) more threads
//! than processors only get in each other's way: with 2 threads instead of 16, four programs read
//! 4 KiB pieces 1.4 times as fast on two cores. So while calls mostly do not sleep, a thread that
//! ends a request and finds enough others waiting parks here. One parked thread keeps watch: when
//! calls sleep, or no request ends any more, threads go back.
//!
//! The library's event loop knows nothing of this: a thread parks at the end of its request's
//! method, after the answer was sent.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How soon the watch looks around again: as long as threads suffice each time twice as long, because
/// every look takes a processor from somebody (1000 a second: 8 % of a single program's 4 KiB
/// reads on two cores). No request waits longer than the second for a parked thread.
const WATCH: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// Time without any request after which all parked threads go back to the kernel: an idle mount
/// has no timers, and an unmount, which only the kernel's queue tells of, ends every thread.
const IDLE: Duration = Duration::from_millis(20);

/// Of a thread's requests, one in this many is asked whether it slept, and each that follows one
/// that did.
const SAMPLE_EVERY: u32 = 16;

/// Samples over which times are averaged.
const MEMORY: u64 = 16;

thread_local! {
    /// Requests of this thread until the next sample.
    static UNTIL_SAMPLE: Cell<u32> = const { Cell::new(0) };
}

/// The event-loop threads of one mount.
#[derive(Debug)]
pub(super) struct Parking {
    /// Threads that are not in a request: in the kernel, or on their way.
    waiting: AtomicUsize,
    /// Requests ended.
    ended: AtomicUsize,
    /// Threads that may wait for the kernel before others park.
    enough: usize,
    /// Decaying sums of sampled nanoseconds: in all requests, and in those that slept.
    all_ns: AtomicU64,
    slept_ns: AtomicU64,
    parked: Mutex<Parked>,
    go: Condvar,
}

#[derive(Debug, Default)]
struct Parked {
    /// Whether one of the parked threads keeps watch.
    watched: bool,
    /// Counts the times at which all went back.
    all_back: u64,
}

/// One request's time on its thread.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    parking: &'a Parking,
    /// When the request began and how often the thread had slept by then, if it is a sample.
    sample: Option<(Instant, i64)>,
}

/// Which parked threads go back to the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Needed {
    One,
    All,
}

impl Parking {
    /// Parking of `threads` threads, all of them waiting.
    pub(super) fn new(threads: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            waiting: AtomicUsize::new(threads),
            ended: AtomicUsize::new(0),
            enough: processors.max(2),
            all_ns: AtomicU64::new(0),
            slept_ns: AtomicU64::new(0),
            parked: Mutex::default(),
            go: Condvar::new(),
        }
    }

    /// Begins a request on this thread.
    pub(super) fn begin(&self) -> Turn<'_> {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let left = UNTIL_SAMPLE.get();
        UNTIL_SAMPLE.set(left.checked_sub(1).unwrap_or(SAMPLE_EVERY - 1));
        Turn { parking: self, sample: (left == 0).then(|| (Instant::now(), sleeps())) }
    }

    fn note(&self, begun: Instant, sleeps_before: i64) {
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX >> 8);
        let slept = sleeps() != sleeps_before;
        // Two threads may lose each other's sample: an estimate lives with that.
        let decayed = |sum: &AtomicU64, more: u64| {
            let old = sum.load(Ordering::Relaxed);
            sum.store(old - old / MEMORY + more, Ordering::Relaxed);
        };
        decayed(&self.all_ns, ns);
        decayed(&self.slept_ns, if slept { ns } else { 0 });
        if slept {
            UNTIL_SAMPLE.set(0);
        }
    }

    /// Whether threads spend most of their time in calls that sleep: then all are of use.
    fn calls_sleep(&self) -> bool {
        self.slept_ns.load(Ordering::Relaxed) > self.all_ns.load(Ordering::Relaxed) / 2
    }

    /// Waits until this thread is needed or the mount is idle.
    fn park(&self) {
        let mut parked = self.parked.lock();
        let all_back = parked.all_back;
        while parked.watched && parked.all_back == all_back {
            self.go.wait(&mut parked);
        }
        if parked.all_back != all_back {
            return;
        }
        parked.watched = true;
        if self.watch(&mut parked) == Needed::All {
            parked.all_back += 1;
            self.go.notify_all();
        } else {
            self.go.notify_one();
        }
        parked.watched = false;
    }

    /// Keeps watch over the threads that are not parked.
    fn watch(&self, parked: &mut MutexGuard<'_, Parked>) -> Needed {
        let mut seen = self.ended.load(Ordering::Relaxed);
        let (mut idle, mut pause) = (Duration::ZERO, WATCH.0);
        loop {
            self.go.wait_for(parked, pause);
            let ended = self.ended.load(Ordering::Relaxed);
            let waiting = self.waiting.load(Ordering::Relaxed);
            idle = if ended == seen { idle + pause } else { Duration::ZERO };
            if idle >= IDLE || self.calls_sleep() {
                return Needed::All;
            }
            if waiting == 0 && ended == seen {
                return Needed::One;
            }
            pause = if waiting == 0 { WATCH.0 } else { WATCH.1.min(pause * 2) };
            seen = ended;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let parking = self.parking;
        if let Some((begun, sleeps_before)) = self.sample {
            parking.note(begun, sleeps_before);
        }
        parking.ended.fetch_add(1, Ordering::Relaxed);
        let enough = parking.waiting.load(Ordering::Relaxed) >= parking.enough;
        if enough && !parking.calls_sleep() && !std::thread::panicking() {
            parking.park();
        }
        parking.waiting.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often this thread gave its processor up to wait for something.
fn sleeps() -> i64 {
    // SAFETY: `usage` is a valid place for the answer, and zeros are a valid value of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}
