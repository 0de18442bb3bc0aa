//! Sends the requests of an operation and hands it the answers: waits before it aborts the intents of others, counts,
//! and starts again in a new epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_model::namespace::{
    Answer, Attempt, Change, Completion, Entry, EntryName, Failure as Ended, InodeNumber, Intent,
    IntentId, Links, Next, Operation, ReadName, Refusal, Script, Slot,
};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::super::{LEASE_MS, LeaseAnswer, Memory, NameStore, NamesError, State};
use super::change_under_way::{ChangeUnderWay, begun};
use super::listings::{CachedName, End, Listings, There};
use super::{Failure, Result, refused};

/// How often an operation is tried.
pub(super) const TRIES: u32 = 64;
/// The most round trips of an operation: for a deep directory, all directories above it are read. A faulty store's
/// answers may never end.
const STEPS_MAX: u32 = 100_000;
/// How long a script may find one new epoch after another: checks may follow each other closely.
const STALE_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for a check, and how often to ask.
const HELD_MAX: Duration = Duration::from_secs(10);
/// See [`HELD_MAX`].
const HELD_PAUSE: Duration = Duration::from_millis(20);
/// For how many times [`WaitLimit::limit`] intents may be in the way of one script, each for less than that.
const IN_THE_WAY_MAX: u32 = 10;
/// Numbers that are reserved at once.
const BLOCK: u64 = 4096;

/// How long an intent of another node may be in the way before it is aborted.
#[derive(Debug, Clone)]
pub struct WaitLimit {
    /// The limit.
    pub limit: Duration,
    /// The pause between two attempts.
    pub pause: Duration,
    /// The clock that measures both.
    pub clock: Clock,
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self {
            limit: Duration::from_millis(100),
            pause: Duration::from_millis(1),
            clock: Clock::MACHINE,
        }
    }
}

/// Counters of what was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Scripts.
    pub round_trips: u64,
    /// Intents of others that were in the way for longer than the limit, and were completed.
    pub completed: u64,
    /// Pauses for intents of others.
    pub waits: u64,
}

/// The result of a script.
type Sent<T> = std::result::Result<T, NamesError>;

/// Whether a script's arguments were computed from what was read.
const fn is_computed(script: &Script) -> bool {
    matches!(script, Script::Make(_) | Script::Alone(_) | Script::Prepare(..) | Script::Decide(..))
}

/// Whether a script changes what the listing of a directory contains.
const fn changes(script: &Script) -> bool {
    is_computed(script) || matches!(script, Script::Finish(..))
}

/// Whether a script may have run although it failed with this error.
const fn is_doubtful(error: &NamesError) -> bool {
    matches!(error, NamesError::NoAnswer(_) | NamesError::Unsound(_))
}

#[derive(Debug)]
pub(super) struct Driver {
    store: Arc<dyn NameStore>,
    session: Session,
    wait: WaitLimit,
    /// The next number of an intent.
    intents: AtomicU64,
    /// Reserved inode numbers: the next one, and their end.
    numbers: Mutex<(u64, u64)>,
    /// How often a new epoch of the store was found. Locked while a script is in progress, so that nothing that began
    /// in one epoch ends in the next.
    epochs: RwLock<u64>,
    /// Why the names could not be used when they were looked for last.
    refusal: Mutex<Option<NamesError>>,
    sent: AtomicU64,
    completed: AtomicU64,
    waits: AtomicU64,
    /// The cached listings of directories.
    pub(super) listings: Listings,
}

impl Driver {
    pub(super) fn new(store: Arc<dyn NameStore>, session: Session, wait: WaitLimit) -> Self {
        let [intents, sent, completed, waits] = [const { AtomicU64::new(0) }; 4];
        let (numbers, epochs) = (Mutex::new((0, 0)), RwLock::new(0));
        let (listings, refusal) = (Listings::default(), Mutex::default());
        Self {
            store,
            session,
            wait,
            intents,
            numbers,
            epochs,
            refusal,
            sent,
            completed,
            waits,
            listings,
        }
    }

