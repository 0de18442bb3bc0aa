//! What all nodes share: the tokens of each file, and who takes part.
//!
//! A store computes nothing about tokens. It keeps values with versions and takes a new one if the value and the
//! store's epoch are those that it was computed from. It may forget anything at any time, but then its epoch must
//! change. It consists of one part or more, each of which may forget by itself.

mod coding;
pub mod memory;
pub mod redis;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use halocline_model::token::{Epoch, Members, Session, Tokens};

/// Why a store gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There was no answer in time, or it was lost: what was asked may have been done.
    #[error("the store of tokens does not answer: {0}")]
    NoAnswer(String),
    /// Its content was not written by Halocline.
    #[error("the store of tokens holds what Halocline did not write: {0}")]
    Unsound(String),
    /// It is set up in a way that loses tokens, or refuses us.
    #[error("the store of tokens cannot be used: {0}")]
    Unusable(String),
}

/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(30);

/// A result of the store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Tokens as the store has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The value; empty with version 0 where there is none.
    pub tokens: Tokens,
    /// The epoch of the file's part of the store.
    pub epoch: Epoch,
}

/// What became of a change of a file's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// It is the value now.
    Taken,
    /// Another change came first, or the epoch is another one: this is there.
    Other(Reading),
}

/// Who takes part, as the store has it.
#[derive(Debug, Clone)]
pub struct Roll {
    /// The epoch of the whole store: changes whenever that of a part does.
    pub epoch: Epoch,
    /// The epochs of its parts.
    pub parts: Arc<[Epoch]>,
    /// Counts changes of the members.
    pub version: u64,
    /// The members.
    pub members: Members,
    /// When leases end, by the store's clock in milliseconds.
    pub leases: Vec<(Session, u64)>,
    /// When the last lease that the store has forgotten ends at the latest, by its clock.
    pub forgotten_until_ms: u64,
    /// The store's clock.
    pub now_ms: u64,
}

impl Roll {
    /// Whether the lease of a session is over by the store's clock.
    #[must_use]
    pub fn is_over(&self, session: Session) -> bool {
        self.lease_ms(session) == 0
    }

    /// How long the lease of a session may run, in milliseconds.
    #[must_use]
    pub fn lease_ms(&self, session: Session) -> u64 {
        let own = self.leases.iter().find(|(of, _)| *of == session);
        let until_ms = own.map_or(0, |(_, until_ms)| *until_ms).max(self.forgotten_until_ms);
        until_ms.saturating_sub(self.now_ms)
    }
}

/// What a change of the members does to a lease, atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// Nothing.
    Stays,
    /// A session's runs from now for this many milliseconds.
    Runs(Session, u64),
    /// A session's is over. The change is refused if it is not, or may not be because the store has forgotten leases, by
    /// the store's clock at that moment.
    IsOver(Session),
    /// A session ends its own.
    Ends(Session),
}

/// A store that all nodes reach. Everything is answered, or fails, in bounded time.
pub trait Store: Debug + Send + Sync {
    /// The part that keeps a file's tokens: an index of [`Roll::parts`].
    fn part(&self, file: SharedFile) -> usize;

    /// The tokens of a file.
    fn read(&self, file: SharedFile) -> Result<Reading>;

    /// Replaces them, if their version is still `expected` and the part's epoch is that of `new`.
    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap>;

    /// Who takes part.
    fn roll(&self) -> Result<Roll>;

    /// Replaces the members, if they and the epoch of the whole store are still those of `from` and the change of the
    /// lease is right. `false` if not. A part whose epoch changed unnoticed does no harm: it takes no change for the
    /// epoch that the members know.
    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool>;

    /// Extends a lease that is not over to `lease_ms` from now, at most [`LEASE_MAX`], in the same epoch. `false` if it
    /// is over, or the epoch changed.
    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool>;

    /// Sends a session a message about a file: another session wants something of it, or something that it waits for
    /// may be free. May be lost.
    fn tell(&self, session: Session, file: SharedFile);

    /// Makes known what this store noticed of servers that began anew; returns whether there was something. Then the
    /// epoch may have changed. It may wait for servers that are silent, which [`Store::renew`] does not.
    fn note_changes(&self) -> Result<bool> {
        Ok(false)
    }

    /// Waits for messages to a session, at most for `wait_limit`; returns those that came since. May miss some.
    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile>;

    /// Sends a session a letter, which nobody but the two understands. May be lost.
    fn send(&self, session: Session, letter: &[u8]);

    /// Waits for letters to a session, at most for `wait_limit`; returns those that came since. May miss some.
    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>>;

    /// Some of the files with tokens, at most `limit`.
    fn files(&self, limit: usize) -> Result<Vec<SharedFile>>;

    /// Number of requests over the network.
    fn round_trips(&self) -> u64;
}
