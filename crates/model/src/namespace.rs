//! Names of a file tier that several nodes share (I15): which changes of directories there are, and how one that
//! concerns several of them is atomic.
//!
//! A directory is one *shard* of a shared store: what is in it changes in one script. So does the number of names of a
//! file with several, in a shard of its own. A script compares and replaces ([`Change`]); which changes make a rename
//! is computed from what was read before, by [`Plan`]. One that touches a single shard is one script. Every other one
//! is an *intent*:
//!
//! 1. One shard is its *decider*. The others get a lock each, with what shall become of the locked slot
//!    ([`Script::Prepare`]).
//! 2. One script changes the decider and keeps that the intent is committed ([`Script::Decide`]). For every observer
//!    that is the moment at which all shards change: whoever meets a lock asks the decider before it answers.
//! 3. The locks are finished, and then the decider forgets.
//!
//! Nobody waits for anybody: who meets a lock of an intent that was not decided yet aborts it ([`Completion`]), so a
//! node that died holds up nothing. An abort counts the decider's settlements up, and a decision names the number that
//! was read before the first lock; so one that is on its way, however late, is refused.
//!
//! Two directories never come to be below each other: whoever moves one first locks in which directory it is, and then
//! looks at all directories above its new place. Of several who would make a circle one locks last; it finds, on its
//! way up, the others' locks, or the directories where they have moved to.
//!
//! What must hold around them:
//! - A message is sent once, and never again unless the store said that it did nothing. It may be lost, or be late by
//!   any time.
//! - Numbers of inodes and of intents are never used again.
//! - The store forgets nothing that it acknowledged. If it did, the names are built again from the directories.
//!
//! Explored by `tests/namespace_protocol`.

mod name;
mod operation;
mod plan;
mod shard;
mod transaction;

use crate::token::Session;

pub use name::{Name, Opaque};
pub use operation::{Attempt, Failure, Next, Operation};
pub use plan::{EntryName, Flags, Found, Plan, Refusal};
pub use shard::{Body, Shard, Shards};
pub use transaction::{Completion, Ended, Step, Transaction};

/// A file or directory. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

/// The directory that is its own parent.
pub const ROOT: InodeNumber = InodeNumber(1);

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// Something with this name only: a file, a symbolic link, a device. Its attributes lie beside the name.
    Single(InodeNumber, Opaque),
    /// Something that has had several names. Their number, and its attributes, lie in a shard of its own, the second
    /// number. That is another one each time, so that what is left of an attempt that was given up is in nobody's way.
    Linked(InodeNumber, InodeNumber),
    /// A directory, which is a shard.
    Directory(InodeNumber),
}

impl Entry {
    /// What it leads to.
    #[must_use]
    pub const fn inode(&self) -> InodeNumber {
        match self {
            Self::Single(inode, _) | Self::Linked(inode, _) | Self::Directory(inode) => *inode,
        }
    }
}

/// What all names of a file with several share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Links {
    /// How many there are.
    pub count: u32,
    /// The file's attributes.
    pub attributes: Opaque,
}

/// A change of one slot of a shard, which is made only if the slot is what it was computed from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// What a name of a directory leads to, before and after.
    Name(Name, Option<Entry>, Option<Entry>),
    /// In which directory a directory is, before and after.
    Parent(InodeNumber, InodeNumber),
    /// A directory's attributes, before and after.
    Attributes {
        /// Before.
        from: Opaque,
        /// After.
        to: Opaque,
        /// Whether they say when its names last changed; otherwise that stays as it is.
        sets_changed: bool,
    },
    /// How many names a file has, and its attributes, before and after. With none, its shard ends.
    Links(Links, Links),
    /// An empty directory ends.
    End,
}

/// One part of a shard that has a lock of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// A name.
    Name(Name),
    /// In which directory a directory is.
    Parent,
    /// A directory's attributes.
    Attributes,
    /// All of the shard: excludes every other lock and change.
    Whole,
}

impl Change {
    /// What it changes.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Self::Name(name, ..) => Slot::Name(name.clone()),
            Self::Parent(..) => Slot::Parent,
            Self::Attributes { .. } => Slot::Attributes,
            Self::Links(..) | Self::End => Slot::Whole,
        }
    }

    /// Whether a name comes, goes, or leads to something else: what the time of a directory's last change is about.
    #[must_use]
    pub fn changes_names(&self) -> bool {
        let inode = |entry: &Option<Entry>| entry.as_ref().map(Entry::inode);
        matches!(self, Self::Name(_, from, to) if inode(from) != inode(to))
    }
}

/// A number for an intent: of the node's session, and in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IntentId {
    /// Whose it is.
    pub session: Session,
    /// Counts that session's.
    pub number: u64,
}

/// What a lock says: enough for anybody to complete the change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Intent {
    /// Its number.
    pub id: IntentId,
    /// The shard whose script commits it.
    pub decider: InodeNumber,
    /// The shards with locks of it.
    pub locked: Vec<InodeNumber>,
}

/// What became of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It is done.
    Committed,
    /// It was not done, and never will be.
    Aborted,
}

/// What a shard is asked, in one round trip.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Script {
    /// Make a shard, to which no name leads yet. Done if it is there just so.
    Make(Body),
    /// What is there, of a slot that no intent has locked, and the number of settlements.
    Read(Slot),
    /// A directory's entries behind a place in the order in which their names came, at most so many.
    List(u64, usize),
    /// Change slots that no intent has locked.
    Alone(Vec<Change>),
    /// Lock a slot for an intent, if the change could be made now.
    Prepare(Intent, Change),
    /// Change slots, and keep that the intent is committed, if no intent was settled since the number was read.
    Decide(Intent, u64, Vec<Change>),
    /// Say what became of an intent; one that is not committed is aborted from now on.
    Settle(IntentId),
    /// Make the changes of an intent's locks, or not, and unlock.
    Finish(IntentId, Outcome),
    /// No lock of the committed intent is left.
    Finished(IntentId),
    /// Nobody will ask for the intent any more: from whose it is, after all locks are finished.
    Forget(IntentId),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// It did that.
    Done,
    /// What a name leads to, and the number of settlements.
    Name(Option<Entry>, u64),
    /// In which directory the directory is.
    Parent(InodeNumber),
    /// A directory's attributes, and when its names last changed since those were set, or 0.
    Attributes(Opaque, u64),
    /// How many names the file has, and its attributes.
    Links(Links),
    /// Entries, in the order in which their names came, each with its place in it. A name keeps its place as long as
    /// it is there, whatever it leads to. Fewer than were asked for are the last ones if `is_last`.
    Entries {
        /// The entries.
        entries: Vec<(u64, Name, Entry)>,
        /// Whether there are no more.
        is_last: bool,
        /// Which content of the directory these are part of: each change of it makes another one. 0 where that is not known.
        version: u64,
    },
    /// What became of the intent.
    Settled(Outcome),
    /// Nothing was done: this intent is in the way.
    Busy(Intent),
    /// Nothing was done: a slot is not what was expected, or another intent was settled meanwhile.
    Differs,
    /// Nothing was done: the directory has entries.
    NotEmpty,
    /// Nothing was done: there is no such shard (any more).
    Gone,
}