    /// Why the names cannot be used, if the store has lost them.
    pub(super) fn refusal(&self) -> Option<NamesError> {
        self.refusal.lock().clone()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            round_trips: self.sent.load(Ordering::Relaxed),
            completed: self.completed.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }

    pub(super) fn memory(&self) -> super::super::Result<Option<Memory>> {
        self.store.memory()
    }

    /// A number that was never used.
    pub(super) fn number(&self) -> Result<InodeNumber> {
        self.numbers(1)
    }

    /// The first of `count` numbers that were never used.
    pub(super) fn numbers(&self, count: u64) -> Result<InodeNumber> {
        let mut numbers = self.numbers.lock();
        if numbers.1 - numbers.0 < count {
            *numbers = self.reserve(BLOCK)?;
        }
        let first = numbers.0;
        numbers.0 += count;
        Ok(InodeNumber(first))
    }

    /// A number that was never used, higher than all that any node has got before.
    pub(super) fn highest_number(&self) -> Result<InodeNumber> {
        self.reserve(1).map(|(first, _)| InodeNumber(first))
    }

    /// Has the store reserve `count` numbers: from the first one to before the last one.
    fn reserve(&self, count: u64) -> Result<(u64, u64)> {
        let mut epoch = *self.epochs.read();
        let begun = self.wait.clock.instant();
        let first = loop {
            self.sent.fetch_add(1, Ordering::Relaxed);
            match self.store.reserve(count) {
                Err(NamesError::Stale) if self.wait.clock.elapsed(begun) < STALE_LIMIT => {
                    self.refresh(epoch)?;
                    epoch = *self.epochs.read();
                }
                first => break first?,
            }
        };
        let end = first.checked_add(count);
        let end = end.ok_or_else(|| NamesError::Unsound("no number is left".to_owned()))?;
        Ok((first, end))
    }

    /// Moves to the epoch after `epoch`, if the store forgot nothing.
    fn refresh(&self, epoch: u64) -> Sent<()> {
        let mut epochs = self.epochs.write();
        if *epochs != epoch {
            return Ok(());
        }
        let clock = &self.wait.clock;
        let begun = clock.instant();
        self.listings.forget();
        loop {
            match self.store.refresh()? {
                State::Confirmed => break,
                State::Held if clock.elapsed(begun) < HELD_MAX => clock.sleep(HELD_PAUSE),
                state => {
                    *self.refusal.lock() = Some(state.refusal());
                    return Err(state.refusal());
                }
            }
        }
        *self.refusal.lock() = None;
        *epochs += 1;
        Ok(())
    }

    /// Runs a script of an operation that began in epoch `began`. While an intent is in the way, the script does
    /// nothing; this waits, because somebody may still be working on the intent.
    fn send(&self, shard: InodeNumber, script: &Script, began: &mut u64) -> Sent<Answer> {
        self.send_by(script, began, &mut || {
            if !changes(script) {
                return self.store.run(shard, script);
            }
            let change = self.listings.begin_change(shard, script);
            let until = self.now() + Duration::from_millis(LEASE_MS);
            let answer = self.store.change(shard, script);
            let end = match &answer {
                Ok((Answer::Done, Some(followed))) => End::Made(script, *followed, until),
                Err(error) if is_doubtful(error) => End::Lost,
                _ => End::Unknown,
            };
            self.listings.end_change(&change, &end, self.now());
            answer.map(|(answer, _)| answer)
        })
    }

