//! Scripts at random, each on the reference and on a real store: answers and what is there are the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::redis::RedisNames;
use halocline_model::namespace::{
    Answer, Body, Buckets, Change, Entry, InodeNumber, Intent, IntentId, Links, Name, Opaque,
    Outcome, ROOT, Script, Slot,
};
use halocline_model::token::Session;
use halocline_testkit::hostile::Random;
use halocline_testkit::redis_cluster::{RedisCluster, STEADY};
use halocline_testkit::redis_server::RedisServer;

/// Makes scripts of a small world, so that they meet.
struct Scripts {
    random: Random,
    shards: u64,
    /// Nobody minds what these were told.
    ids: Vec<IntentId>,
    locked: BTreeSet<(IntentId, InodeNumber)>,
    /// The place of the entry that was put into a bucket last.
    place: u64,
}

/// From how many entries on a directory is to be split.
const ENTRIES_MAX: u64 = 3;
/// The version that a split names is the one that the store has.
const CURRENT: u64 = 0;
/// Or one that no store has.
const ANOTHER: u64 = u64::MAX >> 8;

impl Scripts {
    fn opaque(&mut self) -> Opaque {
        Opaque::from(vec![0xff; self.random.below(3)])
    }

    fn name(&mut self) -> Name {
        Name::from([&b"a"[..], b"b", b"\xff\nn", b"w"][self.random.below(4)])
    }

    fn shard(&mut self) -> InodeNumber {
        InodeNumber(1 + self.random.below(usize::try_from(self.shards).unwrap()) as u64)
    }

    fn entry(&mut self) -> Option<Entry> {
        let inode = InodeNumber(self.random.below(3) as u64);
        match self.random.below(6) {
            0 => Some(Entry::Directory(inode)),
            1 => Some(Entry::Linked(inode, InodeNumber(9))),
            2 => Some(Entry::Single(inode, self.opaque())),
            _ => None,
        }
    }

    fn buckets(&mut self) -> Buckets {
        let numbers = [2, 3].map(|number| InodeNumber(number + self.random.below(2) as u64 * 2));
        Buckets::new(&numbers).unwrap()
    }

    fn split(&mut self, reference: &MemoryNames, shard: InodeNumber) -> Change {
        let entries = match reference.run(shard, &Script::List(0, 100)).unwrap() {
            Answer::Entries { entries, .. } => entries.len() as u64,
            _ => 0,
        };
        let entries = entries + u64::from(self.random.below(4) == 0);
        let version = if self.random.below(4) == 0 { ANOTHER } else { CURRENT };
        Change::Split { version, entries, buckets: self.buckets() }
    }

    fn fill(&mut self) -> Script {
        let entries = (0..self.random.below(3)).filter_map(|_| {
            self.place += 1;
            Some((self.place, self.name(), self.entry()?))
        });
        Script::Fill(entries.collect())
    }

    fn links(&mut self) -> Links {
        Links { count: u32::try_from(self.random.below(3)).unwrap(), attributes: Opaque::default() }
    }

    /// Mostly of what is there, so that some changes are made.
    fn change(&mut self, reference: &MemoryNames, shard: InodeNumber) -> Change {
        let read = |slot| reference.run(shard, &Script::Read(slot)).unwrap();
        let guesses = self.random.below(4) == 0;
        match self.random.below(8) {
            0 => {
                let now = match read(Slot::Parent) {
                    Answer::Parent(parent) if !guesses => parent,
                    _ => self.shard(),
                };
                Change::Parent(now, self.shard())
            }
            1 => {
                let from = match read(Slot::Attributes) {
                    Answer::Attributes(now, _) if !guesses => now,
                    _ => self.opaque(),
                };
                Change::Attributes {
                    from,
                    to: self.opaque(),
                    sets_changed: self.random.below(2) == 0,
                }
            }
            2 => {
                let from = match read(Slot::Whole) {
                    Answer::Links(now) if !guesses => now,
                    _ => self.links(),
                };
                Change::Links(from, self.links())
            }
            3 if self.random.below(4) == 0 => Change::End(match read(Slot::Name("a".into())) {
                Answer::Split(buckets) if !guesses => buckets,
                _ if self.random.below(6) == 0 => self.buckets(),
                _ => Buckets::default(),
            }),
            4 if self.random.below(4) == 0 => self.split(reference, shard),
            _ => {
                let name = self.name();
                let from = match read(Slot::Name(name.clone())) {
                    Answer::Name(now, _) if !guesses => now,
                    _ => self.entry(),
                };
                Change::Name(name, from, self.entry())
            }
        }
    }

