//! Answers about tiers whose directory may hang: its device, or the server of a network file system.
//!
//! What must hold: callers get an answer in time, and are told which directory hangs. Taking the state of a tier may
//! wait for a look at it, or for a lock held by a thread that looks.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::foundation::Foundation;
use super::tier_dir::TierDir;
use super::tiers::Tiers;
use halocline_os::error::Result;
use halocline_os::timed_calls::TimedCalls;

/// How long it may take to report the state of tiers without a look at them.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks the tiers, each of them in a thread of its own.
#[derive(Debug)]
pub(super) struct Liveness {
    tiers: Arc<Tiers>,
    calls: TimedCalls,
}

impl Liveness {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation) -> Self {
        Self { tiers: base.tiers.clone(), calls: TimedCalls::default() }
    }

    /// Whether all tiers answer.
    ///
    /// # Errors
    /// `ETIMEDOUT`, naming the first one that does not answer.
    fn check_answers(&self) -> Result<()> {
        thread::scope(|scope| {
            let ask = |tier_dir| scope.spawn(move || TierDir::check_answers(tier_dir));
            let asked: Vec<_> = self.tiers.dirs().iter().map(ask).collect();
            // Asking a tier does not panic by itself.
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        })
    }

    /// The result of `act`, however long it takes, while all tiers answer.
    ///
    /// # Errors
    /// Those of `act`, and `ETIMEDOUT` if a tier does not answer; `act` then continues by itself.
    pub(super) fn while_alive<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.calls.while_answered(|| self.check_answers(), act)?
    }

    /// The result of `look`, which does not touch the tiers; `None` if that takes too long.
    pub(super) fn remembered<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.calls.within(MEMORY_TIMEOUT, look)
    }
}
