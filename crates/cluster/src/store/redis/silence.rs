//! Leaves a server alone for a while after it did not answer: each request to it would wait for the whole time limit,
//! and a thread that waits for one master does nothing meanwhile for the files of the others.

use std::time::{Duration, Instant};

use halocline_os::clock::Clock;
use parking_lot::Mutex;

/// For how long a silent server is left alone; then one request at a time finds out whether it answers.
const REST: Duration = Duration::from_secs(2);
/// How long that one request may take: longer than the limits of connecting and of an answer together.
const TRIED: Duration = Duration::from_secs(8);

/// Until when a server is left alone, if it is.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<Option<Instant>>);

impl Silence {
    /// Notes whether a request was left without an answer.
    pub(super) fn note(&self, is_silent: bool) {
        *self.0.lock() = is_silent.then(|| Clock::MACHINE.instant() + REST);
    }

    /// Whether the server may be asked now: by anybody if it answered last, otherwise by one request after each rest.
    pub(super) fn may_ask(&self) -> bool {
        self.may_ask_at(Clock::MACHINE.instant())
    }

    fn may_ask_at(&self, now: Instant) -> bool {
        let mut until = self.0.lock();
        match *until {
            Some(at) if now < at => false,
            // Others wait for this request's answer; it may never come, for example if the thread panics.
            Some(_) => {
                *until = Some(now + TRIED);
                true
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_asks_a_server_that_did_not_answer() {
        let (silence, now) = (Silence::default(), Clock::MACHINE.instant());
        assert!(silence.may_ask_at(now) && silence.may_ask_at(now));
        silence.note(true);
        assert!(!silence.may_ask_at(now));
        let later = now + 1000 * REST;
        assert!(silence.may_ask_at(later) && !silence.may_ask_at(later), "one finds out");
        assert!(silence.may_ask_at(later + TRIED), "its answer never came");
        silence.note(false);
        assert!(silence.may_ask_at(now) && silence.may_ask_at(now));
    }
}
