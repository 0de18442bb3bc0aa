//! A store within one process, with faults to inject: for tests of several agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use halocline_model::background::{Use, Users};
use halocline_model::token::{Epoch, Members, Session, Tokens};
use halocline_os::clock::Clock;
use parking_lot::{Condvar, Mutex};

use super::coding;
use super::{LEASE_MAX, Lease, Reading, Result, Roll, Store, StoreError, Swap};

/// The faults that requests meet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Nothing is answered and nothing is executed.
    pub stopped: bool,
    /// One in this many requests is lost before it is executed; 0 for none.
    pub lose_request_every: u64,
    /// One in this many requests is executed but its answer is lost.
    pub lose_reply_every: u64,
    /// One in this many messages to a session is lost.
    pub lose_message_every: u64,
}

/// The data that a restart preserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preserved {
    /// Nothing.
    Nothing,
    /// The data that [`MemoryStore::save`] saved last.
    Saved,
    /// Everything.
    All,
}

/// The store.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    arrived: Condvar,
    /// The clock for waits for messages.
    wait_clock: Clock,
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    partitions: Vec<Epoch>,
    next_epoch: u64,
    data: Data,
    saved: Data,
    now_ms: u64,
    faults: Faults,
    messages: BTreeMap<Session, Vec<SharedFile>>,
    peer_messages: BTreeMap<Session, Vec<Vec<u8>>>,
    /// Until when a session has low-priority work, or its programs use the origin.
    working: BTreeMap<Session, u64>,
    serving: BTreeMap<Session, u64>,
    sent: u64,
}

/// The data that a restart may lose.
#[derive(Debug, Clone, Default)]
struct Data {
    files: BTreeMap<SharedFile, (u64, Vec<u8>)>,
    version: u64,
    /// Encoded as in other stores; empty at first.
    members: Vec<u8>,
    leases: BTreeMap<Session, u64>,
    /// The latest time at which a forgotten lease can end.
    forgotten_until_ms: u64,
}

impl MemoryStore {
    /// An empty store with this many partitions. Its clock stands still except for [`advance`](Self::advance).
    #[must_use]
    pub fn new(partitions: usize) -> Self {
        let next_epoch = partitions as u64;
        let partitions = (0..next_epoch).map(Epoch).collect();
        let state = State { partitions, next_epoch, ..State::default() };
        let (arrived, wait_clock) = (Condvar::new(), Clock::MACHINE);
        Self { state: Mutex::new(state), arrived, wait_clock, asked: AtomicU64::new(0) }
    }

    /// For tests: advances its clock.
    pub fn advance(&self, time: Duration) {
        self.state.lock().now_ms += u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    }

    /// For tests: sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// For tests: saves the current data for a later [`restart`](Self::restart).
    pub fn save(&self) {
        let state = &mut *self.state.lock();
        state.saved = state.data.clone();
    }

    /// For tests: restarts one of its partitions; the first partition keeps the members, too.
    pub fn restart(&self, partition: usize, kept: Preserved) {
        let state = &mut *self.state.lock();
        state.partitions[partition] = Epoch(state.next_epoch);
        state.next_epoch += 1;
        let others = state.partitions.len();
        let of_partition = |file: &SharedFile| partition_of(*file, others) == partition;
        let from = match kept {
            Preserved::All => return,
            Preserved::Nothing => Data::default(),
            Preserved::Saved => state.saved.clone(),
        };
        state.data.files.retain(|file, _| !of_partition(file));
        state.data.files.extend(from.files.into_iter().filter(|(file, _)| of_partition(file)));
        if partition == 0 {
            let files = std::mem::take(&mut state.data.files);
            let lease_ms = u64::try_from(LEASE_MAX.as_millis()).unwrap_or(u64::MAX);
            let forgotten_until_ms = state.now_ms + lease_ms;
            state.data = Data { files, forgotten_until_ms, ..from };
        }
    }

    /// Executes a request: the request or its answer may be lost.
    fn request<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let state = &mut *self.state.lock();
        let is_lost = |every: u64| every > 0 && number.is_multiple_of(every);
        if state.faults.stopped || is_lost(state.faults.lose_request_every) {
            return Err(StoreError::NoAnswer("the request was lost".to_owned()));
        }
        let done = act(state)?;
        if is_lost(state.faults.lose_reply_every) {
            return Err(StoreError::NoAnswer("the answer was lost".to_owned()));
        }
        Ok(done)
    }
}

fn partition_of(file: SharedFile, partitions: usize) -> usize {
    usize::try_from(file.inode % partitions as u64).unwrap_or_default()
}

impl State {
    fn reading(&self, file: SharedFile) -> Result<Reading> {
        let epoch = self.partitions[partition_of(file, self.partitions.len())];
        let tokens = match self.data.files.get(&file) {
            Some((version, bytes)) => coding::tokens(bytes, *version)?,
            None => Tokens::new(epoch),
        };
        Ok(Reading { tokens, epoch })
    }

