//! The names of a file tier that several nodes share (I15): how they are stored, and how a node changes them.
//!
//! - [`NameStore`]: what a store does, one script on one shard at a time; [`memory`] and [`redis`] implement it;
//! - [`attributes`]: the attributes of a file or directory; [`coding`]: the encoding of everything;
//! - [`namespace`]: the operations of POSIX on names, by the plans and transactions of [`halocline_model::namespace`],
//!   which decides everything that concerns several shards;
//! - [`check`]: finds and removes leftovers of nodes that died.

pub mod attributes;
pub mod check;
pub mod coding;
pub mod directory_entries;
pub mod memory;
pub mod namespace;
pub mod redis;
mod relative_path;
mod split_limits;

use std::fmt::Debug;
use std::time::Duration;

use halocline_model::namespace::{Answer, InodeNumber, Intent, Script, Slot};

pub use crate::store::Memory;
use crate::store::StoreError;

/// The most entries of one answer to [`Script::List`].
pub const PAGE_ENTRIES_MAX: usize = 1000;
/// The longest name of an entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a store of names gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// There was no answer in time, or it was lost: the script may have run.
    #[error("the store of names does not answer: {0}")]
    NoAnswer(String),
    /// Its content was not written by Halocline.
    #[error("the store of names holds what Halocline did not write: {0}")]
    Unsound(String),
    /// Nothing was done: its memory is used up. Requests that free memory still work.
    #[error("the store of names is full: {0}; remove files, or give it more memory (maxmemory)")]
    Full(String),
    /// Its settings would lose names, or it refuses us.
    #[error("the store of names cannot be used: {0}")]
    Unusable(String),
    /// Nothing was done: another epoch began, because the server is a different one, or was told to forget late
    /// messages.
    #[error("the store of names began a new epoch")]
    Stale,
    /// Nothing was done: a check holds the names.
    #[error(
        "the names of the tier are being put in order; if no repair runs, one was ended before it was done"
    )]
    Held,
    /// Nothing was done: the server may have forgotten names.
    #[error(
        "the store of names may have forgotten some: {0}; stop the nodes, and have the names checked and confirmed, or \
         built again from the directories"
    )]
    Forgot(String),
}

impl From<StoreError> for NamesError {
    fn from(error: StoreError) -> Self {
        let is_full = error.is_full();
        match error {
            StoreError::NoAnswer(what) if is_full => Self::Full(what),
            StoreError::NoAnswer(what) => Self::NoAnswer(what),
            StoreError::Unsound(what) => Self::Unsound(what),
            StoreError::Unusable(what) => Self::Unusable(what),
        }
    }
}

/// A result of the store.
pub type Result<T> = std::result::Result<T, NamesError>;

/// The state of a store, as far as the store knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There are no names of this tier, as far as the store knows. It may have forgotten all.
    Empty,
    /// It has forgotten nothing since its content was confirmed last.
    Confirmed,
    /// This many of its partitions may have forgotten something.
    Doubtful(usize),
    /// A check holds the names, or died before it released them: then another check releases them.
    Held,
}

impl State {
    /// Why names in this state are not used.
    #[must_use]
    pub fn refusal(self) -> NamesError {
        match self {
            Self::Held => NamesError::Held,
            Self::Doubtful(partitions) => {
                NamesError::Forgot(format!("{partitions} of its partitions began anew"))
            }
            Self::Empty | Self::Confirmed => {
                NamesError::Forgot("it has no names of this tier".to_owned())
            }
        }
    }
}

/// For how many milliseconds a node trusts its listing of a directory at least ([`NameStore::lease`]).
pub const LEASE_MS: u64 = 80;
/// The same at most: leases of directories that others have left alone for long last longer.
pub const LEASE_MS_MAX: u64 = 230;

/// What a change says about the directory in which it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedDirectory {
    /// The version that it changed; 0 for a new directory.
    pub before: u64,
    /// The version that it made.
    pub version: u64,
    /// When names of the directory last changed after its attributes were set, or 0.
    pub changed: u64,
    /// Whether nobody else changes the directory for [`LEASE_MS`], counted from before the change was sent.
    pub is_leased: bool,
}

