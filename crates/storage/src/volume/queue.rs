//! One server's worker threads: they run the parts of striped requests while the caller itself runs one part.
//!
//! Nothing here can deadlock: a job never waits for another job, so every worker always returns to its queue, and if no
//! worker can be started, the caller runs the job itself.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use halocline_os::catch_panic::catch_panic;
use halocline_os::clock::{Work, part_of_work};

/// Parts of requests that one server processes concurrently, besides those that run in their callers' threads. An
/// emulated disk has one head and flash a handful of channels; real devices gain little from more.
const WORKERS_MAX: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// A server's queue; its workers are started when they are first needed and end with it.
#[derive(Debug)]
pub(crate) struct Queue {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    workers: usize,
    /// Workers that have not been woken since they ran out of work.
    idle: usize,
    /// For each worker that was woken but is not running yet, the work for which a simulated clock waits. A job that
    /// waits for a busy worker does not hold up time, because that worker's time has to pass first.
    woken: Vec<Option<Work>>,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Queue {
    /// An empty queue; `name` is the name of its threads.
    pub(crate) fn new(name: &str) -> Self {
        let shared =
            Shared { name: name.to_owned(), state: Mutex::default(), work: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Parts of requests waiting for a worker.
    pub(crate) fn len(&self) -> usize {
        self.shared.state.lock().jobs.len()
    }

    /// Runs `job` on a worker, or here if there is none and none can be started.
    fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock();
        if state.idle > 0 {
            state.idle -= 1;
            state.woken.push(part_of_work());
            self.shared.work.notify_one();
        } else if state.workers < WORKERS_MAX && self.start_worker().is_ok() {
            state.workers += 1;
        } else if state.workers == 0 {
            drop(state);
            return job();
        }
        state.jobs.push_back(job);
    }

    fn start_worker(&self) -> io::Result<()> {
        let (shared, work) = (Arc::clone(&self.shared), part_of_work());
        let worker = std::thread::Builder::new().name(shared.name.clone());
        worker.spawn(move || shared.serve(work)).map(drop)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn serve(&self, work: Option<Work>) {
        let mut working = work.map(Work::begin);
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                // The thread that waits for the last job was woken, and counts as working.
                drop(working);
                state.idle += 1;
                let work = loop {
                    self.work.wait(&mut state);
                    if let Some(work) = state.woken.pop() {
                        break work;
                    }
                    if state.closed {
                        return;
                    }
                };
                working = work.map(Work::begin);
            }
        }
    }
}

/// Jobs of one request that have not ended.
#[derive(Default)]
struct Latch {
    pending: Mutex<usize>,
    ended: Condvar,
}

/// Counts one job of a latch; the job has ended when this is dropped, whether it ran or not.
struct Pending(Arc<Latch>);

impl Pending {
    fn new(latch: &Arc<Latch>) -> Self {
        *latch.pending.lock() += 1;
        Self(Arc::clone(latch))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut pending = self.0.pending.lock();
        *pending -= 1;
        if *pending == 0 {
            self.0.ended.notify_one();
        }
    }
}

/// Waits for all jobs of a latch on drop, and so also if the caller's own part panics.
struct WaitForAll(Arc<Latch>);

impl Drop for WaitForAll {
    fn drop(&mut self) {
        let mut pending = self.0.pending.lock();
        while *pending > 0 {
            self.0.ended.wait(&mut pending);
        }
    }
}

/// Runs `work` on all parts concurrently: the first in the caller's thread, the others on their queues. Returns when
/// all have ended; results are in the order of `parts`.
pub(crate) fn scatter<P, R, F>(parts: Vec<(&Queue, P)>, work: F) -> Vec<io::Result<R>>
where
    P: Send,
    R: Send,
    F: Fn(P) -> io::Result<R> + Sync,
{
    let mut results: Vec<_> = parts.iter().map(|_| Err(dropped())).collect();
    {
        let all = WaitForAll(Arc::default());
        let mut pairs = parts.into_iter().zip(&mut results);
        let own = pairs.next();
        for ((queue, part), result) in pairs {
            let (pending, work) = (Pending::new(&all.0), &work);
            let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
                let pending = pending;
                *result = catch_panic(|| work(part));
                drop(pending);
            });
            // SAFETY: only the lifetime changes. The job borrows `work`, `results` and what the part borrows; `all` is
            // dropped before any of them and waits until the job has run or was dropped, because `pending` is inside
            // the job and its drop is the job's last action.
            queue.submit(unsafe { mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) });
        }
        if let Some(((_, part), result)) = own {
            *result = work(part);
        }
    }
    results
}

