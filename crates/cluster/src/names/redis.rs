//! A store of names on one server of Redis or Valkey, or on a cluster of them.
//!
//! A shard always belongs to the same one of 64 partitions, determined by its number, as a file's tokens do
//! (`docs/decisions/0040-a-store-on-a-cluster.md`). Its keys have the partition's hash tag, and so has the marker of
//! the partition's epoch, which every script compares first.

mod answers;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod room;
mod scripts;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_model::namespace::{
    Answer, Body, Change, Entry, InodeNumber, IntentId, Name, Opaque, Outcome, Script, Slot,
};
use halocline_os::clock::Clock;
use redis::ScriptInvocation;

use super::coding::{encode_buckets, encode_entry, encode_id, encode_intent, encode_links};
use super::split_limits::SplitLimits;
use super::{
    ChangedDirectory, InspectedShard, LeaseAnswer, Memory, NameStore, NamesError, PAGE_ENTRIES_MAX,
    Result, State,
};
use crate::store::StoreError;
use crate::store::redis::partitions::Partitions;
use crate::store::redis::when_full::{WHEN_FULL, or_when_full};
use answers::{
    Elements, answer, changed, current, first_reserved, granted, inspected, is_splitting, leased,
    leased_now, number, unsound,
};
use scripts::Scripts;

/// The most bytes of a page of entries.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// How long a lease of a directory lasts at the server, at least. The scripts have the most.
const LEASE_TIME: Duration = Duration::from_millis(super::LEASE_MS + LEASE_MARGIN_MS);
/// How much earlier than the server the node stops trusting its listing.
const LEASE_MARGIN_MS: u64 = 20;
/// How long others must have left a directory alone before a lease of it is granted.
const LEASE_QUIET: Duration = Duration::from_millis(250);
/// How often one change may meet another lease that it waits for: a waiting change keeps new leases from being
/// granted.
const LEASE_WAITS: usize = 50;
/// How often, and how far apart, a change asks whether the split of another node is done, before this node splits the
/// directory itself.
const SPLIT_WAITS: usize = 400;
/// See [`SPLIT_WAITS`].
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
/// For how long a directory's time moves on by itself after a touch, at the server.
const TOUCHED_FOR: Duration = Duration::from_millis(250);
/// From how many entries on a directory is split, on a cluster; on one server, none is
/// (`docs/decisions/0048-large-directories.md`).
pub const SPLIT_FROM: u64 = 65_536;

/// The store, as one node uses it.
#[derive(Debug)]
pub struct RedisNames {
    servers: Partitions,
    scripts: Scripts,
    /// The same for a server whose memory is used up.
    when_full: Scripts,
    /// The epochs of the partitions that this node uses; 0 for none.
    epochs: [AtomicU64; Partitions::COUNT],
    /// The number under which this node holds leases.
    lessee: u64,
    splits: SplitLimits,
}

/// A number for an epoch: never used again, and not 0.
fn candidate() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish().max(1)
}

fn slot(slot: &Slot) -> Vec<u8> {
    match slot {
        Slot::Name(name) => [b"n", name.as_bytes()].concat(),
        Slot::Parent => b"p".to_vec(),
        Slot::Attributes => b"a".to_vec(),
        Slot::Whole => b"w".to_vec(),
    }
}

/// The arguments of a change: its kind, its slot, before and after, and a flag.
fn change(change: &Change) -> [Vec<u8>; 5] {
    let parent = |inode: &InodeNumber| inode.0.to_string().into_bytes();
    let (kind, from, to, flag) = match change {
        Change::Name(_, from, to) => {
            let entry = |entry: &Option<_>| entry.as_ref().map(encode_entry).unwrap_or_default();
            ("n", entry(from), entry(to), change.changes_names())
        }
        Change::Parent(from, to) => ("p", parent(from), parent(to), false),
        Change::Attributes { from, to, sets_changed } => {
            ("a", from.as_bytes().to_vec(), to.as_bytes().to_vec(), *sets_changed)
        }
        Change::Links(from, to) => ("l", encode_links(from), encode_links(to), to.count == 0),
        Change::End(buckets) => ("e", encode_buckets(buckets), Vec::new(), false),
        Change::Split { version, entries, buckets } => {
            ("s", format!("{version} {entries}").into(), encode_buckets(buckets), false)
        }
    };
    [kind.into(), slot(&change.slot()), from, to, if flag { "1" } else { "0" }.into()]
}

