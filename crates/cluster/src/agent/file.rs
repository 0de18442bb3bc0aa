//! The tokens of one file on this node: the road without the store, and waiting.

mod asking;
mod asserting;
mod explaining;
mod giving;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halocline_cache::coherence::{FileTokens, Grant, SharedFile, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_model::token::{Epoch, Mode, Tokens};
use halocline_os::error::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::pieces::Pieces;
use crate::counters::add;

/// How long a request waits before it looks again, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The tokens of a file.
pub(super) struct File {
    pub(super) id: SharedFile,
    pub(super) shared: Arc<Shared>,
    pub(super) state: Mutex<State>,
    /// A permit ended where somebody waits for that, a closed range opened, or somebody said that something changed.
    pub(super) changed: Condvar,
    /// Held during a change of the file's tokens in the store: one at a time.
    pub(super) change: Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pieces: Pieces,
    /// Others want something: background work stays away.
    pub(super) wanted: bool,
    /// Counts what was said of the file.
    pub(super) told: u64,
    /// What requests wait for.
    pub(super) active: Vec<(Direction, ByteRange)>,
    /// The value as this node wrote or read it last.
    pub(super) last: Option<Tokens>,
    /// The request that waited last.
    last_wait: Option<LastWait>,
}

/// A request that waited.
#[derive(Debug, Clone)]
struct LastWait {
    /// When it ended.
    at: Instant,
    lasted: Duration,
    /// What it waited for.
    on: String,
}

/// How much is held of a file.
pub(super) struct Holding {
    pub(super) tokens: u64,
    pub(super) is_contended: bool,
    /// Requests that wait.
    pub(super) waiting: u64,
}

/// What one attempt came to.
pub(super) enum Attempt {
    Granted(Grant),
    /// What it waits for.
    Waits(String),
    /// It is to be tried again at once.
    Again,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("id", &self.id).finish_non_exhaustive()
    }
}

impl File {
    pub(super) fn new(id: SharedFile, shared: Arc<Shared>) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { id, shared, state, changed, change: Mutex::new(()) }
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

    /// Whether nothing is held, under way or waited for.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().pieces.is_empty()
    }

    /// A permit under what is held.
    pub(super) fn permit(&self, want: Want) -> Option<Grant> {
        let now = self.shared.options.clock.instant();
        if !self.shared.lease.runs_at(now) {
            return None;
        }
        self.state.lock().pieces.permit(want, now)
    }

    /// Somebody said that something changed.
    pub(super) fn note_told(&self) {
        let mut state = self.state.lock();
        state.told += 1;
        state.wanted = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a token, and stands among those who wait meanwhile.
    fn wait(&self, want: Want) -> Result<Grant> {
        let stands_for = (queued_as(want), want.range);
        self.state.lock().active.push(stands_for);
        let granted = self.wait_actively(want);
        let active = &mut self.state.lock().active;
        if let Some(at) = active.iter().position(|one| *one == stands_for) {
            active.swap_remove(at);
        }
        granted
    }

    fn wait_actively(&self, want: Want) -> Result<Grant> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        let mut waited_for = None;
        let waits_for = loop {
            let told = self.state.lock().told;
            match self.attempt(want, attempts, began + self.shared.options.wait_limit)? {
                Attempt::Granted(grant) => {
                    if attempts > 0 {
                        self.note_wait(began.elapsed(), waited_for);
                    }
                    return Ok(grant);
                }
                Attempt::Waits(what) if began.elapsed() >= self.shared.options.wait_limit => {
                    break what;
                }
                Attempt::Waits(what) => waited_for = Some(what),
                Attempt::Again => {
                    attempts += 1;
                    continue;
                }
            }
            if self.shared.is_stopped() {
                break "this mount to end".to_owned();
            }
            attempts += 1;
            let mut state = self.state.lock();
            if state.told == told {
                let _ = self.changed.wait_for(&mut state, pause);
            }
            pause = (pause * 2).min(self.shared.options.poll);
        };
        self.note_wait(began.elapsed(), Some(waits_for.clone()));
        // Whoever stands behind it tells, and then it leaves the queue.
        Err(Error::Cluster {
            what: format!("waited {} s for {waits_for}", self.shared.options.wait_limit.as_secs()),
            remedy: "see `halocline cluster nodes`".to_owned(),
        })
    }

    fn note_wait(&self, lasted: Duration, on: Option<String>) {
        self.shared.counters.note_wait(lasted);
        let (at, on) =
            (self.shared.options.clock.instant(), on.unwrap_or_else(|| "the store".to_owned()));
        self.state.lock().last_wait = Some(LastWait { at, lasted, on });
    }

    /// Waits until no permit is under way in a closed range; `false` if that takes too long.
    pub(super) fn wait_unused(&self, range: ByteRange) -> bool {
        let deadline = Instant::now() + self.shared.options.wait_limit;
        let mut state = self.state.lock();
        while state.pieces.is_used(range) {
            if self.changed.wait_until(&mut state, deadline).timed_out() || self.shared.is_stopped()
            {
                return !state.pieces.is_used(range);
            }
        }
        true
    }

    /// The value as it was seen last: a guess, which the store takes if it is right. What was seen in another life of the
    /// store is none: an older value may have come back, and may count to the same version again.
    pub(super) fn guess(&self, epoch: Epoch) -> Option<Tokens> {
        self.state.lock().last.clone().filter(|known| known.epoch() == epoch)
    }

    /// Ranges that are held, with modes.
    pub(super) fn all(&self) -> Vec<(ByteRange, Mode)> {
        self.state.lock().pieces.all().collect()
    }
}

/// As what a request stands in the queue.
fn queued_as(want: Want) -> Direction {
    if want.alone { Direction::Write } else { want.direction }
}

/// A range has a byte at least: a request for none still asks whether others changed the file.
fn filled(want: Want) -> Want {
    let range = match want.range {
        ByteRange { start: u64::MAX, .. } => ByteRange::new(u64::MAX - 1, u64::MAX),
        range if range.is_empty() => ByteRange::at(range.start, 1),
        range => range,
    };
    Want { range, ..want }
}

impl FileTokens for File {
    fn begin(&self, want: Want) -> Result<Grant> {
        let want = filled(want);
        if let Some(grant) = self.permit(want) {
            return Ok(grant);
        }
        let granted = self.wait(want);
        if granted.is_err() {
            add(&self.shared.counters.refused);
        }
        granted
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        if self.state.lock().wanted { None } else { self.permit(filled(want)) }
    }

    fn explain(&self, want: Want) -> Option<String> {
        self.explained(want)
    }

    fn end(&self, grant: Grant) {
        if self.state.lock().pieces.end(grant) {
            self.changed.notify_all();
        }
    }
}