/// The error of a job that was dropped before it ran.
fn dropped() -> io::Error {
    io::Error::other("the server's queue ended before the request")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use halocline_os::clock::{Clock, Team};

    #[test]
    fn parts_run_at_the_same_time() {
        let queues: Vec<Queue> = (0..4).map(|_| Queue::new("test")).collect();
        let barrier = Barrier::new(4);
        let parts = queues.iter().enumerate().map(|(at, queue)| (queue, at)).collect();
        let results = scatter(parts, |at| {
            barrier.wait();
            Ok(at * 10)
        });
        let values: Vec<usize> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(values, [0, 10, 20, 30]);
    }

    #[test]
    fn waits_for_all_parts_and_keeps_their_order_on_errors() {
        let queue = Queue::new("test");
        let ended = AtomicUsize::new(0);
        let parts = (0..20).map(|at| (&queue, at)).collect();
        let results = scatter(parts, |at: i32| {
            std::thread::yield_now();
            ended.fetch_add(1, Ordering::SeqCst);
            if at % 2 == 1 { Err(io::Error::from_raw_os_error(at)) } else { Ok(at) }
        });
        assert_eq!(ended.load(Ordering::SeqCst), 20);
        for (at, result) in (0..).zip(results) {
            match result {
                Ok(value) => assert_eq!(value, at),
                Err(error) => assert_eq!(error.raw_os_error(), Some(at)),
            }
        }
    }

    #[test]
    fn a_panic_on_a_worker_is_an_error_and_the_queue_lives_on() {
        let queue = Queue::new("test");
        let results = scatter(vec![(&queue, 0), (&queue, 1)], |at| {
            assert_ne!(at, 1, "the panic this test wants");
            Ok(at)
        });
        assert!(results[0].is_ok() && results[1].is_err());
        assert!(scatter(vec![(&queue, 0), (&queue, 2)], Ok).iter().all(Result::is_ok));
    }

    #[test]
    fn many_callers_share_one_queue() {
        let queue = Queue::new("test");
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let parts = (0..4).map(|at| (&queue, at)).collect();
                        assert!(scatter(parts, Ok).iter().all(Result::is_ok));
                    }
                });
            }
        });
    }

    /// Regression: a worker that was woken for a part which a busy one took worked on the next part without informing
    /// the clock.
    #[test]
    fn parts_begin_in_the_moment_in_which_they_are_queued() {
        const ROUNDS: u32 = 100;
        let clock = Clock::simulated();
        let begun = clock.instant();
        let queues: Vec<Queue> = (0..3).map(|_| Queue::new("test")).collect();
        let (team, works) = Team::new(&clock, 3);
        std::thread::scope(|scope| {
            for (caller, work) in works.into_iter().enumerate() {
                let (queues, clock, team) = (&queues, &clock, &team);
                scope.spawn(move || {
                    let working = work.begin();
                    for round in 0..ROUNDS {
                        // Callers start at different times.
                        clock.sleep(Duration::from_micros(caller as u64));
                        let parts = queues.iter().map(|queue| (queue, ())).collect();
                        let at = clock.instant();
                        let sleep = |()| {
                            clock.sleep(Duration::from_millis(1));
                            Ok(clock.elapsed(at))
                        };
                        for took in scatter(parts, sleep) {
                            assert_eq!(took.unwrap(), Duration::from_millis(1), "round {round}");
                        }
                    }
                    team.leave(working);
                });
            }
        });
        assert_eq!(clock.elapsed(begun), ROUNDS * Duration::from_micros(1002));
    }
}