impl RedisNames {
    /// Connects to the store at `urls`: the URL of a server, of one of a cluster's servers, or several of one cluster
    /// with commas between. `origin` distinguishes tiers that share it: letters, digits, `-` and `_`. Nothing is known
    /// of its epochs before [`refresh`](NameStore::refresh).
    ///
    /// # Errors
    /// If it cannot be reached, or if its settings would lose names. No error shows a secret.
    pub fn connect(urls: &str, password: Option<&str>, origin: &str) -> Result<Self> {
        let servers = Partitions::connect(urls, password, origin)?;
        let epochs = [const { AtomicU64::new(0) }; Partitions::COUNT];
        let (scripts, when_full) = (Scripts::new(""), Scripts::new(WHEN_FULL));
        let splits = SplitLimits::new(servers.is_cluster().then_some(SPLIT_FROM));
        Ok(Self { servers, scripts, when_full, epochs, lessee: candidate(), splits })
    }

    /// The same, which splits directories that have so many entries and get another one; `None`: none. Otherwise
    /// [`SPLIT_FROM`] on a cluster, and none on a single server.
    #[must_use]
    pub fn splitting_from(self, entries: Option<u64>) -> Self {
        Self { splits: SplitLimits::new(entries), ..self }
    }

    /// Removes all names of the tier for good, and the record that there were some.
    ///
    /// # Errors
    /// If the store does not answer, or may have forgotten names.
    pub fn erase(&self) -> Result<()> {
        for shard in self.shards()? {
            self.remove(shard)?;
        }
        for partition in 0..Partitions::COUNT {
            self.ask(partition, &self.about_partition(&self.scripts.erase, partition))?;
        }
        Ok(())
    }

    /// The words of a command with which the server's own benchmark makes a name in a directory, using the script that
    /// makes names here and attributes of the same length; `__rand_int__` in it is replaced by a number. The server
    /// already has the script if a name was made before.
    #[must_use]
    pub fn create_command(&self, directory: InodeNumber, attributes: &Opaque) -> Vec<String> {
        let keys = self.keys(directory);
        // One letter for the kind of entry, eight bytes of its number.
        let entry = "s".repeat(attributes.as_bytes().len() + 9);
        let mut words = vec!["EVALSHA".to_owned(), self.scripts.alone.get_hash().to_owned()];
        words.push(keys.len().to_string());
        words.extend(keys);
        words.push(self.epoch(Self::partition(directory)).to_string());
        words.extend(["n", "nfile__rand_int__", "", &entry, "1"].map(str::to_owned));
        words
    }

