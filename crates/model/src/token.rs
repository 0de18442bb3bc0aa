//! Byte-range tokens: what keeps the caches of several nodes over one origin coherent (I11 to I14).
//!
//! Each node caches a range of a file only while it holds a token for it. The tokens of one file are
//! one value in a shared store ([`Tokens`]), which a node changes by compare-and-swap: it reads the
//! value, computes the next one with the functions here, and the store takes it if nobody else
//! changed it meanwhile. So the protocol is all in pure functions, which a model checker explores
//! (`tests/token_protocol.rs`), and the store needs no logic of its own.
//!
//! What must hold around them:
//! - A node has one change of a file's tokens under way at a time. It gives up what it holds in its
//!   own mind *before* it asks the store to take it away: after its dirty bytes are on the origin and
//!   durable, and its caches and the kernel's pages of the range are dropped.
//! - Each change makes a new version, also one that changes nothing: a request that was delayed and
//!   given up by its sender can then never be taken.
//! - A change names the [`Epoch`] of the store that it was computed for, and a store in another one
//!   refuses it. The store's epoch changes whenever it may have forgotten something; nothing is
//!   granted in a new one until every session has said what it holds ([`Members`]).
//! - A node uses no token without a valid lease. When a lease lapsed, only exclusive tokens are left
//!   of what it held.

mod heat;
mod members;
mod table;

use serde::{Deserialize, Serialize};

use crate::request::{ByteRange, Direction};

pub use heat::{Heat, REGION};
pub use members::{Life, Members};
pub use table::{Answer, Tokens};

/// One life of a node's mount, from its start to its end or its recovery; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Session(pub u64);

/// One life of the store: another after a restart, a failover or a lost table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Read, and cache what was read. Others may, too.
    Shared,
    /// Read and write on the origin, and cache nothing. Others may, too: for ranges that many nodes
    /// write by turns.
    Direct,
    /// Read, write and cache, alone.
    Exclusive,
}

impl Mode {
    /// Whether two sessions may not hold both over one byte.
    #[must_use]
    pub const fn conflicts(self, other: Self) -> bool {
        !matches!((self, other), (Self::Shared, Self::Shared) | (Self::Direct, Self::Direct))
    }

    /// Whether the holder may serve a request of this direction.
    #[must_use]
    pub const fn allows(self, direction: Direction) -> bool {
        !matches!((self, direction), (Self::Shared, Direction::Write))
    }

    /// Whether the holder may keep bytes, on its SSD or in the kernel's pages.
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
    /// The bytes of the file that it is for.
    pub range: ByteRange,
}

/// What a node wants of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// What for.
    pub direction: Direction,
    /// The bytes of the request that waits.
    pub required: ByteRange,
    /// What would be welcome besides, around `required`: as much of it is granted as nobody else
    /// holds or waits for.
    pub desired: ByteRange,
    /// Nobody else may have any token there, however contended it is: this is granted exclusively or not at
    /// all, also for reading.
    pub alone: bool,
}
