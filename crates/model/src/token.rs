//! Byte-range tokens, which keep the caches of several nodes over one origin coherent (I11 to I14).
//!
//! Each node caches a range of a file only while it holds a token for it. The tokens of one file are one value in a
//! shared store ([`Tokens`]), which a node changes by compare-and-swap: it reads the value, computes the next one with
//! the functions here, and the store accepts it if no one else has changed it meanwhile. So the whole protocol is in
//! pure functions, which a model checker explores (`tests/token_protocol/main.rs`), and the store needs no logic of its
//! own.
//!
//! What must hold around them:
//! - A node has only one change of a file's tokens in progress at a time. It stops using what it gives up *before* it
//!   asks the store to take it away: after its dirty bytes are durable on the origin, and its caches and the kernel's
//!   pages of the range are dropped.
//! - Each change makes a new version, even one that changes nothing: a request that was delayed and abandoned by its
//!   sender can then never be accepted.
//! - A change names the [`Epoch`] of the store for which it was computed, and a store in another epoch refuses it. The
//!   store's epoch changes whenever it may have forgotten something; nothing is granted in a new one until every
//!   session has reported what it holds ([`Members`]).
//! - A node uses no token without a valid lease. After its lease has lapsed, only its exclusive tokens are still
//!   valid.

mod border;
mod heat;
mod members;
mod table;
mod unreadable;

use serde::{Deserialize, Serialize};

use crate::request::{ByteRange, Direction};

pub use border::border;
pub use heat::{Heat, REGION};
pub use members::{Life, Members};
pub use table::{Answer, Tokens};
pub use unreadable::Unreadable;

/// One life of a node's mount, from its start to its end or its recovery; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Session(pub u64);

/// One life of the store: another after a restart, a failover or a lost table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Read, and cache what was read. Others may do so, too.
    Shared,
    /// Read and write on the origin, and cache nothing. Others may do so, too: for ranges that many nodes write in
    /// turn.
    Direct,
    /// Read, write and cache, exclusively.
    Exclusive,
}

impl Mode {
    /// Whether two sessions must not both hold these for the same byte.
    #[must_use]
    pub const fn conflicts(self, other: Self) -> bool {
        !matches!((self, other), (Self::Shared, Self::Shared) | (Self::Direct, Self::Direct))
    }

    /// Whether the holder may serve a request of this direction.
    #[must_use]
    pub const fn allows(self, direction: Direction) -> bool {
        !matches!((self, direction), (Self::Shared, Direction::Write))
    }

    /// Whether the holder may cache bytes, on its SSD or in the kernel's pages.
    #[must_use]
    pub const fn caches(self) -> bool {
        !matches!(self, Self::Direct)
    }
}

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The session that holds it.
    pub session: Session,
    /// What it allows.
    pub mode: Mode,
    /// The bytes of the file to which it applies.
    pub range: ByteRange,
}

/// A node's demand on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The kind of access.
    pub direction: Direction,
    /// The bytes of the waiting request.
    pub required: ByteRange,
    /// Bytes around `required` that would also be useful; those that no one else holds or waits for are granted, too.
    pub desired: ByteRange,
    /// Whether no one else may hold any token there, however contended the range is: the token is granted exclusively
    /// or not at all, even for reading.
    pub alone: bool,
}
