//! Registered work, during which simulated time stands still.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Clock;

thread_local! {
    /// The simulated clock of the calling thread's work.
    static WORKS_BY: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Work that another thread does for the calling one, and for which the simulated clock must wait; `None` if the
/// calling thread does no work registered with a simulated clock.
pub fn part_of_work() -> Option<Work> {
    WORKS_BY.with_borrow(|clock| clock.as_ref().map(Clock::work))
}

/// Work for which a simulated clock waits.
#[derive(Debug)]
#[must_use = "the work has ended when it is dropped"]
pub struct Work {
    clock: Clock,
    began: bool,
}

impl Work {
    pub(super) fn new(clock: Clock) -> Self {
        if let Some(simulated) = &clock.0 {
            simulated.add_work();
        }
        Self { clock, began: false }
    }

    /// Begins the work, in the calling thread.
    #[must_use = "the work has ended when it is dropped"]
    pub fn begin(mut self) -> Self {
        if let Some(simulated) = &self.clock.0 {
            simulated.begin_work();
            WORKS_BY.set(Some(self.clock.clone()));
            self.began = true;
        }
        self
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(simulated) = &self.clock.0
            && simulated.end_work(self.began)
        {
            WORKS_BY.set(None);
        }
    }
}

/// Parallel workers that another thread joins. When the last one ends, the joining thread counts as running at once,
/// even before it is scheduled: no simulated time passes in between.
#[derive(Debug)]
pub struct Team {
    clock: Clock,
    left: AtomicUsize,
    after: Mutex<Option<Work>>,
}

impl Team {
    /// A team of `size` threads, and the work of each; all are counted before any of them waits.
    pub fn new(clock: &Clock, size: usize) -> (Self, Vec<Work>) {
        let (left, after) = (AtomicUsize::new(size), Mutex::default());
        let works = (0..size).map(|_| clock.work()).collect();
        (Self { clock: clock.clone(), left, after }, works)
    }

    /// A thread has finished its `work`.
    pub fn leave(&self, work: Work) {
        let left = self.left.fetch_sub(1, Ordering::AcqRel);
        assert!(left > 0, "more threads leave a team than it has");
        if left == 1 {
            *self.after.lock() = Some(self.clock.work());
        }
        drop(work);
    }
}
