//! Requests that need a token: granted immediately if the node holds it; otherwise they wait for the store and for
//! other nodes.

use std::time::Duration;

use halocline_cache::coherence::{Copies, FileTokens, Grant, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_os::error::{Error, Result};
use halocline_os::served_program;
use parking_lot::MutexGuard;
use rustix::io::Errno;

use super::copying;
use super::{Attempt, FIRST_PAUSE, File, LastWait, State, filled};
use crate::counters::add;

/// How long a request waits for others of its node to finish with the file, before it looks around.
const TURN_LIMIT: Duration = Duration::from_secs(1);

impl File {
    /// Waits for a token, queued in the store meanwhile.
    fn wait(&self, want: Want) -> Result<Grant> {
        let _active = Active::new(self, (queued_as(want), want.range));
        self.wait_actively(want)
    }

    fn wait_actively(&self, want: Want) -> Result<Grant> {
        let clock = &self.shared.options.wait_clock;
        let wait_limit = self.shared.options.wait_limit;
        let began = clock.instant();
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        let mut waited_for = None;
        let waits_for = loop {
            let seen = self.seen();
            // A thread that waits for this one's turn must see soon that its program was killed.
            let deadline = clock.instant() + TURN_LIMIT;
            match self.attempt(want, attempts, deadline.min(began + wait_limit))? {
                Attempt::Granted(grant) => {
                    if attempts > 0 {
                        self.note_wait(clock.elapsed(began), waited_for);
                    }
                    return Ok(grant);
                }
                Attempt::Waits(what) if clock.elapsed(began) >= wait_limit => {
                    break what;
                }
                Attempt::Waits(what) => waited_for = Some(what),
                Attempt::Again if clock.elapsed(began) < wait_limit => {
                    attempts += 1;
                    continue;
                }
                Attempt::Again => break "what this node had to give up first".to_owned(),
            }
            if self.shared.is_stopped() {
                break "this mount to end".to_owned();
            }
            if served_program::is_killed() {
                self.note_wait(clock.elapsed(began), waited_for);
                return Err(Errno::INTR.into());
            }
            attempts += 1;
            self.wait_for_change(want.range, seen, pause);
            pause = (pause * 2).min(self.shared.options.poll);
        };
        self.note_wait(clock.elapsed(began), Some(waits_for.clone()));
        // Its entry in the queue goes when a request behind it sends a message.
        Err(Error::Cluster {
            what: format!("waited {} s for {waits_for}", wait_limit.as_secs()),
            remedy: "see `halocline cluster nodes`, and `halocline status` on that node".to_owned(),
        })
    }

    /// How many messages have come, and how much was found in the store.
    fn seen(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.messages, state.polls.found)
    }

    /// Waits until a message has come or something was found in the store since `seen`, or until `range` is no longer
    /// being given up, but at most until the next poll of the store is due, and at least `pause` then, or until its program was
    /// killed. Each permit that ends wakes this thread too, because others wait for that.
    fn wait_for_change(&self, range: ByteRange, seen: (u64, u64), pause: Duration) {
        let clock = &self.shared.options.wait_clock;
        let earliest = clock.instant() + pause;
        let mut state = self.state.lock();
        let was_closed = state.pieces.is_closed(range);
        let is_unchanged = |state: &State| {
            (state.messages, state.polls.found) == seen
                && (!was_closed || state.pieces.is_closed(range))
                && !self.shared.is_stopped()
        };
        while is_unchanged(&state) {
            let due = state.polls.due;
            let until = due.map_or(earliest, |due| due.max(earliest));
            let goes_on = |state: &mut State| is_unchanged(state) && state.polls.due == due;
            if clock.wait_while(&self.changed, &mut state, goes_on, until) {
                return;
            }
            // Another request polled the store in place of this one, and may go on doing so.
            if MutexGuard::unlocked(&mut state, served_program::is_killed) {
                return;
            }
        }
    }

    fn note_wait(&self, lasted: Duration, on: Option<String>) {
        self.shared.counters.note_wait(lasted);
        let (at, on) = (
            self.shared.options.clock.boot_instant(),
            on.unwrap_or_else(|| "the store".to_owned()),
        );
        self.state.lock().last_wait = Some(LastWait { at, lasted, on });
    }
}

/// A request that stands in the queue: its place there is in vain once this is dropped.
struct Active<'f> {
    file: &'f File,
    stands_for: (Direction, ByteRange),
}

impl<'f> Active<'f> {
    fn new(file: &'f File, stands_for: (Direction, ByteRange)) -> Self {
        file.state.lock().active.push(stands_for);
        Self { file, stands_for }
    }
}

impl Drop for Active<'_> {
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
        let granted = self.wait(want);
        // A program that was killed was refused nothing.
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
        self.explained(want)
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
