//! Names of a file tier that several nodes share (I15): the changes of directories, and how a change that concerns
//! several of them is made atomic.
//!
//! Each directory is one *shard* of a shared store: a single script changes its content. The link count of a file with
//! several names is a shard of its own. A script compares and replaces ([`Change`]); [`Plan`] computes the changes of
//! a rename from what was read before. A plan that touches a single shard is one script. Every other plan is an
//! *intent*:
//!
//! 1. One shard is its *decider*. Each of the others gets a lock that states the new value of the locked slot
//!    ([`Script::Prepare`]).
//! 2. One script changes the decider and records that the intent is committed ([`Script::Decide`]). For every observer
//!    all shards change at that moment: whoever meets a lock asks the decider before it answers.
//! 3. The locks are finished, and then the decider forgets the intent.
//!
//! Nobody waits for anybody: whoever meets a lock of an undecided intent aborts that intent ([`Completion`]), so a
//! dead node blocks nothing. An abort increments the decider's count of settlements, and a decision names the count
//! that was read before the first lock; so a decision that arrives after an abort, however late, is refused.
//!
//! Two directories never end up below each other: a move first locks the parent entry of the directory that it moves,
//! and then walks up all directories above the new place. If several moves would form a cycle, the one that locks last
//! sees it: on its way up it finds the locks of the others, or the places to which they have moved.
//!
//! A directory with many entries is split ([`Split`]): its entries are then in *buckets*, shards that a hash of the name
//! selects, and it has only their numbers. It stays split. A node that does not know the buckets is told them instead of
//! a name.
//!
//! What must hold around them:
//! - A message is sent once, and again only if the store said that it did nothing. It may be lost or delayed for any
//!   time.
//! - Numbers of inodes and of intents are never reused.
//! - The store forgets nothing that it acknowledged. If it did, the names are rebuilt from the directories.
//!
//! Explored by `tests/namespace_protocol`.

mod buckets;
mod cursor;
mod name;
mod operation;
mod plan;
mod shard;
mod split;
mod transaction;

use crate::token::Session;

pub use buckets::Buckets;
pub use cursor::{Cursor, PLACE_MAX, SPLIT_PLACE_MAX};
pub use name::{Name, Opaque};
pub use operation::{Attempt, Failure, Next, Operation};
pub use plan::{EntryName, Flags, Plan, ReadName, Refusal};
pub use shard::{Body, Shard, Shards};
pub use split::{Split, SplitEnd};
pub use transaction::{Completion, Ended, Step, Transaction};

/// The number of a file or directory. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

/// The directory that is its own parent.
pub const ROOT: InodeNumber = InodeNumber(1);

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// Something that has only ever had this name: a file, a symbolic link, a device. Its attributes are stored with
    /// the name.
    Single(InodeNumber, Opaque),
    /// Something that has had several names. Its link count and attributes are in a shard of its own, the second
    /// number. Each attempt uses a new shard, so that the leftover of an abandoned attempt is in nobody's way.
    Linked(InodeNumber, InodeNumber),
    /// A directory, which is a shard.
    Directory(InodeNumber),
}

impl Entry {
    /// The inode that it leads to.
    #[must_use]
    pub const fn inode(&self) -> InodeNumber {
        match self {
            Self::Single(inode, _) | Self::Linked(inode, _) | Self::Directory(inode) => *inode,
        }
    }
}

/// What all names of a file with several names share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Links {
    /// Number of names.
    pub count: u32,
    /// The file's attributes.
    pub attributes: Opaque,
}

/// A change of one slot of a shard, made only if the slot still has the value from which the change was computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// What a name of a directory leads to, before and after.
    Name(Name, Option<Entry>, Option<Entry>),
    /// The parent of a directory, before and after.
    Parent(InodeNumber, InodeNumber),
    /// A directory's attributes, before and after.
    Attributes {
        /// Before.
        from: Opaque,
        /// After.
        to: Opaque,
        /// Whether `to` sets the time of the last change of its names; otherwise that time stays as it is.
        sets_changed: bool,
    },
    /// The link count and the attributes of a file, before and after. A count of 0 removes the shard.
    Links(Links, Links),
    /// Removes an empty directory that has exactly these buckets, or an empty bucket.
    End(Buckets),
    /// Replaces the entries of a directory that still has this version, and so many of them, by buckets that have the
    /// same entries.
    Split {
        /// The version that was copied.
        version: u64,
        /// How many entries were copied.
        entries: u64,
        /// Where the entries are.
        buckets: Buckets,
    },
}