    fn id(&mut self) -> IntentId {
        let known = self.random.below(self.ids.len() + 1);
        self.ids.get(known).copied().unwrap_or_else(|| {
            let id =
                IntentId { session: Session(self.random.any()), number: self.ids.len() as u64 };
            self.ids.push(id);
            id
        })
    }

    fn script(&mut self, reference: &MemoryNames, shard: InodeNumber) -> Script {
        let intent = |scripts: &mut Self| {
            let id = scripts.id();
            // One intent is always the same.
            Intent {
                id,
                decider: InodeNumber(1 + id.number % 3),
                locked: vec![InodeNumber(2), InodeNumber(3)],
            }
        };
        match self.random.below(14) {
            12 => self.fill(),
            13 => match self.random.below(3) {
                0 => Script::Discard(self.shard()),
                _ => Script::Touch,
            },
            0 => match self.random.below(4) {
                0 => Script::Make(Body::Links(self.links())),
                1 => Script::Make(Body::bucket(self.shard())),
                _ => Script::Make(Body::directory(self.shard(), self.opaque())),
            },
            1 => Script::Read(match self.random.below(4) {
                0 => Slot::Parent,
                1 => Slot::Attributes,
                2 => Slot::Whole,
                _ => Slot::Name(self.name()),
            }),
            2 => Script::List(self.random.below(4) as u64, 1 + self.random.below(3)),
            3 | 4 => {
                let intent = intent(self);
                // It locks one slot of a shard, so that the order in which its locks are finished is nobody's business.
                if !self.locked.insert((intent.id, shard)) {
                    return Script::Finish(intent.id, Outcome::Committed);
                }
                Script::Prepare(intent, self.change(reference, shard))
            }
            5 => {
                let settlements = match reference.run(shard, &Script::Read(Slot::Name("a".into())))
                {
                    Ok(Answer::Name(_, settlements)) => settlements,
                    _ => 0,
                };
                let changes = (0..self.random.below(3)).map(|_| self.change(reference, shard));
                let changes = changes.collect::<Vec<_>>();
                Script::Decide(intent(self), settlements, distinct(changes))
            }
            6 => Script::Settle(self.id()),
            7 => {
                let outcome =
                    if self.random.below(2) == 0 { Outcome::Committed } else { Outcome::Aborted };
                Script::Finish(self.id(), outcome)
            }
            8 => match self.random.below(4) {
                0 => Script::Finished(self.id()),
                _ => Script::Forget(self.id()),
            },
            _ => {
                let changes = (0..=self.random.below(2)).map(|_| self.change(reference, shard));
                Script::Alone(distinct(changes.collect()))
            }
        }
    }
}

/// A plan changes no slot twice, and nothing beside an end.
fn distinct(changes: Vec<Change>) -> Vec<Change> {
    let mut kept: Vec<Change> = Vec::new();
    for change in changes {
        let is_whole = |change: &Change| change.slot() == Slot::Whole;
        let meets =
            |other: &Change| other.slot() == change.slot() || is_whole(other) || is_whole(&change);
        if !kept.iter().any(meets) {
            kept.push(change);
        }
    }
    kept
}

