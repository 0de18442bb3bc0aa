//! A store on a Redis Cluster: files are spread over all masters, each of which may forget independently.
//!
//! What must hold (`docs/decisions/0040-a-store-on-a-cluster.md`):
//! - A file always belongs to the same one of [`PARTITIONS`] partitions. Each partition is in one slot together with a
//!   marker of its epoch, which is compared in the same script as the file's version.
//! - The members are in a slot of their own, with the list of the partitions' epochs as far as any node has noticed
//!   them. Their own epoch changes whenever the members may have been forgotten or the list changes. So it stands for
//!   one list: a session that asserted in it what it holds did so in the epochs of that list.
//! - An epoch of a partition that a newer master began is never replaced by that of an older master.
//! - Only a master that most others have just heard from grants or takes leases.

pub(super) mod partition_states;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::routes::{KeyGroup, Routes};
use super::scripts::{FileScripts, MemberScripts, PartitionScripts};
use super::server::info_of;
use super::slots::{Address, PARTITIONS, slot_of, tags_of};
use super::when_full::EvenIfFull;
use super::{Keys, LEASE_MAX, Lease, Reading, Result, Roll, Store, StoreError, Swap};
use super::{candidate, check_name, number, read, reading, renew, roll, roll_of, scan, swap};
use super::{
    files_of, millis, nothing_for, send, swap_members, swapped, tell, users, users_of, wait_for,
};
use halocline_cache::coherence::SharedFile;
use halocline_model::background::{Use, Users};
use halocline_model::token::{Epoch, Members, Session, Tokens};
use parking_lot::Mutex;
use partition_states::{PartitionState, PartitionStates};
use redis::{FromRedisValue, Script, ScriptInvocation};

/// A master that no majority has heard from for this long takes and grants no lease. Masters that reach each other hear
/// from each other every half of `cluster-node-timeout`, which is at most 15 s.
const HEARD: Duration = Duration::from_secs(10);
/// How long leases that the members' master has forgotten may still run: a master that was cut off grants leases until
/// it notices that, and messages take a moment.
const FORGOTTEN: Duration = LEASE_MAX.saturating_add(HEARD).saturating_add(Duration::from_secs(5));
/// After this time no further partition is asked for its epoch.
const NOTING_LIMIT: Duration = Duration::from_secs(5);

/// How often a session looks for reminders.
const LOOK: Duration = Duration::from_secs(2);
/// The shortest wait, for what is there already; 0 would wait without end.
const AT_ONCE: Duration = Duration::from_millis(1);
/// The most reminders that are taken at once.
const REMINDERS_MAX: usize = 64;

/// The store.
pub struct ClusterStore {
    routes: Routes,
    origin: String,
    /// Keys and slots of the members, and of each partition.
    members: (Keys, u16),
    partitions: Vec<(Keys, u16)>,
    /// The list of the partitions' epochs that was read last.
    known: Mutex<Arc<PartitionStates>>,
    /// One bit for each partition that answered with a different epoch than the list has.
    suspects: AtomicU64,
    /// The connections on which sessions wait for messages.
    listening: Mutex<Option<Connection>>,
    reminded: Mutex<Option<Connection>>,
    /// When reminders were last looked for.
    looked: Mutex<Instant>,
    receiving: Mutex<Option<Connection>>,
    file_scripts: FileScripts,
    member_scripts: MemberScripts,
    part_scripts: PartitionScripts,
}

const _: () = assert!(PARTITIONS == 64, "a bit for each");

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("routes", &self.routes).finish_non_exhaustive()
    }
}

impl ClusterStore {
    /// Connects to the cluster that the servers at `urls` belong to; each URL has the form described at
    /// [`RedisStore::connect`](super::RedisStore::connect). Some of the servers suffice. A `password` given separately
    /// takes precedence over theirs; `origin` distinguishes origins that share the cluster.
    ///
    /// # Errors
    /// If none can be reached, or if a master's settings would lose tokens. No error shows a secret.
    pub fn connect(urls: &[&str], password: Option<&str>, origin: &str) -> Result<Self> {
        check_name(origin)?;
        let seeds = urls.iter().map(|url| info_of(url, password)).collect::<Result<_>>()?;
        let keys = |tag: &str| (Keys::new(tag), slot_of(tag));
        let store = Self {
            routes: Routes::new(seeds)?,
            origin: origin.to_owned(),
            members: keys(origin),
            partitions: tags_of(origin).iter().map(|tag| keys(tag)).collect(),
            known: Mutex::default(),
            suspects: AtomicU64::new(0),
            listening: Mutex::default(),
            reminded: Mutex::default(),
            looked: Mutex::new(Instant::now()),
            receiving: Mutex::default(),
            file_scripts: FileScripts::new(),
            member_scripts: MemberScripts::of_cluster(),
            part_scripts: PartitionScripts::new(),
        };
        store.check_settings()?;
        Ok(store)
    }

