//! Operations on names: sends what they need, and hands them the answers; splits a directory that is full.

use std::collections::BTreeMap;

use halocline_model::namespace::{
    Answer, Attempt, Buckets, Entry, EntryName, Failure as Ended, InodeNumber, IntentId, Next,
    Operation, ReadName, Refusal, Script, Slot, Split, SplitEnd,
};
use rustix::io::Errno;

use super::super::NamesError;
use super::driver::{Driver, TRIES, is_computed, is_doubtful};
use super::listings::There;
use super::{Failure, Result};

/// The most round trips of an operation: for a deep directory, all directories above it are read. A faulty store's
/// answers may never end.
const STEPS_MAX: u32 = 100_000;
/// The most round trips of a split.
const SPLIT_STEPS_MAX: u32 = 10_000_000;
/// How many entries of a directory that is split are read or written at once.
const SPLIT_PAGE: usize = 512;
/// How often a node tries to split a directory in which attributes keep changing, before it lets it grow to twice its
/// size first.
const SPLITS_MAX: u64 = 3;

/// The buckets of directories, as far as they are known.
type Known = BTreeMap<InodeNumber, Buckets>;
/// How an attempt ended: what was found, or the directory that is to be split first, with how many entries it has.
type Attempted = Result<std::result::Result<Vec<ReadName>, (InodeNumber, u64)>>;

/// Operations of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operations<'a> {
    driver: &'a Driver,
}

/// The shard that has a name.
fn shard(known: &Known, at: &EntryName) -> InodeNumber {
    known.get(&at.directory).and_then(|buckets| buckets.of(&at.name)).unwrap_or(at.directory)
}

impl<'a> Operations<'a> {
    pub(super) const fn by(driver: &'a Driver) -> Self {
        Self { driver }
    }

    /// Makes a change of names; returns what the names led to just before it was made.
    pub(super) fn operate(self, operation: &Operation) -> Result<Vec<ReadName>> {
        let mut splits = 0;
        for _ in 0..TRIES {
            let known = self.known(operation);
            let (directory, entries) = match self.attempt(operation, known)? {
                Ok(found) => {
                    self.touch(operation);
                    return Ok(found);
                }
                Err(full) => full,
            };
            splits += 1;
            if !self.split(directory, entries)? && splits >= SPLITS_MAX {
                self.driver.spare(directory, entries.saturating_mul(2));
            }
        }
        Err(Failure::Contended)
    }

    /// The buckets of the directories of its names.
    fn known(self, operation: &Operation) -> Known {
        let of = |at: &EntryName| Some((at.directory, self.driver.buckets.of(at.directory)?));
        operation.names().into_iter().filter_map(of).collect()
    }

    /// Directories with buckets do not notice by themselves that their names change.
    fn touch(self, operation: &Operation) {
        let mut directories: Vec<_> =
            operation.changed_names().into_iter().map(|at| at.directory).collect();
        directories.dedup();
        for directory in directories {
            self.driver.touch(directory);
        }
    }

    /// Splits a directory, unless another thread has; `false` if it could not be split now.
    fn split(self, directory: InodeNumber, entries: u64) -> Result<bool> {
        let _one_at_a_time = self.driver.splitting.lock();
        if self.driver.buckets.of(directory).is_some() {
            return Ok(true);
        }
        let first = self.driver.numbers(Buckets::COUNT as u64)?.0;
        let numbers: Vec<_> = (first..first + Buckets::COUNT as u64).map(InodeNumber).collect();
        let buckets = Buckets::new(&numbers).expect("they are different");
        let mut split = Split::new(directory, buckets, SPLIT_PAGE);
        let first_epoch = self.driver.epoch();
        for _ in 0..SPLIT_STEPS_MAX {
            let (shard, script) = match split.step() {
                Ok(message) => message,
                Err(SplitEnd::Split(buckets)) => {
                    self.driver.buckets.learn(directory, buckets);
                    return Ok(true);
                }
                Err(SplitEnd::Again(intent)) => {
                    if let Some(intent) = intent {
                        self.driver.complete(intent.clone());
                    }
                    return Ok(false);
                }
                Err(SplitEnd::Unfit) => {
                    self.driver.spare(directory, u64::MAX);
                    return Ok(false);
                }
                Err(SplitEnd::Unknown) => return Ok(false),
            };
            let mut epoch = first_epoch;
            let answer = self.driver.send(shard, &script, &mut epoch);
            split.answer(match answer {
                // A check has begun an epoch, and may have removed buckets to which nothing leads.
                Ok(_) if epoch != first_epoch => Some(Answer::Differs),
                Ok(answer) => Some(answer),
                Err(error) if is_doubtful(&error) => None,
                // There is no room for a second copy.
                Err(NamesError::Full(_)) => {
                    self.driver.spare(directory, entries.saturating_mul(2));
                    Some(Answer::Differs)
                }
                Err(_) => Some(Answer::Differs),
            });
        }
        Ok(false)
    }

