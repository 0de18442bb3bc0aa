//! Look-ups that may block indefinitely: of a directory whose device or server hangs, of a process whose owner can make
//! them last. Each runs in its own thread, which is abandoned after a timeout; few run at once.
//!
//! What must hold: the caller goes on, whatever is looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::catch_panic::caught;
use crate::error::Result;

/// At most this many at once; further look-ups count as unanswered.
const LOOKS_MAX: usize = 16;
/// How long a call may take before what it depends on is asked whether it answers.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// The look-ups of one caller that have not ended.
#[derive(Debug, Default)]
pub struct Looks(Arc<AtomicUsize>);

impl Looks {
    /// What `look` finds within `timeout`; `None` after that, and while too many others last.
    pub fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        look: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let lasting = Lasting::one_more(&self.0)?;
        let (found, is_found) = mpsc::sync_channel(1);
        let look = move || {
            let seen = look();
            drop(lasting);
            // The caller may have gone on.
            let _ = found.send(seen);
        };
        thread::Builder::new().name("look".into()).spawn(look).ok()?;
        is_found.recv_timeout(timeout).ok().flatten()
    }

    /// What `act` returns, however long it takes while `answers` says that all it needs does answer.
    ///
    /// # Errors
    /// That of `answers`; `act` goes on by itself then. And that it panicked.
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
        thread::Builder::new().name("look".into()).spawn(act)?;
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

/// A look-up that has not ended.
struct Lasting(Arc<AtomicUsize>);

impl Lasting {
    fn one_more(count: &Arc<AtomicUsize>) -> Option<Self> {
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < LOOKS_MAX).then_some(count + 1)
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

    /// Looks that last until the sender is dropped.
    fn lasting(looks: &Looks) -> mpsc::Sender<()> {
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..LOOKS_MAX {
            let ended = Arc::clone(&ended);
            let lasting = move || ended.lock().recv().ok().map(|()| 1);
            assert_eq!(looks.within(Duration::from_millis(20), lasting), None);
        }
        end
    }

    /// One process that could not be looked at stopped the tier for all.
    #[test]
    fn looks_that_last_for_ever_are_few_and_keep_nobody() {
        let looks = Looks::default();
        let end = lasting(&looks);
        assert_eq!(looks.within(Duration::MAX, || Some(2)), None, "no more of them");
        drop(end);
        while looks.0.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(looks.within(Duration::from_mins(1), || Some(3)), Some(3));
    }

    #[test]
    fn what_needs_something_that_does_not_answer_is_waited_for_no_longer() {
        let looks = Looks::default();
        let silent = || Err(rustix::io::Errno::TIMEDOUT.into());
        let (end, ended) = mpsc::channel::<()>();
        let waiting = looks.while_answered(silent, move || ended.recv().is_ok());
        assert_eq!(waiting.unwrap_err().errno(), libc::ETIMEDOUT);
        drop(end);
        assert_eq!(looks.while_answered(|| Ok(()), || 7).unwrap(), 7);
        let panicked: Result<()> = looks.while_answered(|| Ok(()), || panic!("on purpose"));
        assert!(panicked.unwrap_err().to_string().contains("on purpose"));
    }

    #[test]
    fn long_work_goes_on_while_many_others_last() {
        let looks = Looks::default();
        let end = lasting(&looks);
        assert_eq!(looks.while_answered(|| Ok(()), || 7).unwrap(), 7);
        let silent = || Err(rustix::io::Errno::TIMEDOUT.into());
        looks.while_answered(silent, || 7).unwrap_err();
        drop(end);
    }
}