    /// Counts a message, and says whether it is lost.
    fn loses_a_message(&mut self) -> bool {
        self.sent += 1;
        let every = self.faults.lose_message_every;
        self.faults.stopped || (every > 0 && self.sent.is_multiple_of(every))
    }

    /// The newest of the partitions' epochs, which changes whenever one of them does.
    fn epoch(&self) -> Epoch {
        self.partitions.iter().copied().max().unwrap_or(Epoch(0))
    }
}

impl Store for MemoryStore {
    fn partition(&self, file: SharedFile) -> usize {
        partition_of(file, self.state.lock().partitions.len())
    }

    fn read(&self, file: SharedFile) -> Result<Reading> {
        self.request(|state| state.reading(file))
    }

    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap> {
        let bytes = coding::encode(new)?;
        self.request(|state| {
            let reading = state.reading(file)?;
            if reading.tokens.version != expected || reading.epoch != new.epoch() {
                return Ok(Swap::Other(reading));
            }
            state.data.files.insert(file, (new.version, bytes));
            Ok(Swap::Taken)
        })
    }

    fn roll(&self) -> Result<Roll> {
        self.request(|state| {
            Ok(Roll {
                epoch: state.epoch(),
                partitions: Arc::from(state.partitions.as_slice()),
                version: state.data.version,
                members: match state.data.members.as_slice() {
                    [] => Members::default(),
                    bytes => coding::members(bytes)?,
                },
                leases: state.data.leases.iter().map(|(of, until)| (*of, *until)).collect(),
                forgotten_until_ms: state.data.forgotten_until_ms,
                now_ms: state.now_ms,
            })
        })
    }

    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool> {
        let bytes = coding::encode(new)?;
        self.request(|state| {
            if state.data.version != from.version || *state.partitions != *from.partitions {
                return Ok(false);
            }
            let now_ms = state.now_ms;
            let leases = &mut state.data.leases;
            match lease {
                Lease::Stays => {}
                Lease::Runs(session, lease_ms) => drop(leases.insert(session, now_ms + lease_ms)),
                Lease::IsOver(session) => {
                    if state.data.forgotten_until_ms > now_ms {
                        return Ok(false);
                    }
                    if leases.get(&session).is_some_and(|until_ms| *until_ms > now_ms) {
                        return Ok(false);
                    }
                    leases.remove(&session);
                }
                Lease::Ends(session) => drop(leases.remove(&session)),
            }
            state.data.members = bytes;
            state.data.version += 1;
            Ok(true)
        })
    }

    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool> {
        self.request(|state| {
            let (same, now_ms) = (state.epoch() == epoch, state.now_ms);
            let until = state.data.leases.get_mut(&session).filter(|until| **until > now_ms);
            let Some(until) = until.filter(|_| same) else { return Ok(false) };
            *until = now_ms + lease_ms;
            Ok(true)
        })
    }

    fn tell(&self, session: Session, file: SharedFile) {
        let state = &mut *self.state.lock();
        if state.loses_a_message() {
            return;
        }
        let messages = state.messages.entry(session).or_default();
        if !messages.contains(&file) {
            messages.push(file);
        }
        self.arrived.notify_all();
    }

    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile> {
        let deadline = self.wait_clock.instant() + wait_limit;
        let mut state = self.state.lock();
        let has_none = |state: &mut State| state.messages.get(&session).is_none_or(Vec::is_empty);
        self.wait_clock.wait_while(&self.arrived, &mut state, has_none, deadline);
        state.messages.remove(&session).unwrap_or_default()
    }

    fn send(&self, session: Session, message: &[u8]) {
        let state = &mut *self.state.lock();
        if !state.loses_a_message() {
            state.peer_messages.entry(session).or_default().push(message.to_owned());
            self.arrived.notify_all();
        }
    }

    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>> {
        let deadline = self.wait_clock.instant() + wait_limit;
        let mut state = self.state.lock();
        let has_none =
            |state: &mut State| state.peer_messages.get(&session).is_none_or(Vec::is_empty);
        self.wait_clock.wait_while(&self.arrived, &mut state, has_none, deadline);
        state.peer_messages.remove(&session).unwrap_or_default()
    }

    fn users(&self, own: Option<(Session, Use, u64)>) -> Result<Users> {
        self.request(|state| {
            let now_ms = state.now_ms;
            let note = |table: &mut BTreeMap<Session, u64>, is_so: fn(Use) -> bool| {
                if let Some((session, own, kept_ms)) = own {
                    let until_ms = if is_so(own) { now_ms.saturating_add(kept_ms) } else { 0 };
                    table.insert(session, until_ms);
                }
                table.retain(|_, until_ms| *until_ms > now_ms);
                table.len() as u64
            };
            Ok(Users {
                working: note(&mut state.working, |own| own.works),
                serving: note(&mut state.serving, |own| own.serves),
                nodes: state.data.leases.len() as u64,
            })
        })
    }

    fn files(&self, limit: usize) -> Result<Vec<SharedFile>> {
        self.request(|state| Ok(state.data.files.keys().copied().take(limit).collect()))
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed) + self.state.lock().sent
    }
}