/// A part of a shard that is locked separately.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// A name.
    Name(Name),
    /// The parent of a directory.
    Parent,
    /// A directory's attributes.
    Attributes,
    /// The whole shard: excludes every other lock and change.
    Whole,
}

impl Change {
    /// The slot that it changes.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Self::Name(name, ..) => Slot::Name(name.clone()),
            Self::Parent(..) => Slot::Parent,
            Self::Attributes { .. } => Slot::Attributes,
            Self::Links(..) | Self::End(_) | Self::Split { .. } => Slot::Whole,
        }
    }

    /// Whether a name is added, removed, or leads to something else: this sets the time of a directory's last change.
    #[must_use]
    pub fn changes_names(&self) -> bool {
        let inode = |entry: &Option<Entry>| entry.as_ref().map(Entry::inode);
        matches!(self, Self::Name(_, from, to) if inode(from) != inode(to))
    }
}

/// The number of an intent: a session, and a number within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntentId {
    /// The session of the node that began it.
    pub session: Session,
    /// Counts the intents of that session.
    pub number: u64,
}

/// The content of a lock: enough for anybody to complete the change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Intent {
    /// Its number.
    pub id: IntentId,
    /// The shard whose script commits it.
    pub decider: InodeNumber,
    /// The shards that it locks.
    pub locked: Vec<InodeNumber>,
}

/// The outcome of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It is done.
    Committed,
    /// It was not done, and never will be.
    Aborted,
}

/// A request to a shard, in one round trip.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Script {
    /// Make a shard to which no name leads yet. Succeeds if the same shard is already there.
    Make(Body),
    /// Read a slot that no intent has locked, and the number of settlements.
    Read(Slot),
    /// List at most this many entries of a directory, in the order in which their names were added, after a given
    /// place.
    List(u64, usize),
    /// Change slots that no intent has locked.
    Alone(Vec<Change>),
    /// Lock a slot for an intent, if the change could be made now.
    Prepare(Intent, Change),
    /// Change slots and record that the intent is committed, if no intent was settled since the number was read.
    Decide(Intent, u64, Vec<Change>),
    /// Return the outcome of an intent; one that is not committed is aborted from now on.
    Settle(IntentId),
    /// Apply or discard the changes of an intent's locks, and unlock.
    Finish(IntentId, Outcome),
    /// Note that no lock of the committed intent is left.
    Finished(IntentId),
    /// Forget a committed intent. Called by the intent's owner once all its locks are finished.
    Forget(IntentId),
    /// Add entries, each with its place, to a bucket to which no directory leads. Sent by its maker only.
    Fill(Vec<(u64, Name, Entry)>),
    /// Remove a bucket that was made for this directory, and to which that does not and will never lead. Sent by its
    /// maker only.
    Discard(InodeNumber),
    /// Note that names of a directory with buckets were changed just now.
    Touch,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// It was done.
    Done,
    /// What a name leads to, and the number of settlements.
    Name(Option<Entry>, u64),
    /// The parent of the directory.
    Parent(InodeNumber),
    /// A directory's attributes, and when its names last changed after those were set, or 0.
    Attributes(Opaque, u64),
    /// The link count of the file, and its attributes.
    Links(Links),
    /// Entries in the order in which their names were added, each with its place in that order. A name keeps its place
    /// while it exists, whatever it leads to. If `is_last`, there are none after these.
    Entries {
        /// The entries.
        entries: Vec<(u64, Name, Entry)>,
        /// Whether there are no more.
        is_last: bool,
        /// The version of the directory's content: each change makes a new one. 0 if not known.
        version: u64,
    },
    /// The outcome of the intent.
    Settled(Outcome),
    /// Nothing was done: this intent is in the way.
    Busy(Intent),
    /// Nothing was done: a slot is not what was expected, or another intent was settled meanwhile.
    Differs,
    /// Nothing was done: the directory has entries.
    NotEmpty,
    /// Nothing was done: the directory has so many entries that it is to be split before it gets another one.
    Full(u64),
    /// Nothing was done: the entries of the directory are in these buckets.
    Split(Buckets),
    /// Nothing was done: there is no such shard (any more).
    Gone,
}
