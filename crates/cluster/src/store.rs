//! The state that all nodes share: the tokens of each file, and the members.
//!
//! A store computes nothing about tokens. It keeps values with versions, and accepts a new value if the old value and
//! the store's epoch are still those that the new one was computed from. It may forget anything at any time, but then
//! its epoch must change. It consists of one or more partitions, each of which may forget independently.

mod coding;
pub mod memory;
pub mod redis;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use halocline_model::background::{Use, Users};
use halocline_model::token::{Epoch, Members, Session, Tokens};

/// Why a store gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There was no answer in time, or it was lost: the request may have been executed.
    #[error("the store of tokens or names does not answer: {0}")]
    NoAnswer(String),
    /// Its content was not written by Halocline.
    #[error("the store of tokens or names holds what Halocline did not write: {0}")]
    Unsound(String),
    /// Its settings would lose tokens, or it refuses us.
    #[error("the store of tokens or names cannot be used: {0}")]
    Unusable(String),
}

/// A server's error for a script that would need more memory than allowed. A script that has changed something by then
/// runs to its end.
const OUT_OF_MEMORY: &str = "command not allowed when used memory > 'maxmemory'";

impl StoreError {
    /// Whether nothing was done because a server's memory is used up.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::NoAnswer(what) if what.contains(OUT_OF_MEMORY))
    }
}

/// The memory of a server, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What counts as used.
    pub used: u64,
    /// How much it may use (`maxmemory`); at least 1.
    pub limit: u64,
}

impl Memory {
    /// The used share, in percent, rounded down.
    #[must_use]
    pub fn percent(self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// The longest duration of a lease.
pub const LEASE_MAX: Duration = Duration::from_secs(30);

/// A result of the store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Tokens as the store has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The value; empty and with version 0 if there is none.
    pub tokens: Tokens,
    /// The epoch of the file's partition of the store.
    pub epoch: Epoch,
}

/// The result of a change of a file's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The new value is stored now.
    Taken,
    /// Another change came first, or the epoch is a different one; this is the stored value.
    Other(Reading),
}

/// The members, as the store has them.
#[derive(Debug, Clone)]
pub struct Roll {
    /// The epoch of the whole store, which changes whenever that of a partition does.
    pub epoch: Epoch,
    /// The epochs of its partitions.
    pub partitions: Arc<[Epoch]>,
    /// The number of changes of the members.
    pub version: u64,
    /// The members.
    pub members: Members,
    /// When leases end, by the store's clock in milliseconds.
    pub leases: Vec<(Session, u64)>,
    /// The latest time at which a lease that the store has forgotten can end, by its clock.
    pub forgotten_until_ms: u64,
    /// The store's clock.
    pub now_ms: u64,
}

impl Roll {
    /// Whether the lease of a session has ended by the store's clock.
    #[must_use]
    pub fn is_over(&self, session: Session) -> bool {
        self.lease_ms(session) == 0
    }

    /// How long the lease of a session may still run, in milliseconds.
    #[must_use]
    pub fn lease_ms(&self, session: Session) -> u64 {
        let own = self.leases.iter().find(|(of, _)| *of == session);
        let until_ms = own.map_or(0, |(_, until_ms)| *until_ms).max(self.forgotten_until_ms);
        until_ms.saturating_sub(self.now_ms)
    }
}

/// The effect of a change of the members on a lease, in the same atomic step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// Nothing.
    Stays,
    /// A session's lease runs from now for this many milliseconds.
    Runs(Session, u64),
    /// A session's lease is over. The change is refused if the lease is not over by the store's clock at that moment,
    /// or if that is uncertain because the store has forgotten leases.
    IsOver(Session),
    /// A session ends its own lease.
    Ends(Session),
}

/// A store that all nodes reach. Every call is answered or fails within bounded time.
pub trait Store: Debug + Send + Sync {
    /// The partition that keeps a file's tokens: an index into [`Roll::partitions`].
    fn partition(&self, file: SharedFile) -> usize;

    /// The tokens of a file.
    fn read(&self, file: SharedFile) -> Result<Reading>;

    /// Replaces them if their version is still `expected` and the partition's epoch is that of `new`.
    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap>;

    /// The members and their leases.
    fn roll(&self) -> Result<Roll>;

    /// Replaces the members if they and the epoch of the whole store are still those of `from` and the change of the
    /// lease is permitted; `false` otherwise. A partition whose epoch changed unnoticed does no harm: it accepts no
    /// change for the epoch that the members know.
    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool>;

    /// Extends a lease that is not over, to `lease_ms` from now but at most [`LEASE_MAX`], in the same epoch. `false`
    /// if it is over, or if the epoch has changed.
    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool>;

    /// Sends a session a message about a file: another session wants part of it, or something that the session waits
    /// for may be free. May be lost.
    fn tell(&self, session: Session, file: SharedFile);

    /// Repeats a message to a session that did not act on it, over a second way if there is one, because the session
    /// may not receive the first.
    fn remind(&self, session: Session, file: SharedFile) {
        self.tell(session, file);
    }

    /// Publishes what this store noticed about servers that lost their data or were replaced. Returns whether there was
    /// anything: then the epoch may have changed. Unlike [`Store::renew`], it may wait for servers that do not answer.
    fn note_changes(&self) -> Result<bool> {
        Ok(false)
    }

    /// Waits for messages to a session, at most for `wait_limit`; returns those that have come since the last call. May
    /// miss some.
    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile>;

    /// Sends a session a peer message, whose contents only the two sessions interpret. May be lost.
    fn send(&self, session: Session, message: &[u8]);

    /// Waits for peer messages to a session, at most for `wait_limit`; returns those that have come since the last
    /// call. May miss some.
    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>>;

    /// Notes `own` (a session, how it uses the origin, and for how many milliseconds that holds); then returns how many
    /// sessions have low-priority work on the origin, and of how many sessions programs use it.
    fn users(&self, own: Option<(Session, Use, u64)>) -> Result<Users>;

    /// Some of the files that have tokens, at most `limit`.
    fn files(&self, limit: usize) -> Result<Vec<SharedFile>>;

    /// Number of requests over the network.
    fn round_trips(&self) -> u64;
}