/// Clocks differ, versions, and which of several intents is in the way.
fn plain(answer: Answer) -> (Answer, Option<Intent>, bool) {
    match answer {
        Answer::Attributes(attributes, changed) => {
            (Answer::Attributes(attributes, 0), None, changed > 0)
        }
        Answer::Busy(intent) => {
            let some = Intent {
                locked: Vec::new(),
                decider: ROOT,
                id: IntentId { session: Session(0), number: 0 },
            };
            (Answer::Busy(some), Some(intent), false)
        }
        Answer::Entries { entries, is_last, .. } => {
            (Answer::Entries { entries, is_last, version: 0 }, None, false)
        }
        answer => (answer, None, false),
    }
}

/// A split of the version that a store has, where it is one of the current version.
fn of_version(store: &dyn NameStore, shard: InodeNumber, script: &Script) -> Script {
    let current = || match store.run(shard, &Script::List(u64::MAX >> 2, 1)) {
        Ok(Answer::Entries { version, .. }) => version,
        _ => 0,
    };
    let change = |change: &Change| match change.clone() {
        Change::Split { version: CURRENT, entries, buckets } => {
            Change::Split { version: current(), entries, buckets }
        }
        change => change,
    };
    match script {
        Script::Alone(changes) => Script::Alone(changes.iter().map(change).collect()),
        Script::Decide(intent, settlements, changes) => {
            Script::Decide(intent.clone(), *settlements, changes.iter().map(change).collect())
        }
        Script::Prepare(intent, one) => Script::Prepare(intent.clone(), change(one)),
        script => script.clone(),
    }
}

/// Runs scripts on both.
fn compare(store: &dyn NameStore, seed: u64, (shards, rounds): (u64, usize)) {
    let reference = MemoryNames::default().splitting_from(Some(ENTRIES_MAX));
    reference.begin_epoch(false).unwrap();
    store.begin_epoch(false).unwrap();
    for shard in store.shards().unwrap() {
        store.remove(shard).unwrap();
    }
    let mut scripts = Scripts {
        random: Random(seed),
        shards,
        ids: Vec::new(),
        locked: BTreeSet::new(),
        place: 0,
    };
    for round in 0..rounds {
        let shard = scripts.shard();
        let script = scripts.script(&reference, shard);
        let [told_reference, told_store] =
            [&reference as &dyn NameStore, store].map(|store| of_version(store, shard, &script));
        let (expected, intent, was_changed) = plain(reference.run(shard, &told_reference).unwrap());
        let (found, other, is_changed) = plain(store.run(shard, &told_store).unwrap());
        let told = format!("seed {seed}, {round}: {shard:?} {script:?}");
        assert_eq!(found, expected, "{told}");
        assert_eq!(is_changed, was_changed, "{told}");
        if intent != other {
            let there = reference.inspect(shard).unwrap().unwrap();
            let other = other.unwrap();
            assert!(there.locks.contains(&other) || there.committed.contains(&other), "{told}");
        }
        let sorted = |store: &dyn NameStore| {
            let mut found = store.inspect(shard).unwrap().unwrap_or_default();
            found.locks.sort_unstable();
            found.committed.sort_unstable();
            found
        };
        assert_eq!(sorted(store), sorted(&reference), "{told}");
    }
    assert_eq!(store.shards().unwrap(), reference.shards().unwrap(), "seed {seed}");
}

#[test]
fn a_server_answers_as_the_reference_does() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = RedisNames::connect(&server.url(), None, "test").unwrap();
    let store = store.splitting_from(Some(ENTRIES_MAX));
    for seed in 0..24 {
        compare(&store, seed, (1 + seed % 4, 500));
    }
}

#[test]
fn a_cluster_answers_as_the_reference_does() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    let store = RedisNames::connect(&cluster.urls(), None, "test").unwrap();
    let store = Arc::new(store.splitting_from(Some(ENTRIES_MAX)));
    for seed in 100..108 {
        compare(&*store, seed, (4, 300));
    }
}
