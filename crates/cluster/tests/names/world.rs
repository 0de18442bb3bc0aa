//! What the tests of names share: stores, nodes, and faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{Namespace, WaitLimit};
use halocline_cluster::names::{InspectedShard, NameStore, NamesError, Result, State};
use halocline_model::namespace::{Answer, EntryName, InodeNumber, Intent, IntentId, ROOT, Script};
use halocline_model::token::Session;
use halocline_os::clock::Clock;

pub(crate) fn file() -> Attributes {
    Attributes::new(Kind::File, 0o644, 0)
}

pub(crate) fn directory() -> Attributes {
    Attributes::new(Kind::Directory, 0o755, 0)
}

pub(crate) fn at(directory: InodeNumber, name: &str) -> EntryName {
    EntryName { directory, name: name.into() }
}

/// From how many entries on directories are split in the tests of all operations: so few that most are, and never.
pub(crate) const LIMITS: [Option<u64>; 2] = [None, Some(2)];

/// Does not wait for others: what is in the way is completed at once.
pub(crate) const HASTE: WaitLimit =
    WaitLimit { limit: Duration::ZERO, pause: Duration::ZERO, clock: Clock::MACHINE };

/// A node on a store.
pub(crate) fn node(store: Arc<dyn NameStore>, session: u64, wait: WaitLimit) -> Namespace {
    Namespace::open(store, Session(session), wait).unwrap()
}

/// What becomes of the scripts of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The node dies before it sends this one.
    Dies,
    /// It dies when this one has run.
    DiesAfter,
    /// The answer of this one is lost.
    LosesAnswer,
    /// This one is lost.
    LosesScript,
    /// Before this one, each that reads meets another intent of a node that is gone.
    MeetsIntents,
}

/// Whose intents these are.
const GONE: Session = Session(99);

/// A store on which something goes wrong with the script of one number, or before it.
#[derive(Debug)]
pub(crate) struct Faulty {
    store: Arc<dyn NameStore>,
    fault: Fault,
    at: u64,
    sent: AtomicU64,
}

impl Faulty {
    pub(crate) fn new(store: Arc<dyn NameStore>, fault: Fault, at: u64) -> Self {
        Self { store, fault, at, sent: AtomicU64::new(0) }
    }

    /// Whether the operation was over before the fault came.
    pub(crate) fn is_over(&self) -> bool {
        self.sent.load(Ordering::SeqCst) <= self.at
    }
}

fn lost<T>() -> Result<T> {
    Err(NamesError::NoAnswer("as the test wants".to_owned()))
}

impl NameStore for Faulty {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        let number = self.sent.fetch_add(1, Ordering::SeqCst);
        let reads = matches!(script, Script::Read(_));
        if self.fault == Fault::MeetsIntents && reads && number < self.at {
            let id = IntentId { session: GONE, number };
            return Ok(Answer::Busy(Intent { id, decider: shard, locked: vec![shard] }));
        }
        let is_dead = match self.fault {
            Fault::Dies => number >= self.at,
            Fault::DiesAfter => number > self.at,
            Fault::LosesScript => number == self.at,
            Fault::LosesAnswer | Fault::MeetsIntents => false,
        };
        if is_dead {
            return lost();
        }
        let answer = self.store.run(shard, script);
        if number == self.at && self.fault != Fault::MeetsIntents { lost() } else { answer }
    }

    fn refresh(&self) -> Result<State> {
        self.store.refresh()
    }

    fn begin_epoch(&self, is_alone: bool) -> Result<()> {
        self.store.begin_epoch(is_alone)
    }

    fn reserve(&self, count: u64) -> Result<u64> {
        self.store.reserve(count)
    }

    fn shards(&self) -> Result<Vec<InodeNumber>> {
        self.store.shards()
    }

    fn inspect(&self, shard: InodeNumber) -> Result<Option<InspectedShard>> {
        self.store.inspect(shard)
    }

    fn remove(&self, shard: InodeNumber) -> Result<()> {
        self.store.remove(shard)
    }

    fn touched_for(&self) -> Duration {
        self.store.touched_for()
    }

    fn spare(&self, directory: InodeNumber, entries: u64) {
        self.store.spare(directory, entries);
    }

    fn round_trips(&self) -> u64 {
        self.store.round_trips()
    }
}

/// All names below a directory, with what they lead to and how many names that has, in order.
pub(crate) fn tree(names: &Namespace) -> Vec<(String, InodeNumber, u32)> {
    let mut all = Vec::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, directory)) = todo.pop() {
        let mut cursor = 0;
        loop {
            let (entries, is_last) = names.list(directory, cursor, 3).unwrap();
            for entry in entries {
                cursor = entry.cursor;
                let name = entry.name.as_bytes().escape_ascii();
                let path = format!("{path}/{name}");
                let stored =
                    names.lookup(&EntryName { directory, name: entry.name.clone() }).unwrap();
                assert_eq!(
                    (stored.inode, entry.is_directory),
                    (entry.inode, is_directory(&stored))
                );
                if entry.is_directory {
                    assert_eq!(names.parent(entry.inode).unwrap(), directory, "{path}");
                    todo.push((path.clone(), entry.inode));
                }
                all.push((path, stored.inode, stored.links));
            }
            if is_last {
                break;
            }
        }
    }
    all.sort_unstable();
    for (path, inode, links) in &all {
        let names = all.iter().filter(|(_, other, _)| other == inode).count();
        assert_eq!(names, *links as usize, "{path}: {all:?}");
    }
    all
}

fn is_directory(stored: &halocline_cluster::names::namespace::StoredInode) -> bool {
    stored.attributes.kind == Kind::Directory
}

/// Names for short: `/a/f`.
pub(crate) fn paths(names: &Namespace) -> Vec<String> {
    tree(names).into_iter().map(|(path, ..)| path).collect()
}
