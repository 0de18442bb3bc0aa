//! An operation from its first read to its result: it reads, plans and commits, and starts again if another change
//! came between. The caller sends each request and hands in the answer.

use std::collections::BTreeMap;

use super::{
    Answer, Buckets, Completion, Ended, Entry, EntryName, Flags, InodeNumber, IntentId, Links,
    Opaque, Plan, ReadName, Refusal, Script, Slot, Step, Transaction,
};
use crate::token::Session;

/// A change of names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Make a file, symbolic link or device with this number.
    Create(EntryName, InodeNumber, Opaque),
    /// Make a directory with this number.
    MakeDirectory(EntryName, InodeNumber, Opaque),
    /// Remove a file's name.
    Unlink(EntryName),
    /// Remove an empty directory.
    RemoveDirectory(EntryName),
    /// Give the file of the first name the second name, too. The shard numbers from this one on, one for each try,
    /// were never used.
    Link(EntryName, EntryName, InodeNumber),
    /// Move what has the first name to the second name.
    Rename(EntryName, EntryName, Flags),
    /// Do this if each of its names leads to the inode that is given for it, or, where none is given, to nothing. What
    /// is not there is no reason against it: the operation itself is refused if it needs that.
    Expecting(Vec<Option<InodeNumber>>, Box<Self>),
}

impl Operation {
    /// The same, but with `expected` only if each of its names leads to that ([`Expecting`](Self::Expecting)).
    #[must_use]
    pub fn expecting(self, expected: Option<Vec<Option<InodeNumber>>>) -> Self {
        match expected {
            Some(expected) => Self::Expecting(expected, Box::new(self)),
            None => self,
        }
    }

    /// The names that it reads and changes.
    #[must_use]
    pub fn names(&self) -> Vec<&EntryName> {
        match self {
            Self::Create(at, ..)
            | Self::MakeDirectory(at, ..)
            | Self::Unlink(at)
            | Self::RemoveDirectory(at) => vec![at],
            Self::Link(from, to, _) | Self::Rename(from, to, _) => vec![from, to],
            Self::Expecting(_, operation) => operation.names(),
        }
    }

    /// The names of which it changes to what they lead: the times of their directories change.
    #[must_use]
    pub fn changed_names(&self) -> Vec<&EntryName> {
        match self {
            Self::Link(_, to, _) => vec![to],
            Self::Expecting(_, operation) => operation.changed_names(),
            _ => self.names(),
        }
    }

    /// The changes of try number `attempt`, counted from 0; `None` if there is nothing to do.
    fn plan(&self, found: &[ReadName], attempt: u64) -> Result<Option<Plan>, Refusal> {
        match self {
            Self::Create(_, inode, attributes) => {
                Plan::create(&found[0], *inode, attributes.clone()).map(Some)
            }
            Self::MakeDirectory(_, inode, attributes) => {
                Plan::make_directory(&found[0], *inode, attributes.clone()).map(Some)
            }
            Self::Unlink(_) => Plan::unlink(&found[0]).map(Some),
            Self::RemoveDirectory(_) => Plan::remove_directory(&found[0]).map(Some),
            Self::Link(.., InodeNumber(first)) => {
                Plan::link(&found[0], &found[1], InodeNumber(first + attempt)).map(Some)
            }
            Self::Rename(.., flags) => Plan::rename(&found[0], &found[1], *flags),
            Self::Expecting(expected, operation) => {
                let is_another = |(found, expected): (&ReadName, &Option<InodeNumber>)| {
                    let found = found.entry.as_ref().map(Entry::inode);
                    found.is_some() && found != *expected
                };
                if found.iter().zip(expected).any(is_another) {
                    return Err(Refusal::Another);
                }
                operation.plan(found, attempt)
            }
        }
    }
}