    fn partition(shard: InodeNumber) -> usize {
        // The upper bits of a product are mixed best. The result is the same on all nodes.
        let mixed = shard.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 58).unwrap_or_default() % Partitions::COUNT
    }

    fn marker(&self, partition: usize) -> String {
        format!("halocline:{{{}}}:names:epoch", self.servers.tag(partition))
    }

    /// The keys of a shard, after that of its partition's marker.
    fn keys(&self, shard: InodeNumber) -> [String; 7] {
        let partition = Self::partition(shard);
        let key = |what: &str| {
            format!("halocline:{{{}}}:names:{:x}:{what}", self.servers.tag(partition), shard.0)
        };
        let [is, entries, order] = [key("shard"), key("entries"), key("order")];
        let [locks, committed, finished] = [key("locks"), key("committed"), key("finished")];
        [self.marker(partition), is, entries, order, locks, committed, finished]
    }

    fn epoch(&self, partition: usize) -> u64 {
        self.epochs[partition].load(Ordering::SeqCst)
    }

    /// Begins a request about a shard.
    fn about<'a>(&self, script: &'a redis::Script, shard: InodeNumber) -> ScriptInvocation<'a> {
        self.about_with(script, shard, "")
    }

    /// Begins a request that may add a name.
    fn about_adding<'a>(
        &self,
        script: &'a redis::Script,
        shard: InodeNumber,
        is_leased: bool,
    ) -> ScriptInvocation<'a> {
        let limit = self.splits.of(shard).map(|entries| format!(" /{entries}"));
        let lease = if is_leased { Self::lease() } else { String::new() };
        self.about_with(script, shard, &(lease + &limit.unwrap_or_default()))
    }

    fn lease() -> String {
        format!(" {} {}", LEASE_TIME.as_micros(), LEASE_QUIET.as_micros())
    }

    /// The same, which asks for a lease of the directory.
    fn about_leased<'a>(
        &self,
        script: &'a redis::Script,
        shard: InodeNumber,
    ) -> ScriptInvocation<'a> {
        self.about_with(script, shard, &Self::lease())
    }

    fn about_with<'a>(
        &self,
        script: &'a redis::Script,
        shard: InodeNumber,
        lease: &str,
    ) -> ScriptInvocation<'a> {
        let mut script = script.prepare_invoke();
        for key in self.keys(shard) {
            script.key(key);
        }
        script.arg(format!("{} {}{lease}", self.epoch(Self::partition(shard)), self.lessee));
        script
    }

    /// Begins a request about a partition.
    fn about_partition<'a>(
        &self,
        script: &'a redis::Script,
        partition: usize,
    ) -> ScriptInvocation<'a> {
        let mut script = script.prepare_invoke();
        script.key(self.marker(partition));
        script
    }

    fn invocation<'a>(
        &'a self,
        scripts: &'a Scripts,
        shard: InodeNumber,
        script: &Script,
    ) -> Result<ScriptInvocation<'a>> {
        // Only these say what changed in the directory.
        let leased = |script| self.about_leased(script, shard);
        let with_id = |script, id| with_intent_id(self.about(script, shard), id);
        let adding = |script, id| with_intent_id(self.about_adding(script, shard, false), id);
        Ok(match script {
            Script::Make(body) => {
                let mut about = leased(&scripts.new);
                match body {
                    Body::Directory { parent, attributes, entries } if entries.is_empty() => {
                        about.arg("d").arg(parent.0).arg(attributes.as_bytes())
                    }
                    Body::Bucket { directory, entries } if entries.is_empty() => {
                        about.arg("b").arg(directory.0).arg("")
                    }
                    Body::Directory { .. } | Body::Split { .. } | Body::Bucket { .. } => {
                        let what = "a directory is made empty".to_owned();
                        return Err(NamesError::Unusable(what));
                    }
                    Body::Links(links) => about.arg("l").arg("").arg(encode_links(links)),
                };
                about
            }
            Script::Read(read) => {
                let mut about = self.about(&scripts.read, shard);
                about.arg(slot(read));
                about
            }
            Script::List(after, limit) => {
                let mut about = self.about(&scripts.list, shard);
                about.arg(after).arg((*limit).min(PAGE_ENTRIES_MAX)).arg(PAGE_BYTES_MAX);
                about
            }
            Script::Alone(changes) => {
                with_changes(self.about_adding(&scripts.alone, shard, true), changes)
            }
            Script::Prepare(intent, change) => {
                let mut about = adding(&scripts.prepare, intent.id);
                about.arg(encode_intent(intent));
                with_changes(about, std::slice::from_ref(change))
            }
            Script::Decide(intent, settlements, changes) => {
                let mut about = adding(&scripts.decide, intent.id);
                about.arg(encode_intent(intent)).arg(settlements);
                with_changes(about, changes)
            }
            Script::Settle(id) => with_id(&scripts.settle, *id),
            Script::Finish(id, outcome) => {
                let mut about = with_id(&scripts.finish, *id);
                about.arg(u8::from(*outcome == Outcome::Committed));
                about
            }
            Script::Finished(id) => with_id(&scripts.finished, *id),
            Script::Forget(id) => with_id(&scripts.forget, *id),
            Script::Fill(entries) => with_entries(self.about(&scripts.fill, shard), entries),
            Script::Discard(directory) => {
                with_number(self.about(&scripts.discard, shard), u128::from(directory.0))
            }
            Script::Touch => {
                with_number(self.about(&scripts.touch, shard), TOUCHED_FOR.as_micros())
            }
        })
    }

    fn ask(&self, partition: usize, script: &ScriptInvocation<'_>) -> Result<Elements> {
        current(self.servers.run(partition, script)?)
    }

    /// The same for what a server does although its memory is used up.
    fn ask_even_if_full<'a>(
        &'a self,
        partition: usize,
        of: impl Fn(&'a Scripts) -> ScriptInvocation<'a>,
    ) -> Result<Elements> {
        let ask = |scripts| self.servers.run(partition, &of(scripts));
        current(or_when_full(ask(&self.scripts), || ask(&self.when_full))?)
    }
}

