//! Requests that need a token: granted immediately if the node holds it; otherwise they wait for the store and for
//! other nodes.

use std::time::{Duration, Instant};

use halocline_cache::coherence::{Copies, FileTokens, Grant, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_os::error::{Error, Result};
use halocline_os::served_program;
use parking_lot::MutexGuard;
use rustix::io::Errno;

use super::asking::Asking;
use super::{Attempt, FIRST_PAUSE, File, LastWait, State, filled};
use super::{copying, explaining};
use crate::counters::add;

/// How long a request waits for other requests of its node to finish with the file, before it checks again.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// A request that waits for a token and is queued for it. Its place in the queue is void once this is dropped.
struct Waiting<'f> {
    file: &'f File,
    want: Want,
    /// Its entry in the queue.
    stands_for: (Direction, ByteRange),
    began: Instant,
    /// Attempts so far.
    attempts: u32,
    /// What the last attempt would have had to wait for.
    waits_for: Option<String>,
}

impl<'f> Waiting<'f> {
    fn new(file: &'f File, want: Want) -> Self {
        let stands_for = (queued_as(want), want.range);
        file.state.lock().active.push(stands_for);
        let began = file.shared.options.wait_clock.instant();
        Self { file, want, stands_for, began, attempts: 0, waits_for: None }
    }

    /// Waits for the token.
    fn until_granted(mut self) -> Result<Grant> {
        let shared = &self.file.shared;
        let clock = &shared.options.wait_clock;
        let wait_limit = shared.options.wait_limit;
        let mut pause = FIRST_PAUSE;
        let waits_for = loop {
            let seen = self.seen();
            // While it waits its turn behind another request, it must notice soon if its program was killed.
            let deadline = clock.instant() + TURN_LIMIT;
            let asking = Asking { file: self.file, want: self.want, attempts: self.attempts };
            match asking.attempt(deadline.min(self.began + wait_limit))? {
                Attempt::Granted(grant) => {
                    if self.attempts > 0 {
                        self.note();
                    }
                    return Ok(grant);
                }
                Attempt::Waits(what) if clock.elapsed(self.began) >= wait_limit => {
                    break what;
                }
                Attempt::Waits(what) => self.waits_for = Some(what),
                Attempt::Again if clock.elapsed(self.began) < wait_limit => {
                    self.attempts += 1;
                    continue;
                }
                Attempt::Again => break "what this node had to give up first".to_owned(),
            }
            if shared.is_stopped() {
                break "this mount to end".to_owned();
            }
            if served_program::is_killed() {
                self.note();
                return Err(Errno::INTR.into());
            }
            self.attempts += 1;
            self.wait_for_change(seen, pause);
            pause = (pause * 2).min(shared.options.poll);
        };
        let what = format!("waited {} s for {waits_for}", wait_limit.as_secs());
        self.waits_for = Some(waits_for);
        self.note();
        // Its entry leaves the queue when a request behind it sends a message.
        let remedy =
            "see `halocline cluster nodes`, and `halocline status` on that node".to_owned();
        Err(Error::Cluster { what, remedy })
    }

    /// The number of messages received, and of values found in the store.
    fn seen(&self) -> (u64, u64) {
        let state = self.file.state.lock();
        (state.messages, state.polls.found)
    }

    /// Waits until a message arrives, a poll finds a new value (both compared with `seen`), or the range is no longer
    /// being given up. Stops when the next poll of the store is due, but not before `pause` has passed, and when the
    /// program was killed. Each permit that ends wakes this thread, too, because other waits depend on it.
    fn wait_for_change(&self, seen: (u64, u64), pause: Duration) {
        let (file, range) = (self.file, self.want.range);
        let clock = &file.shared.options.wait_clock;
        let earliest = clock.instant() + pause;
        let mut state = file.state.lock();
        let was_closed = state.pieces.is_closed(range);
        let is_unchanged = |state: &State| {
            (state.messages, state.polls.found) == seen
                && (!was_closed || state.pieces.is_closed(range))
                && !file.shared.is_stopped()
        };
        while is_unchanged(&state) {
            let due = state.polls.due;
            let until = due.map_or(earliest, |due| due.max(earliest));
            let goes_on = |state: &mut State| is_unchanged(state) && state.polls.due == due;
            if clock.wait_while(&file.changed, &mut state, goes_on, until) {
                return;
            }
            // Another request polled the store in place of this one, and may keep doing so.
            if MutexGuard::unlocked(&mut state, served_program::is_killed) {
                return;
            }
        }
    }

    /// Notes that the wait has ended, and what it waited for.
    fn note(&self) {
        let shared = &self.file.shared;
        let lasted = shared.options.wait_clock.elapsed(self.began);
        shared.counters.note_wait(lasted);
        let at = shared.options.clock.boot_instant();
        let on = self.waits_for.clone().unwrap_or_else(|| "the store".to_owned());
        self.file.state.lock().last_wait = Some(LastWait { at, lasted, on });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let active = &mut self.file.state.lock().active;
        if let Some(at) = active.iter().position(|one| *one == self.stands_for) {
            active.swap_remove(at);
        }
    }
}

/// The direction under which a request is queued.
fn queued_as(want: Want) -> Direction {
    if want.alone { Direction::Write } else { want.direction }
}

impl FileTokens for File {
    fn begin(&self, want: Want) -> Result<Grant> {
        let want = filled(want);
        if let Some(grant) = self.permit(want) {
            return Ok(grant);
        }
        let granted = Waiting::new(self, want).until_granted();
        // A killed program was not refused anything.
        if granted.as_ref().is_err_and(|error| error.errno() != Errno::INTR.raw_os_error()) {
            add(&self.shared.counters.refused);
        }
        granted
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.permit(filled(want))
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        if self.state.lock().wanted { None } else { self.permit(filled(want)) }
    }

    fn gives_alone(&self, range: ByteRange) -> bool {
        self.state.lock().pieces.is_alone(range)
    }

    fn explain(&self, want: Want) -> Option<String> {
        explaining::explained(self, want)
    }

    fn copies(&self, range: ByteRange) -> Copies {
        copying::ask_for_copies(self, range)
    }

    fn end(&self, grant: Grant) {
        if self.state.lock().pieces.end(grant) {
            self.changed.notify_all();
        }
    }
}
