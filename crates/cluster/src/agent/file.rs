//! The tokens that this node holds of one file: what is held, used and waited for, under one lock, because a waiting
//! request must notice any change of these. Requests come in through [`waiting`]. [`asking`] requests tokens that the
//! node does not hold from the store, whose values are in [`stored_tokens`]. [`giving`] gives up what others want.

mod asking;
mod copying;
mod explaining;
mod giving;
mod stored_tokens;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_cache::coherence::{Grant, SharedFile, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Held, Mode, Tokens};
use parking_lot::{Condvar, Mutex};

pub(super) use copying::end_unseen;

use super::Shared;
use super::pieces::Pieces;
use crate::store;

use stored_tokens::StoredTokens;

/// The tokens of a file.
pub(super) struct File {
    pub(super) id: SharedFile,
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Notified when a permit that somebody waits for ends, a closed range opens, a message reports a change, or a poll
    /// of the store finds one.
    changed: Condvar,
    stored: StoredTokens,
}

#[derive(Debug, Default)]
struct State {
    pieces: Pieces,
    /// Others want some of the file, so background work leaves it alone.
    wanted: bool,
    /// Counts messages about the file.
    messages: u64,
    /// The requests that wait, by direction and range.
    active: Vec<(Direction, ByteRange)>,
    /// The polls of the store, shared by all waiting requests.
    polls: StorePolls,
    /// The request that waited last.
    last_wait: Option<LastWait>,
}

/// The polls of the store by this file's waiting requests. One request polls when a message has arrived, or when the
/// next poll is due because messages may be lost; the others use what it found.
#[derive(Debug, Default)]
struct StorePolls {
    /// Number of changes found: a different value, or granted tokens.
    found: u64,
    /// Polls so far.
    count: u32,
    /// The number of messages before the last poll.
    messages: u64,
    /// When the next poll is due.
    due: Option<Instant>,
    pause: Duration,
    /// Why the last poll failed, if it did.
    failure: Option<String>,
}

impl StorePolls {
    /// A request begins to wait; it was queued in the store when this many messages had arrived.
    fn begin(&mut self, messages: u64, now: Instant) {
        let pause = FIRST_PAUSE;
        let due = Some(now + pause);
        // The count continues: requests that begin often must not keep a dead holder from being noticed.
        *self =
            Self { found: self.found + 1, count: self.count, messages, due, pause, failure: None };
    }

    /// Whether a poll is due after this many messages.
    fn is_due(&self, messages: u64, now: Instant) -> bool {
        messages != self.messages || self.due.is_none_or(|due| due <= now)
    }

    /// Begins a poll after this many messages; the next one is due at most `longest` later. Returns its number.
    fn begin_poll(&mut self, messages: u64, now: Instant, longest: Duration) -> u32 {
        let pause = (self.pause * 2).clamp(FIRST_PAUSE, longest.max(FIRST_PAUSE));
        self.count = self.count.wrapping_add(1);
        (self.messages, self.pause, self.due) = (messages, pause, Some(now + pause));
        self.failure = None;
        self.count
    }
}

/// The first pause of a request between polls.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A request that waited.
#[derive(Debug, Clone)]
struct LastWait {
    /// When it ended.
    at: Instant,
    lasted: Duration,
    /// What it waited for.
    on: String,
}

/// How much of a file is held.
pub(super) struct Holding {
    pub(super) tokens: u64,
    pub(super) is_contended: bool,
    /// Requests that wait.
    pub(super) waiting: u64,
}

/// The result of one attempt.
enum Attempt {
    Granted(Grant),
    /// What it waits for.
    Waits(String),
    /// To be retried at once.
    Again,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("id", &self.id).finish_non_exhaustive()
    }
}

impl File {
    pub(super) fn new(id: SharedFile, shared: Arc<Shared>) -> Self {
        let stored = StoredTokens::new(id, Arc::clone(&shared));
        Self { id, shared, state: Mutex::default(), changed: Condvar::new(), stored }
    }

    /// How much is held and waited for.
    pub(super) fn holding(&self) -> Holding {
        let state = self.state.lock();
        Holding {
            tokens: state.pieces.all().count() as u64,
            is_contended: state.pieces.all().any(|(_, mode)| mode == Mode::Direct),
            waiting: state.active.len() as u64,
        }
    }

    /// Whether nothing is held, in progress or waited for.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().pieces.is_empty()
    }

    /// The start of the file's idle time; `None` if a request uses it or waits, or if others want some of it.
    pub(super) fn at_rest_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.pieces.at_rest_since().filter(|_| state.active.is_empty() && !state.wanted)
    }

    /// A permit under the tokens that are held.
    pub(super) fn permit(&self, want: Want) -> Option<Grant> {
        let now = self.shared.options.clock.boot_instant();
        if !self.shared.own_session.lease.runs_at(now) {
            return None;
        }
        self.state.lock().pieces.permit(want, now)
    }

    /// Notes a message that something changed.
    pub(super) fn note_message(&self) {
        let mut state = self.state.lock();
        state.messages += 1;
        state.wanted = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until no permit is in progress in a closed range; `false` if that takes too long.
    fn wait_unused(&self, range: ByteRange) -> bool {
        let clock = &self.shared.options.wait_clock;
        let deadline = clock.instant() + self.shared.options.wait_limit;
        let mut state = self.state.lock();
        let is_used = |state: &mut State| state.pieces.is_used(range) && !self.shared.is_stopped();
        clock.wait_while(&self.changed, &mut state, is_used, deadline);
        !state.pieces.is_used(range)
    }

    /// Keeps a value that was read or written, and lets other waiting requests of this node use it.
    fn note_value(&self, value: Tokens) {
        if self.stored.note(value) {
            self.state.lock().polls.found += 1;
            self.changed.notify_all();
        }
    }

    /// Asserts what the node holds of the file, as the store may have forgotten it. `false` if the epoch changed again.
    pub(super) fn assert(&self, roll: &store::Roll) -> store::Result<bool> {
        let session = self.shared.session;
        let held = self.all().into_iter().map(|(range, mode)| Held { session, mode, range });
        self.stored.assert(&held.collect::<Vec<_>>(), roll)
    }

    /// The ranges that are held, with their modes.
    pub(super) fn all(&self) -> Vec<(ByteRange, Mode)> {
        self.state.lock().pieces.all().collect()
    }
}

/// Makes a range at least one byte long: even an empty request must learn whether others changed the file.
fn filled(want: Want) -> Want {
    let range = match want.range {
        ByteRange { start: u64::MAX, .. } => ByteRange::new(u64::MAX - 1, u64::MAX),
        range if range.is_empty() => ByteRange::at(range.start, 1),
        range => range,
    };
    Want { range, ..want }
}