fn with_changes<'a>(mut about: ScriptInvocation<'a>, changes: &[Change]) -> ScriptInvocation<'a> {
    for argument in changes.iter().flat_map(change) {
        about.arg(argument);
    }
    about
}

fn with_intent_id(mut about: ScriptInvocation<'_>, id: IntentId) -> ScriptInvocation<'_> {
    about.arg(&encode_id(id)[..]);
    about
}

fn with_number(mut about: ScriptInvocation<'_>, number: u128) -> ScriptInvocation<'_> {
    about.arg(number.to_string());
    about
}

fn with_entries<'a>(
    mut about: ScriptInvocation<'a>,
    entries: &[(u64, Name, Entry)],
) -> ScriptInvocation<'a> {
    for (place, name, entry) in entries {
        about.arg(place).arg(name.as_bytes()).arg(encode_entry(entry));
    }
    about
}

impl NameStore for RedisNames {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        self.change(shard, script).map(|(answer, _)| answer)
    }

    fn change(
        &self,
        shard: InodeNumber,
        script: &Script,
    ) -> Result<(Answer, Option<ChangedDirectory>)> {
        let partition = Self::partition(shard);
        let invocation = self.invocation(&self.scripts, shard, script)?;
        let (mut leases, mut splits) = (0, 0);
        while leases < LEASE_WAITS {
            let asked = self.servers.run(partition, &invocation);
            let is_full = asked.as_ref().is_err_and(StoreError::is_full);
            let answered = if is_full && !room::needs_room(script) {
                let again = self.invocation(&self.when_full, shard, script)?;
                or_when_full(asked, || self.servers.run(partition, &again))
            } else {
                asked
            };
            let elements = current(answered?)?;
            if let Some(left) = leased(&elements)? {
                leases += 1;
                Clock::MACHINE.sleep(left);
            } else if !is_splitting(&elements) {
                return changed(elements);
            } else if splits == SPLIT_WAITS {
                return Ok((Answer::Full(0), None));
            } else {
                splits += 1;
                Clock::MACHINE.sleep(SPLIT_PAUSE);
            }
        }
        Err(unsound("a lease without end"))
    }

    fn read_leased(
        &self,
        directory: InodeNumber,
        what: &Slot,
    ) -> Result<(Answer, Option<(u64, Duration)>)> {
        let mut script = self.about_leased(&self.scripts.read, directory);
        script.arg(slot(what));
        let mut elements = self.ask(Self::partition(directory), &script)?;
        let is_leased = matches!(elements.as_slice(), [word, _, _, _] if word == b"name" || word == b"attributes");
        let lease = elements.pop_if(|_| is_leased).map_or(Ok(None), |lease| granted(&lease))?;
        Ok((answer(elements)?, lease))
    }

    fn lease(&self, directory: InodeNumber, version: u64) -> Result<(LeaseAnswer, Duration)> {
        let mut script = self.about_leased(&self.scripts.lease, directory);
        script.arg(version);
        match self.ask(Self::partition(directory), &script) {
            Ok(elements) => leased_now(&elements),
            // A full server grants no lease; if the epoch is stale, the next request finds that out.
            Err(NamesError::Full(_) | NamesError::Stale) => Ok((LeaseAnswer::No, Duration::ZERO)),
            Err(error) => Err(error),
        }
    }

    fn refresh(&self) -> Result<State> {
        let (mut doubtful, mut empty, mut is_held) = (0, 0, false);
        for partition in 0..Partitions::COUNT {
            let script = self.about_partition(&self.scripts.probe, partition);
            let (epoch, is_there, held): (String, u8, u8) = self.servers.run(partition, &script)?;
            let epoch = if epoch.is_empty() { 0 } else { number(epoch.as_bytes())? };
            self.epochs[partition].store(if held == 0 { epoch } else { 0 }, Ordering::SeqCst);
            is_held |= held != 0;
            doubtful += usize::from(epoch == 0);
            empty += usize::from(is_there == 0);
        }
        Ok(match doubtful {
            0 if is_held => State::Held,
            0 => State::Confirmed,
            _ if empty == Partitions::COUNT && self.shards()?.is_empty() => State::Empty,
            partitions => State::Doubtful(partitions),
        })
    }

    fn begin_epoch(&self, is_alone: bool) -> Result<()> {
        let epoch = candidate();
        for partition in 0..Partitions::COUNT {
            self.ask_even_if_full(partition, |scripts| {
                let mut script = self.about_partition(&scripts.begin, partition);
                script.arg(epoch).arg(u8::from(is_alone));
                script
            })?;
            self.epochs[partition].store(epoch, Ordering::SeqCst);
        }
        Ok(())
    }

    fn reserve(&self, count: u64) -> Result<u64> {
        let reserved = self.ask_even_if_full(0, |scripts| {
            let mut script = self.about_partition(&scripts.reserve, 0);
            script.arg(self.epoch(0)).arg(count);
            script
        })?;
        first_reserved(&reserved, count)
    }

    fn shards(&self) -> Result<Vec<InodeNumber>> {
        let keys = self.servers.keys("names:", ":shard")?;
        let shard = |name: &String| u64::from_str_radix(name, 16).ok().map(InodeNumber);
        let mut shards: Vec<InodeNumber> = keys.iter().filter_map(shard).collect();
        shards.sort_unstable();
        shards.dedup();
        Ok(shards)
    }

    fn inspect(&self, shard: InodeNumber) -> Result<Option<InspectedShard>> {
        let script = self.about(&self.scripts.inspect, shard);
        inspected(&self.ask(Self::partition(shard), &script)?)
    }

    fn remove(&self, shard: InodeNumber) -> Result<()> {
        let script = self.about(&self.scripts.remove, shard);
        self.ask(Self::partition(shard), &script).map(drop)
    }

    fn touched_for(&self) -> Duration {
        TOUCHED_FOR.saturating_sub(Duration::from_millis(LEASE_MARGIN_MS))
    }

    fn spare(&self, directory: InodeNumber, entries: u64) {
        self.splits.spare(directory, entries);
    }

    fn round_trips(&self) -> u64 {
        self.servers.round_trips()
    }

    fn memory(&self) -> Result<Option<Memory>> {
        Ok(self.servers.memory()?)
    }
}