/// Why an operation was not done, or may not have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The operation cannot be done on what is there.
    Refused(Refusal),
    /// A directory would be moved below itself: `EINVAL`.
    Loop,
    /// A directory has entries: `ENOTEMPTY`.
    NotEmpty,
    /// Nothing was done: this directory has so many entries that it is to be split before it gets another one.
    Full(InodeNumber, u64),
    /// Other changes came between at every try.
    Contended,
    /// Nothing was changed: a read had no answer.
    NoAnswer,
    /// The answer was lost, and nobody knows whether it was done.
    Unknown,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Next {
    /// Send this request to a shard, once.
    Send(InodeNumber, Script),
    /// The result.
    End(Result<(), Failure>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    /// The index of a name; whether its entry is known, so that its link count is read next.
    Read(usize, bool),
    Commit(Transaction),
    Complete(Completion),
    End(Result<(), Failure>),
}

/// An operation in progress.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    operation: Operation,
    id: IntentId,
    /// How often it started again, and how often it still may.
    again: u64,
    more: u32,
    found: Vec<ReadName>,
    /// The buckets of directories, as far as they are known.
    buckets: BTreeMap<InodeNumber, Buckets>,
    /// What was read before, if there was nothing to do then.
    idle: Vec<ReadName>,
    stage: Stage,
}

/// Whether what was read of two names was not there at one time: what had the first name got the second one in between. A
/// file that has both has several names.
fn is_moved_between(found: &[ReadName]) -> bool {
    let [from, to] = found else { return false };
    let (Some(one), Some(other)) = (&from.entry, &to.entry) else { return false };
    let has_several = |entry: &Entry| matches!(entry, Entry::Linked(..));
    from.entry_name != to.entry_name
        && one.inode() == other.inode()
        && !(has_several(one) && has_several(other))
}

impl Attempt {
    /// Begins an operation. The session must never have used the `tries` intent numbers from `number` on, nor use them
    /// again.
    #[must_use]
    pub fn new(operation: Operation, session: Session, number: u64, tries: u32) -> Self {
        Self::knowing(BTreeMap::new(), operation, IntentId { session, number }, tries)
    }

    /// The same with the first number of an intent, knowing the buckets of some directories.
    #[must_use]
    pub fn knowing(
        buckets: BTreeMap<InodeNumber, Buckets>,
        operation: Operation,
        id: IntentId,
        tries: u32,
    ) -> Self {
        let (more, stage) = (tries.saturating_sub(1), Stage::Read(0, false));
        let (found, idle) = (Vec::new(), Vec::new());
        let mut new = Self { operation, id, again: 0, more, found, buckets, idle, stage };
        if let Operation::Create(at, ..) | Operation::MakeDirectory(at, ..) = &new.operation {
            // Most names to be created are free: they are read only if that assumption was wrong.
            let free = new.found_at(at.clone(), None, 0);
            new.found.push(free);
            new.stage = new.read(1);
        }
        new
    }

    fn found_at(&self, at: EntryName, entry: Option<Entry>, settlements: u64) -> ReadName {
        let shard = self.shard(&at);
        let buckets = entry.as_ref().and_then(|entry| self.buckets.get(&entry.inode()));
        let buckets = buckets.cloned().unwrap_or_default();
        ReadName { entry_name: at, shard, entry, settlements, buckets, links: None }
    }

    /// The shard that has a name, as far as is known.
    fn shard(&self, at: &EntryName) -> InodeNumber {
        let buckets = self.buckets.get(&at.directory);
        buckets.and_then(|buckets| buckets.of(&at.name)).unwrap_or(at.directory)
    }

    /// What was read of the operation's names. Once it has succeeded: what they led to just before it was done.
    #[must_use]
    pub fn found(&self) -> &[ReadName] {
        &self.found
    }

    /// The buckets of directories that are known, also those that it was told.
    #[must_use]
    pub const fn buckets(&self) -> &BTreeMap<InodeNumber, Buckets> {
        &self.buckets
    }

    /// What to send now, or the result.
    #[must_use]
    pub fn next(&self) -> Next {
        match &self.stage {
            Stage::Read(at, false) => {
                let name = self.operation.names()[*at];
                Next::Send(self.shard(name), Script::Read(Slot::Name(name.name.clone())))
            }
            Stage::Read(at, true) => match &self.found[*at].entry {
                Some(Entry::Linked(_, shard)) => Next::Send(*shard, Script::Read(Slot::Whole)),
                _ => unreachable!("only a file with several names has a count"),
            },
            Stage::Commit(transaction) => match transaction.step() {
                Step::Send(shard, script) => Next::Send(shard, script),
                Step::End(_) => unreachable!("what has ended is not a stage"),
            },
            Stage::Complete(completion) => {
                let (shard, script) = completion.step().expect("what has ended is not a stage");
                Next::Send(shard, script)
            }
            Stage::End(result) => Next::End(*result),
        }
    }

