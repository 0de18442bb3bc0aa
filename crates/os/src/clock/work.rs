//! Registered work, during which a simulated time stands still.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Clock;

thread_local! {
    /// The simulated clock of the work that the calling thread does.
    static WORKS_BY: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Work that another thread does for the calling one, which the simulated clock must wait for; `None` where the calling
/// thread does not work by a simulated clock.
pub fn part_of_work() -> Option<Work> {
    WORKS_BY.with_borrow(|clock| clock.as_ref().map(Clock::work))
}

/// Work that a simulated clock waits for.
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

    /// The calling thread does it.
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

/// Parallel workers that another thread joins. When the last one ends, the thread that joins counts as running at once,
/// even before it is scheduled: no simulated time passes between.
#[derive(Debug)]
pub struct Team {
    clock: Clock,
    left: AtomicUsize,
    after: Mutex<Option<Work>>,
}

impl Team {
    /// A team of `size` threads, and the work of each: all are counted before one of them waits.
    pub fn new(clock: &Clock, size: usize) -> (Self, Vec<Work>) {
        let (left, after) = (AtomicUsize::new(size), Mutex::default());
        let works = (0..size).map(|_| clock.work()).collect();
        (Self { clock: clock.clone(), left, after }, works)
    }

    /// One thread has done its `work`.
    pub fn leave(&self, work: Work) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            *self.after.lock() = Some(self.clock.work());
        }
        drop(work);
    }
}
