//! The tokens that this node holds of one file: what is held, used and waited for, under one lock, because a waiting
//! request must notice any change of these. Requests come in through [`waiting`]. [`asking`] requests tokens that the
//! node does not hold from the store, whose values are in [`stored_tokens`]. A range that is given up is a [`Handover`].

mod asking;
mod copying;
mod explaining;
mod handover;
mod stored_tokens;
mod waiting;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use halocline_cache::coherence::{Grant, SharedFile, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Held, Mode, Tokens};
use halocline_os::error::{Error, Result};
use parking_lot::{Condvar, Mutex};

pub(super) use copying::end_unseen;

use super::pieces::Pieces;
use super::{Shared, cluster_error};
use crate::counters::add;
use crate::store::{self, Reading, StoreError};

use explaining::bytes;
use handover::Handover;
use stored_tokens::StoredTokens;

/// The most attempts to give everything up when the session ends.
const TRIES: u32 = 8;
/// Handovers of one file after which other files get their turn.
const TURNS: u32 = 64;

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

/// Giving up, each range by a [`Handover`].
impl File {
    /// Gives up what others want of the file.
    pub(super) fn give_what_is_wanted(&self) -> Result<()> {
        let shared = &self.shared;
        for _ in 0..TURNS {
            // A node without a lease deals with its tokens once it has one again.
            shared.own_session.check_lease()?;
            let Reading { tokens, epoch } = shared.store.read(self.id).map_err(cluster_error)?;
            let active = self.state.lock().active.clone();
            if tokens.epoch() == epoch && tokens.waits_in_vain(shared.session, &active) {
                self.leave_queue().map_err(cluster_error)?;
            }
            let now_ms = shared.own_session.roll.now_ms();
            let wanted = (tokens.epoch() == epoch).then(|| tokens.wanted_from(shared.session));
            let Some((wanted, keep)) = wanted.flatten() else {
                self.state.lock().wanted = false;
                return Ok(());
            };
            let contended = tokens.is_contended(wanted, now_ms);
            let range = self.state.lock().pieces.to_give(wanted, keep.is_some(), contended);
            // Bytes that nobody wants may be what cannot be given up.
            if !self.give(range, keep) && (range == wanted || !self.give(wanted, keep)) {
                self.say_what_is_unreadable(wanted);
                return Ok(());
            }
            add(&shared.counters.handovers);
        }
        shared.queue.push(self.id);
        Ok(())
    }

    /// A wanted range could not be given up. If that is because its dirty bytes cannot be read from this node's cache,
    /// those who want them get an error, and need not wait for what does not happen.
    fn say_what_is_unreadable(&self, wanted: ByteRange) {
        let shared = &self.shared;
        let Some(local_cache) = shared.local_cache.get().and_then(Weak::upgrade) else { return };
        let ranges = local_cache.unreadable(self.id, wanted);
        let Some(first) = ranges.first() else { return };
        tracing::warn!(
            "inode {}: only this node's cache has {}, and it cannot read them; others get an error",
            self.id.inode,
            bytes(*first)
        );
        let change = self.stored.begin_change();
        let now_ms = shared.own_session.roll.now_ms();
        let noted = change.make(|new, epoch| {
            new.note_unreadable(shared.session, (wanted, &ranges), epoch, now_ms);
        });
        match noted {
            Ok(Some(new)) => self.stored.tell_waiters(&new),
            Ok(None) => {}
            // They wait, and ask again.
            Err(error) => tracing::debug!("inode {}: {error}", self.id.inode),
        }
    }

    /// Removes entries from the queue for which no request waits any more, because others are queued behind them.
    fn leave_queue(&self) -> Result<(), StoreError> {
        let change = self.stored.begin_change();
        let active = self.state.lock().active.clone();
        let session = self.shared.session;
        let new = change.make(|new, epoch| new.forget_vain(session, &active, epoch))?;
        if let Some(new) = new {
            self.stored.tell_waiters(&new);
        }
        Ok(())
    }

    /// Gives up everything that is held.
    pub(super) fn give_all_up(&self) -> Result<()> {
        let all = ByteRange::new(0, u64::MAX);
        let clock = &self.shared.options.wait_clock;
        let deadline = clock.instant() + self.shared.options.wait_limit;
        let mut failures = 0;
        while failures < TRIES && clock.instant() < deadline {
            if self.all().is_empty() || self.give(all, None) {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.pieces.is_closed(all) {
                // Some of it is being given to others right now.
                let is_closed = |state: &mut State| state.pieces.is_closed(all);
                clock.wait_while(&self.changed, &mut state, is_closed, deadline);
            } else {
                drop(state);
                failures += 1;
                // Without the pause, a short outage of the store would use up all attempts.
                clock.sleep(self.shared.options.poll * 2);
            }
        }
        Err(Error::Cluster {
            what: format!("inode {} could not be given up", self.id.inode),
            remedy: "mount again, and unmount when the store and the origin answer".to_owned(),
        })
    }

    /// Gives up a range, or keeps `keep` of exclusive tokens there. `false` if that is already in progress, or must be
    /// tried again.
    fn give(&self, range: ByteRange, keep: Option<Mode>) -> bool {
        Handover::begin(self, range).is_some_and(|handover| handover.give(keep))
    }

    /// Gives up a range if the file is idle: nothing uses it or wants any of it. `None` if it is not idle; `false` if
    /// it must be tried again.
    pub(super) fn give_at_rest(&self, range: ByteRange) -> Option<bool> {
        let handover = Handover::begin_at_rest(self, range)?;
        let given = handover.give_unused(None);
        if !given {
            let now = self.shared.options.clock.boot_instant();
            self.state.lock().pieces.note_use(now);
        }
        Some(given)
    }

    /// Drops everything that is not exclusive, whatever the store says, because the lease lapsed. `false` if it must be
    /// tried again.
    pub(super) fn drop_what_is_unsure(&self) -> bool {
        let ranges = self.state.lock().pieces.unsure();
        ranges.into_iter().all(|range| {
            Handover::begin(self, range).is_some_and(|handover| handover.drop_unasked())
        })
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
