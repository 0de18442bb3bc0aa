//! Binds threads to one processor.
//!
//! A program that creates or removes names sends two requests at once (for the file that it closed, and for the next
//! name), and each wakes a thread. If threads may wake on any idle processor, they and their program change processors
//! at each request, and each change costs an interrupt; a context switch on the program's own processor costs a
//! fraction of that.

use rustix::io::{Errno, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to `processor`. If the thread may not run there, nothing changes: the mount may have been
/// started with a restricted set of processors, or the machine does not have this one.
pub(super) fn stay_on(processor: u16) {
    if let Err(error) = bind(processor) {
        tracing::debug!(%error, processor, "a thread stays free to change processors");
    }
}

/// Calls `act` on `processor`, and lets the thread change processors again as before.
///
/// # Errors
/// If the thread may not run there; then `act` was not called.
pub(super) fn on<T>(processor: u16, act: impl FnOnce() -> T) -> Result<T> {
    let before = sched_getaffinity(None)?;
    bind(processor)?;
    let done = act();
    sched_setaffinity(None, &before)?;
    Ok(done)
}

fn bind(processor: u16) -> Result<()> {
    let processor = usize::from(processor);
    let allowed = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return Err(Errno::INVAL);
    }
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` in a thread of its own, so that only that thread is bound.
    fn in_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
    }

    #[test]
    fn a_thread_stays_on_a_processor_that_it_may_use() {
        in_a_thread(|| {
            let one = *allowed().last().unwrap();
            stay_on(u16::try_from(one).unwrap());
            assert_eq!(allowed(), [one]);
        });
    }

    #[test]
    fn a_thread_is_on_a_processor_for_a_moment() {
        in_a_thread(|| {
            let all = allowed();
            let one = *all.last().unwrap();
            assert_eq!(on(u16::try_from(one).unwrap(), allowed), Ok(vec![one]));
            assert_eq!(allowed(), all);
            assert!(on(4000, || unreachable!("there is no such processor")).is_err());
        });
    }

    #[test]
    fn processors_that_it_may_not_use_leave_it_where_it_is() {
        in_a_thread(|| {
            let all = allowed();
            let one = all[0];
            bind(u16::try_from(one).unwrap()).unwrap();
            for other in all.into_iter().filter(|processor| *processor != one).chain([1023, 4000]) {
                stay_on(u16::try_from(other).unwrap());
                assert_eq!(allowed(), [one], "told to stay on {other}");
            }
        });
    }
}
