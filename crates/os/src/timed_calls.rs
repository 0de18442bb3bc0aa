//! Calls that may block indefinitely: in a directory whose device or server hangs, or about a process whose owner can
//! delay them. Each runs in its own thread, which is abandoned after a timeout; only few run at once.
//!
//! What must hold: the caller continues, whatever is called.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::catch_panic::caught;
use crate::error::Result;

/// Limit of simultaneous calls; further ones count as unanswered.
const CALLS_MAX: usize = 16;
/// How long a call may take before it is checked whether what it depends on responds.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// The calls of one owner that have not ended.
#[derive(Debug, Default)]
pub struct TimedCalls(Arc<AtomicUsize>);

impl TimedCalls {
    /// The result of `call` within `timeout`; `None` if it takes longer, or while too many others are pending.
    pub fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let lasting = Lasting::one_more(&self.0)?;
        let (found, is_found) = mpsc::sync_channel(1);
        let call = move || {
            let seen = call();
            drop(lasting);
            // The caller may have given up.
            let _ = found.send(seen);
        };
        thread::Builder::new().name("timed call".into()).spawn(call).ok()?;
        is_found.recv_timeout(timeout).ok().flatten()
    }

    /// The result of `act`, however long it takes, as long as `answers` shows that everything it depends on responds.
    ///
    /// # Errors
    /// That of `answers`, in which case `act` continues on its own; or that `act` panicked.
    pub fn while_answered<T: Send + 'static>(
        &self,
        answers: impl Fn() -> Result<()>,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let Some(lasting) = Lasting::one_more(&self.0) else {
            answers()?;
            return Ok(act());
        };
        let (done, is_done) = mpsc::sync_channel(1);
        let act = move || {
            let ended = caught(act);
            drop(lasting);
            let _ = done.send(ended);
        };
        thread::Builder::new().name("timed call".into()).spawn(act)?;
        loop {
            match is_done.recv_timeout(WAIT_LIMIT) {
                Ok(ended) => return Ok(ended?),
                Err(RecvTimeoutError::Timeout) => answers()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
                }
            }
        }
    }
}

/// A pending call.
struct Lasting(Arc<AtomicUsize>);

impl Lasting {
    fn one_more(count: &Arc<AtomicUsize>) -> Option<Self> {
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < CALLS_MAX).then_some(count + 1)
        });
        counted.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Calls that stay pending until the sender is dropped.
    fn lasting(calls: &TimedCalls) -> mpsc::Sender<()> {
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..CALLS_MAX {
            let ended = Arc::clone(&ended);
            let lasting = move || ended.lock().recv().ok().map(|()| 1);
            assert_eq!(calls.within(Duration::from_millis(20), lasting), None);
        }
        end
    }

    /// Regression: one process that could not be examined stopped the tier for everyone.
    #[test]
    fn calls_that_last_for_ever_are_few_and_keep_nobody() {
        let calls = TimedCalls::default();
        let end = lasting(&calls);
        assert_eq!(calls.within(Duration::MAX, || Some(2)), None, "no more of them");
        drop(end);
        while calls.0.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(calls.within(Duration::from_mins(1), || Some(3)), Some(3));
    }

    #[test]
    fn what_needs_something_that_does_not_answer_is_waited_for_no_longer() {
        let calls = TimedCalls::default();
        let silent = || Err(rustix::io::Errno::TIMEDOUT.into());
        let (end, ended) = mpsc::channel::<()>();
        let waiting = calls.while_answered(silent, move || ended.recv().is_ok());
        assert_eq!(waiting.unwrap_err().errno(), libc::ETIMEDOUT);
        drop(end);
        assert_eq!(calls.while_answered(|| Ok(()), || 7).unwrap(), 7);
        let panicked: Result<()> = calls.while_answered(|| Ok(()), || panic!("on purpose"));
        assert!(panicked.unwrap_err().to_string().contains("on purpose"));
    }

    #[test]
    fn long_work_goes_on_while_many_others_last() {
        let calls = TimedCalls::default();
        let end = lasting(&calls);
        assert_eq!(calls.while_answered(|| Ok(()), || 7).unwrap(), 7);
        let silent = || Err(rustix::io::Errno::TIMEDOUT.into());
        calls.while_answered(silent, || 7).unwrap_err();
        drop(end);
    }
}