    /// The same, with `run` to send the script.
    fn send_by(
        &self,
        script: &Script,
        began: &mut u64,
        run: &mut dyn FnMut() -> Sent<Answer>,
    ) -> Sent<Answer> {
        let mut first: Option<(IntentId, Instant)> = None;
        let sent = self.wait.clock.instant();
        loop {
            let epochs = self.epochs.read();
            if self.is_cut_off(*epochs) {
                return Err(NamesError::Stale);
            }
            if *epochs != *began {
                *began = *epochs;
                // What was done before may be gone: the script is computed again.
                if is_computed(script) {
                    return Ok(Answer::Differs);
                }
            }
            self.sent.fetch_add(1, Ordering::Relaxed);
            let answer = run();
            drop(epochs);
            let answer = match answer {
                Err(NamesError::Stale) if self.wait.clock.elapsed(sent) < STALE_LIMIT => {
                    self.refresh(*began)?;
                    continue;
                }
                answer => answer?,
            };
            let Answer::Busy(intent) = &answer else { return Ok(answer) };
            let since = match first {
                Some((id, since)) if id == intent.id => since,
                _ => self.wait.clock.instant(),
            };
            first = Some((intent.id, since));
            let WaitLimit { limit, clock, .. } = &self.wait;
            let is_long = clock.elapsed(sent) >= limit.saturating_mul(IN_THE_WAY_MAX);
            if is_long || clock.elapsed(since) >= *limit {
                self.completed.fetch_add(1, Ordering::Relaxed);
                return Ok(answer);
            }
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.wait.clock.sleep(self.wait.pause);
        }
    }

    /// The time for leases, which also run while the machine is suspended.
    pub(super) fn now(&self) -> Instant {
        self.wait.clock.boot_instant()
    }

    /// Asks for a lease of a directory of which a version is cached.
    fn lease(&self, directory: InodeNumber, version: u64) -> LeaseAnswer {
        let asked = self.now();
        self.sent.fetch_add(1, Ordering::Relaxed);
        let (leased, time) =
            self.store.lease(directory, version).unwrap_or((LeaseAnswer::No, Duration::ZERO));
        self.listings.lease((directory, version), leased, asked + time);
        leased
    }

    /// What a name leads to, if the cache is known to be right now.
    pub(super) fn known(&self, at: &EntryName) -> Option<There> {
        match self.listings.find(at, self.now()) {
            CachedName::Now(there) => Some(there),
            _ => None,
        }
    }

    /// The same, but asks the store whether the cache is still right.
    pub(super) fn known_still(&self, at: &EntryName) -> Option<There> {
        match self.listings.find(at, self.now()) {
            CachedName::Now(there) => Some(there),
            CachedName::Then(version, there) => {
                (self.lease(at.directory, version) != LeaseAnswer::No).then_some(there)
            }
            CachedName::Nothing => None,
        }
    }

    /// The answers to the first reads of an operation, if they are cached and a single script will compare them with
    /// what is there.
    fn known_names(&self, operation: &Operation) -> Vec<There> {
        let names = match operation {
            Operation::Expecting(_, operation) => return self.known_names(operation),
            Operation::Unlink(at) => vec![at],
            Operation::Rename(from, to, _) if from.directory == to.directory => vec![from, to],
            _ => return Vec::new(),
        };
        let is_alone =
            |there: &There| matches!(there, There::Nothing | There::Entry(Entry::Single(..)));
        let known = names.into_iter().map(|at| self.known(at).filter(is_alone));
        known.collect::<Option<_>>().unwrap_or_default()
    }

    fn epoch(&self) -> u64 {
        *self.epochs.read()
    }

    /// Begins a change in this thread.
    pub(super) fn begin_change(&self) -> ChangeUnderWay {
        ChangeUnderWay::begin(self.address(), self.epoch())
    }