    /// Checks the settings of the masters. Those that do not answer are checked before they are used.
    fn check_settings(&self) -> Result<()> {
        let deadline = Instant::now() + NOTING_LIMIT;
        for (_, master) in self.routes.masters(deadline)? {
            match master {
                Ok(_) | Err(StoreError::NoAnswer(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn members_group(&self) -> KeyGroup {
        KeyGroup::Members(self.members.1)
    }

    fn partition_group(&self, partition: usize) -> KeyGroup {
        KeyGroup::Partition(partition, self.partitions[partition].1)
    }

    /// The list of messages to a session; the lists of sessions are spread over the slots.
    fn messages(&self, session: Session) -> (Keys, KeyGroup) {
        let tag = format!("{}.told.{:016x}", self.origin, session.0);
        (Keys::new(&tag), KeyGroup::Messages(slot_of(&tag)))
    }

    /// Notes in which epoch a partition answered.
    fn note_seen(&self, partition: usize, epoch: Epoch) {
        if self.known.lock().0[partition].epoch != epoch {
            self.suspects.fetch_or(1 << partition, Ordering::Relaxed);
        }
    }

    /// Reads the members and the list of partitions; `None` if there is no list yet.
    fn read_roll(&self) -> Result<(Roll, Option<Arc<PartitionStates>>)> {
        let script = roll(&self.member_scripts.roll, &self.members.0);
        let answer = self.routes.run(self.members_group(), &script)?;
        let (roll, text) = roll_of(answer, FORGOTTEN)?;
        if text.is_empty() {
            return Ok((roll, None));
        }
        let partitions = Arc::new(PartitionStates::parse(&text)?);
        *self.known.lock() = Arc::clone(&partitions);
        Ok((Roll { partitions: partitions.epochs(), ..roll }, Some(partitions)))
    }

    /// Updates the members' list for partitions that have a different epoch than it says. Covers all partitions on the
    /// suspects' masters, because a replaced master was replaced for all its partitions.
    fn note_suspects(&self) -> Result<()> {
        let suspects = self.suspects.swap(0, Ordering::Relaxed);
        let keep = |_: &StoreError| {
            self.suspects.fetch_or(suspects, Ordering::Relaxed);
        };
        let listed = self.read_roll().inspect_err(keep)?.1;
        let deadline = Instant::now() + NOTING_LIMIT;
        let groups: Vec<_> =
            (0..PARTITIONS).map(|partition| self.partition_group(partition)).collect();
        // Uses the masters known already, because connecting to each may take long.
        let owner_of = self.routes.owners(&groups, deadline);
        let is_suspect = |partition: usize| listed.is_none() || suspects & (1 << partition) != 0;
        let suspected = |owner: &Option<Address>| {
            (0..PARTITIONS).any(|partition| is_suspect(partition) && owner_of[partition] == *owner)
        };
        let before = listed.as_deref().map(ToString::to_string).unwrap_or_default();
        let mut partitions = listed.as_deref().cloned().unwrap_or_default();
        let mut silent = Vec::new();
        for (partition, owner) in owner_of.iter().enumerate() {
            if !suspected(owner) || silent.contains(&owner) || Instant::now() >= deadline {
                continue;
            }
            match self.probe(partition) {
                Ok(seen) if partitions.0[partition].is_followed_by(seen) => {
                    partitions.0[partition] = seen;
                }
                Ok(seen) if partitions.0[partition].epoch != seen.epoch => {
                    tracing::warn!(
                        "{}: its master is older than one before it: if that lasts, run CLUSTER BUMPEPOCH there",
                        self.partition_group(partition)
                    );
                    self.routes.doubt_owner(self.partition_group(partition));
                }
                Ok(_) => {}
                // Only this partition's files wait; leases and other partitions proceed.
                Err(error) => {
                    tracing::debug!("partition {partition} does not say its epoch: {error}");
                    silent.push(owner);
                }
            }
        }
        let after = partitions.to_string();
        if after == before {
            return Ok(());
        }
        tracing::info!("the store of tokens: a master was replaced, or began anew");
        // Another node may have been faster; changes that it missed will be noticed again.
        let noted: Result<bool> = self.ask_members(&self.part_scripts.note, |script| {
            let mut script = script.prepare_invoke();
            script
                .key(&self.members.0.epoch)
                .arg(candidate())
                .arg(&before)
                .arg(&after)
                .arg(candidate());
            Ok(script)
        });
        noted.map(drop)
    }

    /// Runs a script on the members' master, unless that was cut off.
    fn ask_members<'a, T: FromRedisValue>(
        &'a self,
        scripts: &'a EvenIfFull,
        of: impl Fn(&'a Script) -> Result<ScriptInvocation<'a>>,
    ) -> Result<T> {
        let heard = |script| {
            let mut script = of(script)?;
            script.arg(millis(HEARD));
            Ok(script)
        };
        scripts.run(heard, |script| self.routes.run(self.members_group(), script))
    }

    /// Asks a partition for its epoch.
    fn probe(&self, partition: usize) -> Result<PartitionState> {
        let mut script = self.part_scripts.probe.prepare_invoke();
        script.key(&self.partitions[partition].0.epoch).arg(candidate()).arg(millis(HEARD));
        let (epoch, config): (String, String) =
            self.routes.run_unless_silent(self.partition_group(partition), &script)?;
        Ok(PartitionState { config: number(&config)?, epoch: Epoch(number(&epoch)?) })
    }

    /// Waits until a list has something; `None` if its server does not answer.
    fn hear(
        &self,
        waiting: &Mutex<Option<Connection>>,
        (list, group): (&str, KeyGroup),
        wait_limit: Duration,
    ) -> Option<Vec<Vec<u8>>> {
        let begun = Instant::now();
        let heard = wait_for(waiting, || self.routes.connect(group).ok(), list, wait_limit);
        if heard.is_none() {
            // The slot may have another master now.
            self.routes.note_unheard(group, begun.elapsed());
        }
        heard
    }

    /// Sends a message, unless the list's server has just left others without an answer.
    fn post<'a>(
        &'a self,
        group: KeyGroup,
        scripts: &'a EvenIfFull,
        of: impl Fn(&'a Script) -> Result<ScriptInvocation<'a>>,
    ) {
        let run = |script: &_| self.routes.run_unless_silent(group, script);
        let _: Result<u64> = scripts.run(of, run);
    }

    fn post_name(&self, group: KeyGroup, list: &str, file: SharedFile) {
        self.post(group, &self.file_scripts.tell, |script| Ok(tell(script, list, file)));
    }

    /// The list of a session's reminders, on the master that has the leases: a session must reach that one anyway.
    fn reminders(&self, session: Session) -> (String, KeyGroup) {
        (self.members.0.messages(session), KeyGroup::Messages(self.members.1))
    }

    /// Waits for a reminder; returns all that are there, up to a limit.
    fn hear_reminders(&self, session: Session, wait_limit: Duration) -> Option<Vec<Vec<u8>>> {
        let (list, group) = self.reminders(session);
        let hear = |limit| self.hear(&self.reminded, (&list, group), limit);
        let heard = hear(wait_limit);
        *self.looked.lock() = Instant::now();
        let mut heard = heard?;
        while !heard.is_empty() && heard.len() < REMINDERS_MAX {
            match hear(AT_ONCE) {
                Some(more) if !more.is_empty() => heard.extend(more),
                _ => break,
            }
        }
        Some(heard)
    }

    /// Notes suspects if there are any; returns whether there were.
    fn note_if_suspect(&self) -> Result<bool> {
        let is_suspect = self.suspects.load(Ordering::Relaxed) != 0;
        if is_suspect {
            self.note_suspects()?;
        }
        Ok(is_suspect)
    }
}

impl Store for ClusterStore {
    fn partition(&self, file: SharedFile) -> usize {
        // The upper bits of a product are mixed best. The result is the same on all nodes.
        let mixed = (file.inode ^ file.born_ns.cast_unsigned().rotate_left(32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 58).unwrap_or_default() % PARTITIONS
    }

    fn read(&self, file: SharedFile) -> Result<Reading> {
        let partition = self.partition(file);
        let script = read(&self.file_scripts.read, &self.partitions[partition].0, file);
        let group = self.partition_group(partition);
        let found = reading(self.routes.run_unless_silent(group, &script)?)?;
        self.note_seen(partition, found.epoch);
        Ok(found)
    }

    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap> {
        let partition = self.partition(file);
        let swap = |script| swap(script, &self.partitions[partition].0, file, (expected, new));
        let group = self.partition_group(partition);
        let run = |script: &_| self.routes.run_unless_silent(group, script);
        let swapped = swapped(self.file_scripts.swap.run(swap, run)?)?;
        if let Swap::Other(found) = &swapped {
            self.note_seen(partition, found.epoch);
        }
        Ok(swapped)
    }

    fn roll(&self) -> Result<Roll> {
        self.note_if_suspect()?;
        if let (roll, Some(_)) = self.read_roll()? {
            return Ok(roll);
        }
        self.note_suspects()?;
        let (roll, partitions) = self.read_roll()?;
        partitions.map(|_| roll).ok_or_else(|| {
            let what =
                "the members' master lists no partitions, and nobody can tell it which there are";
            StoreError::NoAnswer(what.to_owned())
        })
    }

    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool> {
        self.ask_members(&self.member_scripts.swap_members, |script| {
            swap_members(script, &self.members.0, (from, new, lease), FORGOTTEN)
        })
    }

    fn note_changes(&self) -> Result<bool> {
        self.note_if_suspect()
    }

    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool> {
        self.ask_members(&self.member_scripts.renew, |script| {
            renew(script, &self.members.0, (session, epoch, lease_ms))
        })
    }

    fn tell(&self, session: Session, file: SharedFile) {
        let (keys, group) = self.messages(session);
        self.post_name(group, &keys.messages(session), file);
    }

    fn remind(&self, session: Session, file: SharedFile) {
        self.tell(session, file);
        let (list, group) = self.reminders(session);
        self.post_name(group, &list, file);
    }

    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile> {
        let (keys, group) = self.messages(session);
        let list = keys.messages(session);
        let heard = match self.hear(&self.listening, (&list, group), wait_limit) {
            Some(heard) if self.looked.lock().elapsed() < LOOK => heard,
            // Other sessions may not reach the list that this session reaches.
            Some(heard) => {
                let reminders = self.hear_reminders(session, AT_ONCE).unwrap_or_default();
                [heard, reminders].concat()
            }
            None => {
                self.hear_reminders(session, wait_limit).unwrap_or_else(|| nothing_for(wait_limit))
            }
        };
        files_of(heard)
    }

    fn send(&self, session: Session, message: &[u8]) {
        let (keys, group) = self.messages(session);
        let list = keys.peer_messages(session);
        let send = |script| Ok(send(script, &list, message));
        self.post(group, &self.file_scripts.send, send);
    }

    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>> {
        let (keys, group) = self.messages(session);
        let list = keys.peer_messages(session);
        let heard = self.hear(&self.receiving, (&list, group), wait_limit);
        heard.unwrap_or_else(|| nothing_for(wait_limit))
    }

    fn users(&self, own: Option<(Session, Use, u64)>) -> Result<Users> {
        let script = users(&self.member_scripts.users, &self.members.0, own);
        self.routes.run(self.members_group(), &script).map(users_of)
    }

    fn files(&self, limit: usize) -> Result<Vec<SharedFile>> {
        let pattern = format!("halocline:{{{}.*}}:file:*", self.origin);
        let mut files = Vec::new();
        for (_, master) in self.routes.masters(Instant::now() + NOTING_LIMIT)? {
            let master = master?;
            let ask = |command: &redis::Cmd| {
                let answer = master.ask(|connection| command.query(connection));
                answer.map_err(|error| master.error(&error))
            };
            files.extend(scan(ask, &pattern, limit)?);
        }
        files.sort_unstable();
        files.dedup();
        files.truncate(limit);
        Ok(files)
    }

    fn round_trips(&self) -> u64 {
        self.routes.asked()
    }
}
