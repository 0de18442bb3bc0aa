//! The tokens of one file in the store: the value that this node last saw, and how the node changes it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use halocline_cache::coherence::SharedFile;
use halocline_model::token::{Epoch, Held, Session, Tokens};
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};

use crate::agent::Shared;
use crate::store::{Result, Roll, StoreError, Swap};

/// Lost races after which a change is abandoned for now.
const RACES: u32 = 64;

/// A file's tokens in the store.
pub(super) struct StoredTokens {
    id: SharedFile,
    shared: Arc<Shared>,
    /// Held during a change of the file's tokens in the store, so that there is only one at a time.
    change: Mutex<()>,
    /// The value that this node last wrote or read.
    last: Mutex<Option<Tokens>>,
}

/// While this exists, this node makes no other change of the file's tokens, and does not assert what it holds.
pub(super) struct Change<'s> {
    of: &'s StoredTokens,
    _not_asserting: RwLockReadGuard<'s, ()>,
    _alone: MutexGuard<'s, ()>,
}

impl StoredTokens {
    pub(super) fn new(id: SharedFile, shared: Arc<Shared>) -> Self {
        Self { id, shared, change: Mutex::new(()), last: Mutex::default() }
    }

    /// Begins a change.
    pub(super) fn begin_change(&self) -> Change<'_> {
        let changes = self.shared.files.begin_change();
        Change { of: self, _not_asserting: changes, _alone: self.change.lock() }
    }

    /// The same, but waits only until `deadline`.
    ///
    /// # Errors
    /// Says what it would have had to wait for.
    pub(super) fn try_begin_change(
        &self,
        deadline: Instant,
    ) -> std::result::Result<Change<'_>, &'static str> {
        let Some(changes) = self.shared.files.try_begin_change(deadline) else {
            return Err("the store to be told what this node holds");
        };
        match self.change.try_lock_until(deadline) {
            Some(change) => Ok(Change { of: self, _not_asserting: changes, _alone: change }),
            None => Err("another request for the same file"),
        }
    }

    /// The value seen last.
    pub(super) fn last(&self) -> Option<Tokens> {
        self.last.lock().clone()
    }

    /// Whether the value last seen may still be the store's.
    pub(super) fn is_known(&self) -> bool {
        self.last.lock().is_some()
    }

    /// The value last seen, as a guess that the store accepts if it is right. Never a value from another epoch of the
    /// store: an older value may have come back and counted up to the same version again.
    pub(super) fn guess(&self, epoch: Epoch) -> Option<Tokens> {
        self.last().filter(|known| known.epoch() == epoch)
    }

    /// Keeps a value that was read or written; returns whether it differs from the previous one.
    pub(super) fn note(&self, value: Tokens) -> bool {
        let mut last = self.last.lock();
        let is_new = last.as_ref().is_none_or(|last| last.version != value.version);
        *last = Some(value);
        is_new
    }

    /// Notes that the store may have another value by now: a change may or may not have been made.
    pub(super) fn forget(&self) {
        *self.last.lock() = None;
    }

    /// Asserts that this session holds `held`, as the store may have forgotten it. `false` if the epoch changed again.
    pub(super) fn assert(&self, held: &[Held], roll: &Roll) -> Result<bool> {
        let shared = &self.shared;
        let epoch = roll.partitions[shared.store.partition(self.id)];
        self.forget();
        if held.is_empty() {
            return Ok(true);
        }
        let mut value = Tokens::new(epoch);
        for _ in 0..RACES {
            let mut new = value.clone();
            new.assert(shared.session, held, epoch);
            begin_versions(shared.session, &value, &mut new);
            match shared.store.swap(self.id, value.version, &new)? {
                Swap::Taken => return Ok(true),
                Swap::Other(reading) if reading.epoch != epoch => return Ok(false),
                Swap::Other(reading) => value = reading.tokens,
            }
        }
        Err(StoreError::NoAnswer("others change the tokens of a file all the time".to_owned()))
    }

    /// Notifies sessions.
    pub(super) fn tell(&self, sessions: BTreeSet<Session>) {
        for session in sessions {
            self.shared.store.tell(session, self.id);
        }
    }

    /// Repeats the notification over the second way, for sessions that may not have received the first.
    pub(super) fn remind(&self, sessions: BTreeSet<Session>) {
        for session in sessions {
            self.shared.store.remind(session, self.id);
        }
    }

    /// Notifies the others that wait for tokens.
    pub(super) fn tell_waiters(&self, tokens: &Tokens) {
        let mut waiters: BTreeSet<_> = tokens.waiters().collect();
        waiters.remove(&self.shared.session);
        self.tell(waiters);
    }
}

/// If the store does not have a value (any more), its versions begin at a number that nobody can have seen: a node that
/// remembers an old value must not meet its version again.
pub(super) fn begin_versions(own: Session, old: &Tokens, new: &mut Tokens) {
    if old.version == 0 {
        let mixed = RandomState::new().hash_one(own.0);
        new.version = (mixed >> 12).max(1);
    }
}

impl Change<'_> {
    /// Makes a change, retrying after lost races; `None` if the epoch changed, so that the change no longer applies.
    pub(super) fn make(&self, change: impl Fn(&mut Tokens, Epoch)) -> Result<Option<Tokens>> {
        let StoredTokens { id, shared, .. } = self.of;
        let epoch = shared.own_session.roll.known().partitions[shared.store.partition(*id)];
        let mut value = self.of.guess(epoch).unwrap_or_else(|| Tokens::new(epoch));
        for _ in 0..RACES {
            let mut new = value.clone();
            change(&mut new, epoch);
            begin_versions(shared.session, &value, &mut new);
            match shared.store.swap(*id, value.version, &new)? {
                Swap::Taken => {
                    self.of.note(new.clone());
                    return Ok(Some(new));
                }
                Swap::Other(reading) if reading.epoch != epoch => {
                    shared.own_session.wake();
                    return Ok(None);
                }
                Swap::Other(reading) => value = reading.tokens,
            }
        }
        Err(StoreError::NoAnswer("others change the same tokens all the time".to_owned()))
    }
}
