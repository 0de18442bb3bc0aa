//! Calls that may block indefinitely: in a directory whose device or server hangs, or about a process whose owner can
//! delay them. They run on threads of their own, of which each owner has few: a caller that has waited long enough goes
//! on, and leaves its call and the thread behind.
//!
//! What must hold: a caller goes on after its time, whatever is called, and what hangs never takes more than the owner's
//! threads.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::catch_panic::{Panicked, caught};
use crate::error::Result;

/// Threads of an owner that does not say how many.
const THREADS_MAX: usize = 16;
/// How long a call may take before it is checked whether what it depends on responds.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// What a thread does, and then how the caller gets the result: the thread is free again before the caller goes on.
type Call = Box<dyn FnOnce() -> Deliver + Send>;
type Deliver = Box<dyn FnOnce() + Send>;

/// The calls of one owner. Threads whose calls hang are left behind when it is dropped, the others end.
#[derive(Debug)]
pub struct TimedCalls {
    name: &'static str,
    threads_max: usize,
    waiting_max: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Calls that no thread has begun yet.
    waiting: VecDeque<Call>,
    threads: usize,
    /// Threads that wait for a call, or will in a moment.
    idle: usize,
    ended: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Default for TimedCalls {
    fn default() -> Self {
        Self::new("timed call", THREADS_MAX, 0)
    }
}

impl TimedCalls {
    /// At most `threads_max` threads, which are started when they are needed, and as many calls that wait for one as
    /// `waiting_max` says.
    #[must_use]
    pub fn new(name: &'static str, threads_max: usize, waiting_max: usize) -> Self {
        Self { name, threads_max, waiting_max, shared: Arc::default() }
    }

    /// What `call` returns within `timeout`; `None` after that, if it panics, and where too many others are pending.
    pub fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (call, result) = delivered(call);
        self.begin(call).ok()?;
        result.recv_timeout(timeout).ok()?.ok()
    }

    /// What `call` returns, however long it takes, as long as `answers` shows that everything it depends on responds.
    ///
    /// # Errors
    /// That of `answers`, in which case `call` continues on its own; or that `call` panicked.
    pub fn while_answered<T: Send + 'static>(
        &self,
        answers: impl Fn() -> Result<()>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (call, result) = delivered(call);
        // Where too many others are pending, the caller's own thread does it.
        if let Err(call) = self.begin(call) {
            answers()?;
            call()();
        }
        loop {
            match result.recv_timeout(WAIT_LIMIT) {
                Ok(ended) => return Ok(ended?),
                Err(RecvTimeoutError::Timeout) => answers()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                }
            }
        }
    }

    /// Hands the call to a thread, or returns it if none may take it.
    fn begin(&self, call: Call) -> std::result::Result<(), Call> {
        let state = &mut *self.shared.state.lock();
        // Each call that waits will be begun by one of the idle threads, if there are so many.
        let is_free = state.waiting.len() < state.idle;
        let is_started = !is_free && state.threads < self.threads_max && self.start().is_ok();
        // It will take a call in a moment, as those do that are idle.
        state.threads += usize::from(is_started);
        state.idle += usize::from(is_started);
        let may_wait =
            state.threads > 0 && state.waiting.len() < state.idle.saturating_add(self.waiting_max);
        if !is_free && !is_started && !may_wait {
            return Err(call);
        }
        state.waiting.push_back(call);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn start(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.work()).map(drop)
    }
}

impl Drop for TimedCalls {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// The body of a thread.
    fn work(&self) {
        let mut state = self.state.lock();
        // It has counted as idle since it was started.
        state.idle -= 1;
        loop {
            if let Some(call) = state.waiting.pop_front() {
                let deliver = MutexGuard::unlocked(&mut state, call);
                state.idle += 1;
                MutexGuard::unlocked(&mut state, deliver);
                state.idle -= 1;
            } else if state.ended {
                return;
            } else {
                state.idle += 1;
                self.changed.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

/// A call, and where its result arrives.
fn delivered<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> (Call, Receiver<std::result::Result<T, Panicked>>) {
    let (sender, result) = mpsc::sync_channel(1);
    let call = move || -> Deliver {
        let returned = caught(call);
        Box::new(move || {
            // The caller may have gone on.
            let _ = sender.send(returned);
        })
    };
    (Box::new(call), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    /// Begins as many calls as given, which stay pending until the sender is dropped; returns how many were refused,
    /// too.
    fn pending(calls: &TimedCalls, count: usize) -> (mpsc::Sender<()>, usize) {
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let is_refused = |_: &usize| {
            let ended = Arc::clone(&ended);
            calls.begin(delivered(move || ended.lock().recv().is_ok()).0).is_err()
        };
        (end, (0..count).filter(is_refused).count())
    }

    /// Until the threads have seen that nobody waits for what hung.
    fn wait_until_free(calls: &TimedCalls) {
        while calls.within(LONG, || 8) != Some(8) {
            thread::yield_now();
        }
    }

    /// Regression: one process that could not be examined stopped the tier for everyone.
    #[test]
    fn calls_that_hang_are_few_and_keep_nobody() {
        let calls = TimedCalls::default();
        let (end, refused) = pending(&calls, THREADS_MAX);
        assert_eq!(refused, 0);
        assert_eq!(calls.within(Duration::MAX, || 2), None, "no more of them");
        drop(end);
        wait_until_free(&calls);
        assert_eq!(calls.shared.state.lock().threads, THREADS_MAX);
    }

    /// Regression: calls whose threads had been started, but did not run yet, took the places of those that may wait.
    #[test]
    fn some_wait_for_a_thread_where_the_owner_lets_them() {
        for round in 0..100 {
            let calls = TimedCalls::new("test", 2, 2);
            let (end, refused) = pending(&calls, 6);
            assert_eq!((refused, calls.shared.state.lock().threads), (2, 2), "round {round}");
            drop(end);
            wait_until_free(&calls);
        }
    }

    /// A result that came before its thread was free would have cost another thread, or a refusal.
    #[test]
    fn one_call_after_another_needs_one_thread() {
        let calls = TimedCalls::new("test", 1, 0);
        for number in 0..1000 {
            assert_eq!(calls.within(LONG, move || number), Some(number));
        }
        assert_eq!(calls.within(LONG, || -> u32 { panic!("on purpose") }), None);
        assert_eq!(calls.within(LONG, || 7), Some(7), "the thread lives on");
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
    fn long_work_goes_on_while_many_others_are_pending() {
        let calls = TimedCalls::default();
        let (end, refused) = pending(&calls, THREADS_MAX);
        assert_eq!(refused, 0);
        assert_eq!(calls.while_answered(|| Ok(()), || 7).unwrap(), 7);
        let silent = || Err(rustix::io::Errno::TIMEDOUT.into());
        calls.while_answered(silent, || 7).unwrap_err();
        drop(end);
    }

    #[test]
    fn threads_end_with_their_owner() {
        let calls = TimedCalls::default();
        assert_eq!(calls.within(LONG, || 7), Some(7));
        let shared = Arc::downgrade(&calls.shared);
        drop(calls);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