    /// Takes the answer to what was sent; `None` if none came in time.
    pub fn answer(&mut self, answer: Option<Answer>) {
        if let Some(Answer::Split(buckets)) = &answer
            && let Next::Send(directory, _) = self.next()
        {
            self.buckets.insert(directory, buckets.clone());
        }
        let stage = std::mem::replace(&mut self.stage, Stage::End(Err(Failure::NoAnswer)));
        self.stage = match (stage, answer) {
            (Stage::Read(..), None) => return,
            (Stage::Read(..), Some(Answer::Busy(intent))) => {
                Stage::Complete(Completion::new(intent))
            }
            (Stage::Read(at, false), Some(Answer::Name(entry, settlements))) => {
                self.name(at, entry, settlements)
            }
            (Stage::Read(at, true), Some(Answer::Links(links @ Links { count: 1.., .. }))) => {
                self.found[at].links = Some(links);
                self.read(at + 1)
            }
            (Stage::Read(at, false), Some(other)) => self.nowhere(at, &other),
            (Stage::Read(_, true), Some(_)) => self.anew(),
            (Stage::Commit(mut transaction), answer) => {
                transaction.answer(answer);
                self.committing(transaction)
            }
            (Stage::Complete(mut completion), answer) => {
                completion.answer(answer);
                if completion.step().is_some() { Stage::Complete(completion) } else { self.anew() }
            }
            (Stage::End(result), _) => Stage::End(result),
        };
    }

    fn name(&mut self, at: usize, entry: Option<Entry>, settlements: u64) -> Stage {
        let entry_name = self.operation.names()[at].clone();
        let is_linked = matches!(entry, Some(Entry::Linked(..)));
        let found = self.found_at(entry_name, entry, settlements);
        self.found.push(found);
        if is_linked { Stage::Read(at, true) } else { self.read(at + 1) }
    }

    /// A shard that does not have the name. If that was a bucket, the directory says whether it is gone, too.
    fn nowhere(&mut self, at: usize, answer: &Answer) -> Stage {
        let name = self.operation.names()[at].clone();
        let is_bucket = self.shard(&name) != name.directory;
        match answer {
            Answer::Split(_) => self.anew(),
            _ if is_bucket => {
                self.buckets.remove(&name.directory);
                self.anew()
            }
            _ => Stage::End(Err(Failure::Refused(Refusal::Absent))),
        }
    }

    /// The next read, or the commit once everything is known.
    fn read(&mut self, at: usize) -> Stage {
        if at < self.operation.names().len() {
            return Stage::Read(at, false);
        }
        if is_moved_between(&self.found) {
            return self.anew();
        }
        match self.operation.plan(&self.found, self.again) {
            Ok(Some(plan)) => Stage::Commit(Transaction::new(plan, self.id)),
            // No script compares the names, and the first one may have been moved to the second one in between.
            Ok(None) if self.idle != self.found => {
                self.idle.clone_from(&self.found);
                self.anew()
            }
            Ok(None) => Stage::End(Ok(())),
            Err(refusal) => Stage::End(Err(Failure::Refused(refusal))),
        }
    }

    fn committing(&mut self, transaction: Transaction) -> Stage {
        let Step::End(ended) = transaction.step() else {
            return Stage::Commit(transaction);
        };
        match ended {
            Ended::Done => Stage::End(Ok(())),
            Ended::Again(Some(intent)) => Stage::Complete(Completion::new(intent)),
            Ended::Again(None) => self.anew(),
            Ended::Loop => Stage::End(Err(Failure::Loop)),
            Ended::NotEmpty => Stage::End(Err(Failure::NotEmpty)),
            Ended::Full(entries) => Stage::End(Err(Failure::Full(transaction.decider(), entries))),
            Ended::Unknown => Stage::End(Err(Failure::Unknown)),
        }
    }

    fn anew(&mut self) -> Stage {
        let Some(more) = self.more.checked_sub(1) else {
            return Stage::End(Err(Failure::Contended));
        };
        self.more = more;
        self.again += 1;
        self.id.number += 1;
        self.found.clear();
        Stage::Read(0, false)
    }
}