    /// The answers to the first reads of an operation, if they are cached and a single script will compare them with
    /// what is there.
    fn known_names(self, operation: &Operation, known: &Known) -> Vec<There> {
        let names = match operation {
            Operation::Expecting(_, operation) => return self.known_names(operation, known),
            Operation::Unlink(at) => vec![at],
            Operation::Rename(from, to, _) if shard(known, from) == shard(known, to) => {
                vec![from, to]
            }
            _ => return Vec::new(),
        };
        let is_alone =
            |there: &There| matches!(there, There::Nothing | There::Entry(Entry::Single(..)));
        let there = names.into_iter().map(|at| self.driver.known(at).filter(is_alone));
        there.collect::<Option<_>>().unwrap_or_default()
    }

    /// One attempt, to its end; with what the names led to just before it was made.
    fn attempt(self, operation: &Operation, known: Known) -> Attempted {
        let id = IntentId { session: self.driver.session(), number: self.driver.intents(TRIES) };
        let mut there = self.known_names(operation, &known).into_iter();
        let remembered: Vec<InodeNumber> = known.keys().copied().collect();
        let mut attempt = Attempt::knowing(known, operation.clone(), id, TRIES);
        let mut failed: Option<NamesError> = None;
        let mut full: Option<NamesError> = None;
        let mut began = self.driver.epoch();
        for _ in 0..STEPS_MAX {
            match attempt.next() {
                // What it answered first may be gone by now.
                Next::End(Ok(())) if self.driver.is_cut_off(self.driver.epoch()) => {
                    return Err(Failure::Unknown(NamesError::Stale.to_string()));
                }
                Next::End(ended) => {
                    for directory in remembered {
                        if !attempt.buckets().contains_key(&directory) {
                            self.driver.buckets.forget(directory);
                        }
                    }
                    self.driver.buckets.learn_all(attempt.buckets());
                    return match ended {
                        Ok(()) => Ok(Ok(attempt.found().to_vec())),
                        Err(Ended::Full(directory, entries)) => Ok(Err((directory, entries))),
                        Err(ended) => Err(failure(ended, failed)),
                    };
                }
                // Its locks are gone; going on would start it again.
                Next::Send(_, Script::Read(_)) if full.is_some() => break,
                Next::Send(_, Script::Read(Slot::Name(_))) if there.len() > 0 => {
                    // The plan makes no intent, so the settlements are not used.
                    let entry = there.next().and_then(There::entry);
                    attempt.answer(Some(Answer::Name(entry, 0)));
                }
                Next::Send(shard, script) => match self.driver.send(shard, &script, &mut began) {
                    Ok(answer) => attempt.answer(Some(answer)),
                    // The store is full, so nobody else could abort what is locked.
                    Err(error @ NamesError::Full(_))
                        if matches!(script, Script::Prepare(..) | Script::Decide(..)) =>
                    {
                        full = Some(error);
                        attempt.answer(Some(Answer::Differs));
                    }
                    // Nothing was done, and nothing will be.
                    Err(error) if is_computed(&script) && !is_doubtful(&error) => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        failed = Some(error);
                        attempt.answer(None);
                    }
                },
            }
        }
        let nowhere = || NamesError::Unsound("directories that lead nowhere".to_owned());
        Err(full.unwrap_or_else(nowhere).into())
    }
}

/// The failure that ended an operation, given the last error of the store.
fn failure(ended: Ended, failed: Option<NamesError>) -> Failure {
    let lost = || NamesError::NoAnswer("an answer was lost".to_owned());
    Failure::Refused(match ended {
        Ended::Refused(Refusal::Exists) => Errno::EXIST,
        Ended::Refused(Refusal::Absent) => Errno::NOENT,
        Ended::Refused(Refusal::Another) => Errno::STALE,
        Ended::Refused(Refusal::NotADirectory) => Errno::NOTDIR,
        Ended::Refused(Refusal::IsADirectory) => Errno::ISDIR,
        Ended::Refused(Refusal::TooManyNames) => Errno::MLINK,
        Ended::Loop => Errno::INVAL,
        Ended::NotEmpty | Ended::Refused(Refusal::Inside) => Errno::NOTEMPTY,
        // It was split each time, or tried to be.
        Ended::Full(..) => return Failure::Contended,
        Ended::Contended => return failed.map_or(Failure::Contended, Failure::Store),
        Ended::NoAnswer => return Failure::Store(failed.unwrap_or_else(lost)),
        Ended::Unknown => return Failure::Unknown(failed.unwrap_or_else(lost).to_string()),
    })
}
