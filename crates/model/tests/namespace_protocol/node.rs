//! A node: its operation, and what it does for it.

use halocline_model::namespace::{
    Answer, Attempt, Buckets, Completion, Failure, InodeNumber, IntentId, Next, Operation, Script,
    Split, SplitEnd,
};
use halocline_model::token::Session;

use super::canary::Canary;
use super::listing::Listing;

/// How often an operation begins, also once a directory was split for it, and how often it has one split.
const TRIES: u32 = 3;
const SPLITS: u64 = 2;
/// How many buckets a directory gets here, and how many entries are copied at once.
pub(crate) const BUCKETS: u64 = 2;
const PAGE: usize = 2;
/// Numbers of buckets; each node has some, and each split of it.
pub(crate) const FRESH_BUCKETS: u64 = 1000;

/// What a node does now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Operation(Attempt),
    /// A split, for which its operation waits.
    Split(Attempt, Split),
    /// Completing what was in the way of a split.
    Completion(Attempt, Completion),
    Listing(Listing),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// Its session, from which the numbers of its buckets follow.
    pub(crate) number: u64,
    /// `None` of one that lists.
    pub(crate) operation: Option<Operation>,
    pub(crate) doing: Doing,
    splits: u64,
    pub(crate) is_up: bool,
    /// How often its operation was committed.
    pub(crate) commits: u8,
}

impl Node {
    pub(crate) fn new(number: u64, operation: &Operation) -> Self {
        let attempt = Attempt::new(operation.clone(), Session(number), 0, TRIES);
        let (operation, doing) = (Some(operation.clone()), Doing::Operation(attempt));
        Self { number, operation, doing, splits: 0, is_up: true, commits: 0 }
    }

    pub(crate) const fn listing(listing: Listing) -> Self {
        let doing = Doing::Listing(listing);
        Self { number: 0, operation: None, doing, splits: 0, is_up: true, commits: 0 }
    }

    /// What it sends now; `None` at the end.
    pub(crate) fn message(&self) -> Option<(InodeNumber, Script)> {
        match &self.doing {
            Doing::Operation(attempt) => match attempt.next() {
                Next::Send(shard, script) => Some((shard, script)),
                Next::End(_) => None,
            },
            Doing::Split(_, split) => split.step().ok(),
            Doing::Completion(_, completion) => completion.step(),
            Doing::Listing(listing) => listing.message(),
        }
    }

    pub(crate) fn result(&self) -> Option<Result<(), Failure>> {
        match &self.doing {
            Doing::Operation(attempt) => match attempt.next() {
                Next::End(result) => Some(result),
                Next::Send(..) => None,
            },
            _ => None,
        }
    }

    pub(crate) fn answer(&mut self, answer: Option<Answer>, canary: Option<Canary>) {
        match &mut self.doing {
            Doing::Operation(attempt) => attempt.answer(answer),
            Doing::Split(_, split) => split.answer(answer),
            Doing::Completion(_, completion) => completion.answer(answer),
            Doing::Listing(listing) => listing.answer(answer, canary),
        }
        self.doing = match std::mem::replace(&mut self.doing, Doing::Listing(Listing::over())) {
            Doing::Operation(attempt) => self.operating(attempt),
            Doing::Split(attempt, split) => match split.step().err().cloned() {
                None => Doing::Split(attempt, split),
                Some(SplitEnd::Again(Some(intent))) => {
                    Doing::Completion(attempt, Completion::new(intent))
                }
                Some(SplitEnd::Split(buckets)) => self.again(&attempt, Some(buckets)),
                Some(_) => self.again(&attempt, None),
            },
            Doing::Completion(attempt, completion) if completion.step().is_none() => {
                self.again(&attempt, None)
            }
            doing => doing,
        };
    }

    /// An operation that is refused because a directory is full has it split, and begins again.
    fn operating(&mut self, attempt: Attempt) -> Doing {
        let Next::End(Err(Failure::Full(directory, _))) = attempt.next() else {
            return Doing::Operation(attempt);
        };
        if self.splits == SPLITS {
            return Doing::Operation(attempt);
        }
        self.splits += 1;
        let first = FRESH_BUCKETS * (self.number + 1) + BUCKETS * self.splits;
        let numbers: Vec<_> = (first..first + BUCKETS).map(InodeNumber).collect();
        let buckets = Buckets::new(&numbers).expect("they are different");
        Doing::Split(attempt, Split::new(directory, buckets, PAGE))
    }

    fn again(&self, attempt: &Attempt, buckets: Option<Buckets>) -> Doing {
        let mut known = attempt.buckets().clone();
        if let (Next::End(Err(Failure::Full(directory, _))), Some(buckets)) =
            (attempt.next(), buckets)
        {
            known.insert(directory, buckets);
        }
        let number = u64::from(TRIES) * self.splits;
        let id = IntentId { session: Session(self.number), number };
        let operation = self.operation.clone().expect("only an operation is refused");
        Doing::Operation(Attempt::knowing(known, operation, id, TRIES))
    }
}