/// What a store says about a version of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// It is the current content, and nobody else changes it for a while.
    Yes,
    /// It was the content when the store answered.
    Same,
    /// The content may be different.
    No,
}

/// A store of names that all nodes reach, as one node uses it. Every call is answered or fails within bounded time. It
/// sends each script once; a script that did nothing because it met a lease ([`lease`](Self::lease)) is sent again.
///
/// The implementation must run a script as [`halocline_model::namespace::Shards::run`] does, atomically, and only in
/// the epoch that [`refresh`](Self::refresh) found last: in every other one it does nothing and answers
/// [`NamesError::Stale`]. An epoch ends when the store may have forgotten what it acknowledged, and by
/// [`begin_epoch`](Self::begin_epoch).
pub trait NameStore: Debug + Send + Sync {
    /// Runs one script on one shard, in one round trip.
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer>;

    /// As [`run`](Self::run); a script that makes a directory ([`Script::Make`]) or changes slots of one
    /// ([`Script::Alone`]) may also return what changed in the directory, and get a lease of it at once.
    fn change(
        &self,
        shard: InodeNumber,
        script: &Script,
    ) -> Result<(Answer, Option<ChangedDirectory>)> {
        Ok((self.run(shard, script)?, None))
    }

    /// Asks for a lease of a directory: nobody else changes it for the time that is returned, from before this call on, if
    /// its content is still the listed version ([`Answer::Entries`]). Changes of others wait for that long.
    fn lease(&self, _directory: InodeNumber, _version: u64) -> Result<(LeaseAnswer, Duration)> {
        Ok((LeaseAnswer::No, Duration::ZERO))
    }

    /// Reads a name or the attributes of a directory, and asks for a lease of it at once. If there is one, its version and
    /// for how long nobody else changes it, from before this call on, are returned, too.
    fn read_leased(
        &self,
        directory: InodeNumber,
        slot: &Slot,
    ) -> Result<(Answer, Option<(u64, Duration)>)> {
        Ok((self.run(directory, &Script::Read(slot.clone()))?, None))
    }

    /// Reads the epochs of all partitions, and uses those that are confirmed from now on.
    fn refresh(&self) -> Result<State>;

    /// Begins a new epoch in all partitions: their content is valid from now on, whatever was forgotten, and requests
    /// that were sent before and arrive late do nothing. The caller has examined the content, or knows that there is
    /// none. If `is_alone`, no other node finds the epoch by [`refresh`](Self::refresh).
    fn begin_epoch(&self, is_alone: bool) -> Result<()>;

    /// The first of `count` numbers that were never used, for inodes and shards.
    fn reserve(&self, count: u64) -> Result<u64>;

    /// All shards, in any order. Those that are added or removed meanwhile may be missing.
    fn shards(&self) -> Result<Vec<InodeNumber>>;

    /// The parts of a shard that only a check reads. `None` if there is no such shard.
    fn inspect(&self, shard: InodeNumber) -> Result<Option<InspectedShard>>;

    /// Removes a shard, whatever its content. Only for a check, which runs alone.
    fn remove(&self, shard: InodeNumber) -> Result<()>;

    /// For how long a directory's time moves on by itself after [`Script::Touch`], counted from before it was sent: a node
    /// that changes names in buckets need not send it again meanwhile.
    fn touched_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Lets a directory have so many entries before this node's new names of it are refused with [`Answer::Full`].
    fn spare(&self, _directory: InodeNumber, _entries: u64) {}

    /// Number of requests over the network.
    fn round_trips(&self) -> u64;

    /// The memory of the fullest server whose memory is limited, if there is one.
    fn memory(&self) -> Result<Option<Memory>> {
        Ok(None)
    }
}

/// A shard, as a check sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InspectedShard {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is a bucket; what is neither belongs to a file with several names.
    pub is_bucket: bool,
    /// Intents that have locks in it.
    pub locks: Vec<Intent>,
    /// Committed intents that it decided.
    pub committed: Vec<Intent>,
}
