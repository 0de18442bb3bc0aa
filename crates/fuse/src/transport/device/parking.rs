//! Keeps only as many event-loop threads waiting for the kernel as the load needs.
//!
//! Calls may sleep long in slow devices, so there are many threads; but the kernel gives requests to waiting threads in
//! turn, and if calls do not sleep (because the page cache answers), more threads than processors only contend with
//! each other: with 2 threads instead of 16, four programs read 4 KiB pieces 1.4 times as fast on two cores. So while
//! calls mostly do not sleep, a thread that completes a request and finds enough others waiting parks here. One parked
//! thread watches: when calls sleep, or no request completes any more, threads return to the kernel.
//!
//! The library's event loop knows nothing of this: a thread parks at the end of the method that handles its request,
//! after the answer was sent.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Interval of the watch's checks; it doubles each time as long as threads suffice, because every check takes a
/// processor from another thread (1000 a second: 8 % of a single program's 4 KiB reads on two cores). No request waits
/// longer than the second value for a parked thread.
const WATCH: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// Time without requests after which all parked threads return to the kernel: an idle mount has no timers, and an
/// unmount, which only the kernel's queue reports, ends every thread.
const IDLE: Duration = Duration::from_millis(20);

/// One in this many of a thread's requests is sampled for whether it slept, and so is the request after one that slept.
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
    /// Threads not handling a request: in the kernel, or on their way there.
    waiting: AtomicUsize,
    /// Requests completed.
    ended: AtomicUsize,
    /// How many threads may wait in the kernel before others park.
    enough: usize,
    /// Decaying sums of sampled nanoseconds: in all requests, and in those that slept.
    all_ns: AtomicU64,
    slept_ns: AtomicU64,
    parked: Mutex<Parked>,
    go: Condvar,
}

#[derive(Debug, Default)]
struct Parked {
    /// Whether one of the parked threads is watching.
    watched: bool,
    /// Counts how often all threads returned.
    all_back: u64,
}

/// One request's time on its thread.
#[derive(Debug)]
pub(super) struct RequestTiming<'a> {
    parking: &'a Parking,
    /// When the request began and how often the thread had slept by then, if it is a sample.
    sample: Option<(Instant, i64)>,
}

/// Which parked threads return to the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Unparked {
    One,
    All,
}

impl Parking {
    /// Parking for `threads` threads, all of them waiting.
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
    pub(super) fn begin(&self) -> RequestTiming<'_> {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let left = UNTIL_SAMPLE.get();
        UNTIL_SAMPLE.set(left.checked_sub(1).unwrap_or(SAMPLE_EVERY - 1));
        RequestTiming { parking: self, sample: (left == 0).then(|| (Instant::now(), sleeps())) }
    }

    fn note(&self, begun: Instant, sleeps_before: i64) {
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX >> 8);
        let slept = sleeps() != sleeps_before;
        // Concurrent threads may lose each other's samples, which an estimate tolerates.
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

    /// Whether threads spend most of their time in calls that sleep: then all of them are useful.
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
        if self.watch(&mut parked) == Unparked::All {
            parked.all_back += 1;
            self.go.notify_all();
        } else {
            self.go.notify_one();
        }
        parked.watched = false;
    }

    /// Watches while other threads serve requests.
    fn watch(&self, parked: &mut MutexGuard<'_, Parked>) -> Unparked {
        let mut seen = self.ended.load(Ordering::Relaxed);
        let (mut idle, mut pause) = (Duration::ZERO, WATCH.0);
        loop {
            self.go.wait_for(parked, pause);
            let ended = self.ended.load(Ordering::Relaxed);
            let waiting = self.waiting.load(Ordering::Relaxed);
            idle = if ended == seen { idle + pause } else { Duration::ZERO };
            if idle >= IDLE || self.calls_sleep() {
                return Unparked::All;
            }
            if waiting == 0 && ended == seen {
                return Unparked::One;
            }
            pause = if waiting == 0 { WATCH.0 } else { WATCH.1.min(pause * 2) };
            seen = ended;
        }
    }
}

impl Drop for RequestTiming<'_> {
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

/// How often this thread has blocked.
fn sleeps() -> i64 {
    // SAFETY: `usage` is a valid place for the result, and all zeros are a valid value.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}