    /// Whether this thread is making a change that began before an epoch.
    fn is_cut_off(&self, epoch: u64) -> bool {
        begun(self.address()).is_some_and(|begun| begun != epoch)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Reads, and completes intents that are in the way.
    pub(super) fn read(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        for _ in 0..TRIES {
            match self.send(shard, script, &mut self.epoch())? {
                Answer::Busy(intent) => self.complete(intent),
                answer => return Ok(answer),
            }
        }
        Err(Failure::Contended)
    }

    /// As [`read`](Self::read), for a name or the attributes of a directory; if the directory is read often, with a
    /// lease of it.
    pub(super) fn read_often(&self, directory: InodeNumber, slot: Slot) -> Result<Answer> {
        let script = Script::Read(slot);
        let Script::Read(slot) = &script else { unreachable!("it was just made") };
        if !self.listings.is_read_often(directory, self.now()) {
            return self.read(directory, &script);
        }
        for _ in 0..TRIES {
            let (mut before, mut leased) = (None, None);
            let sent = self.send_by(&script, &mut self.epoch(), &mut || {
                before = Some((self.now(), self.listings.changes(directory)));
                let (answer, lease) = self.store.read_leased(directory, slot)?;
                leased = lease;
                Ok(answer)
            });
            match (sent?, before) {
                (Answer::Busy(intent), _) => self.complete(intent),
                (answer, Some((asked, changes))) => {
                    let lease = leased.map(|(version, time)| (version, asked + time));
                    self.listings.keep((directory, slot), &answer, lease, changes);
                    return Ok(answer);
                }
                (answer, None) => return Ok(answer),
            }
        }
        Err(Failure::Contended)
    }

    /// What a name leads to.
    pub(super) fn entry(&self, at: &EntryName) -> Result<Entry> {
        match self.read(at.directory, &Script::Read(Slot::Name(at.name.clone())))? {
            Answer::Name(Some(entry), _) => Ok(entry),
            Answer::Differs => refused(Errno::NOTDIR),
            _ => refused(Errno::NOENT),
        }
    }

    /// The shard of a file that has had several names; `None` once it has lost the last one.
    pub(super) fn links(&self, shard: InodeNumber) -> Result<Option<Links>> {
        match self.read(shard, &Script::Read(Slot::Whole))? {
            Answer::Links(links) => Ok(Some(links)),
            _ => Ok(None),
        }
    }

    /// Makes a change of one slot; `false` if its value has changed.
    pub(super) fn replace(&self, shard: InodeNumber, change: Change) -> Result<bool> {
        self.replace_all(shard, vec![change])
    }

    /// Makes changes of several slots of one shard, all or none; `false` if one of the values has changed.
    pub(super) fn replace_all(&self, shard: InodeNumber, changes: Vec<Change>) -> Result<bool> {
        let script = Script::Alone(changes);
        for _ in 0..TRIES {
            match self.send(shard, &script, &mut self.epoch()) {
                Ok(Answer::Busy(intent)) => self.complete(intent),
                Ok(Answer::Done) => return Ok(true),
                Ok(_) => return Ok(false),
                Err(error) if is_doubtful(&error) => {
                    return Err(Failure::Unknown(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Contended)
    }

    fn complete(&self, intent: Intent) {
        let mut completion = Completion::new(intent);
        while let Some((shard, script)) = completion.step() {
            completion.answer(self.send(shard, &script, &mut self.epoch()).ok());
        }
    }

    /// Makes a change of names; returns what the names led to just before it was made.
    pub(super) fn operate(&self, operation: Operation) -> Result<Vec<ReadName>> {
        let number = self.intents.fetch_add(u64::from(TRIES), Ordering::Relaxed);
        let mut known = self.known_names(&operation).into_iter();
        let mut attempt = Attempt::new(operation, self.session, number, TRIES);
        let mut failed: Option<NamesError> = None;
        let mut full: Option<NamesError> = None;
        let mut began = self.epoch();
        for _ in 0..STEPS_MAX {
            match attempt.next() {
                // What it answered first may be gone by now.
                Next::End(Ok(())) if self.is_cut_off(self.epoch()) => {
                    return Err(Failure::Unknown(NamesError::Stale.to_string()));
                }
                Next::End(Ok(())) => return Ok(attempt.found().to_vec()),
                Next::End(Err(ended)) => return Err(failure(ended, failed)),
                // Its locks are gone; going on would start it again.
                Next::Send(_, Script::Read(_)) if full.is_some() => break,
                Next::Send(_, Script::Read(Slot::Name(_))) if known.len() > 0 => {
                    // The plan makes no intent, so the settlements are not used.
                    let entry = known.next().and_then(There::entry);
                    attempt.answer(Some(Answer::Name(entry, 0)));
                }
                Next::Send(shard, script) => match self.send(shard, &script, &mut began) {
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
        Ended::Contended => return failed.map_or(Failure::Contended, Failure::Store),
        Ended::NoAnswer => return Failure::Store(failed.unwrap_or_else(lost)),
        Ended::Unknown => return Failure::Unknown(failed.unwrap_or_else(lost).to_string()),
    })
}
