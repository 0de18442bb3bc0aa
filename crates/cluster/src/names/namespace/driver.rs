//! Sends the requests of an operation and hands it the answers: waits before it aborts the intents of others, counts,
//! and starts again in a new epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_model::namespace::{
    Answer, Change, Completion, Entry, EntryName, InodeNumber, Intent, IntentId, Links, Name,
    Script, Slot,
};
use halocline_model::token::Session;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::super::{LEASE_MS, LeaseAnswer, Memory, NameStore, NamesError, State};
use super::change_under_way::{ChangeUnderWay, begun};
use super::known_buckets::KnownBuckets;
use super::listings::{CachedName, End, Listings, There};
use super::wait_limit::WaitLimit;
use super::{Failure, Result, refused};

/// How often an operation is tried.
pub(super) const TRIES: u32 = 64;
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
pub(super) type Sent<T> = std::result::Result<T, NamesError>;

/// Whether a script's arguments were computed from what was read.
pub(super) const fn is_computed(script: &Script) -> bool {
    matches!(
        script,
        Script::Make(_)
            | Script::Alone(_)
            | Script::Prepare(..)
            | Script::Decide(..)
            | Script::Fill(_)
            | Script::Discard(_)
    )
}

/// Whether a script changes what the listing of a directory contains.
const fn changes(script: &Script) -> bool {
    is_computed(script) || matches!(script, Script::Finish(..) | Script::Touch)
}

/// Whether a script may have run although it failed with this error.
pub(super) const fn is_doubtful(error: &NamesError) -> bool {
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
    /// The cached listings of directories and buckets.
    pub(super) listings: Listings,
    /// Which directories have buckets.
    pub(super) buckets: KnownBuckets,
    /// Locked by a thread that splits a directory.
    pub(super) splitting: Mutex<()>,
}

impl Driver {
    pub(super) fn new(store: Arc<dyn NameStore>, session: Session, wait: WaitLimit) -> Self {
        let [intents, sent, completed, waits] = [const { AtomicU64::new(0) }; 4];
        let (numbers, epochs) = (Mutex::new((0, 0)), RwLock::new(0));
        let (listings, refusal) = (Listings::default(), Mutex::default());
        let (buckets, splitting) = (KnownBuckets::default(), Mutex::default());
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
            buckets,
            splitting,
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

    pub(super) const fn session(&self) -> Session {
        self.session
    }

    /// The first of `count` numbers of intents that this node never used.
    pub(super) fn intents(&self, count: u32) -> u64 {
        self.intents.fetch_add(u64::from(count), Ordering::Relaxed)
    }

    /// See [`NameStore::spare`].
    pub(super) fn spare(&self, directory: InodeNumber, entries: u64) {
        self.store.spare(directory, entries);
    }

    /// Moves on the time of a directory of which names were changed in buckets, unless it does so by itself just now. Then
    /// whoever looks at it after this call sees a later time than before the change.
    pub(super) fn touch(&self, directory: InodeNumber) {
        let sent = self.now();
        let Some(times_set) = self.buckets.must_touch(directory, sent) else { return };
        match self.send(directory, &Script::Touch, &mut self.epoch()) {
            Ok(Answer::Done) => {
                let lasts = self.store.touched_for();
                self.buckets.touched(directory, times_set, (sent, lasts));
            }
            // It was removed since.
            Ok(_) => {}
            Err(error) => tracing::debug!("directory {}: its time stays: {error}", directory.0),
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
        self.buckets.forget_all();
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
    pub(super) fn send(
        &self,
        shard: InodeNumber,
        script: &Script,
        began: &mut u64,
    ) -> Sent<Answer> {
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
        match self.listings.find(&self.buckets.place(at), self.now()) {
            CachedName::Now(there) => Some(there),
            _ => None,
        }
    }

    /// The same, but asks the store whether the cache is still right.
    pub(super) fn known_still(&self, at: &EntryName) -> Option<There> {
        let at = self.buckets.place(at);
        match self.listings.find(&at, self.now()) {
            CachedName::Now(there) => Some(there),
            CachedName::Then(version, there) => {
                (self.lease(at.directory, version) != LeaseAnswer::No).then_some(there)
            }
            CachedName::Nothing => None,
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        *self.epochs.read()
    }

    /// Begins a change in this thread.
    pub(super) fn begin_change(&self) -> ChangeUnderWay {
        ChangeUnderWay::begin(self.address(), self.epoch())
    }

    /// Whether this thread is making a change that began before an epoch.
    pub(super) fn is_cut_off(&self, epoch: u64) -> bool {
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

    /// Reads a name, wherever its directory has it; if that is read often, with a lease.
    pub(super) fn read_name(&self, at: &EntryName, is_often: bool) -> Result<Answer> {
        for _ in 0..TRIES {
            let (shard, slot) = (self.buckets.shard(at), Slot::Name(at.name.clone()));
            let answer = if is_often {
                self.read_often(shard, slot)?
            } else {
                self.read(shard, &Script::Read(slot))?
            };
            match answer {
                Answer::Split(buckets) => self.buckets.learn(at.directory, &buckets),
                Answer::Gone if shard != at.directory => self.buckets.forget(at.directory),
                answer => return Ok(answer),
            }
        }
        Err(Failure::Contended)
    }

    /// What a name leads to.
    pub(super) fn entry(&self, at: &EntryName) -> Result<Entry> {
        match self.read_name(at, false)? {
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

    /// Makes a change of one slot of a shard; `false` if its value has changed.
    pub(super) fn replace(&self, shard: InodeNumber, change: Change) -> Result<bool> {
        let script = Script::Alone(vec![change]);
        self.change_shard(shard, &script).map(|answer| answer == Answer::Done)
    }

    /// Replaces what names of a directory lead to, in each bucket for all of its names or none; `false` if one of them led
    /// to something else.
    pub(super) fn replace_names(
        &self,
        directory: InodeNumber,
        mut changes: Vec<(Name, Entry, Entry)>,
    ) -> Result<bool> {
        let mut splits = 0;
        while let Some((first, ..)) = changes.first() {
            let shard_of =
                |name: &Name| self.buckets.shard(&EntryName { directory, name: name.clone() });
            let shard = shard_of(first);
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                changes.into_iter().partition(|(name, ..)| shard_of(name) == shard);
            let change = |(name, from, to): &(Name, Entry, Entry)| {
                Change::Name(name.clone(), Some(from.clone()), Some(to.clone()))
            };
            let script = Script::Alone(here.iter().map(change).collect());
            match self.change_shard(shard, &script)? {
                Answer::Done => changes = elsewhere,
                Answer::Split(buckets) if splits < TRIES => {
                    splits += 1;
                    self.buckets.learn(directory, &buckets);
                    changes = [here, elsewhere].concat();
                }
                Answer::Gone if shard != directory => {
                    self.buckets.forget(directory);
                    return Ok(false);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Makes changes of one shard, all or none.
    fn change_shard(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        for _ in 0..TRIES {
            match self.send(shard, script, &mut self.epoch()) {
                Ok(Answer::Busy(intent)) => self.complete(intent),
                Ok(answer) => return Ok(answer),
                Err(error) if is_doubtful(&error) => {
                    return Err(Failure::Unknown(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Contended)
    }

    pub(super) fn complete(&self, intent: Intent) {
        let mut completion = Completion::new(intent);
        while let Some((shard, script)) = completion.step() {
            completion.answer(self.send(shard, &script, &mut self.epoch()).ok());
        }
    }
}
