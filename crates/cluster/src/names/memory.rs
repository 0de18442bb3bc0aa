//! A store of names within one process: the reference for tests, and for measuring the cost of the node itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::namespace::{Answer, Body, InodeNumber, Script, Shard, Shards};
use parking_lot::Mutex;

use super::split_limits::SplitLimits;
use super::{InspectedShard, NameStore, NamesError, PAGE_ENTRIES_MAX, Result, State};

/// The store, as one node uses it.
#[derive(Debug)]
pub struct MemoryNames {
    shared: Arc<Mutex<Shared>>,
    /// The epoch that this node uses.
    epoch: AtomicU64,
    asked: AtomicU64,
    splits: SplitLimits,
}

/// The state that all nodes share. Epoch 0 means that the store may have forgotten something.
#[derive(Debug, Clone, Default)]
struct Shared {
    shards: BTreeMap<InodeNumber, Shard>,
    epoch: u64,
    is_held: bool,
    epochs: u64,
    numbers: u64,
    /// Its clock, which counts scripts.
    now: u64,
}

impl Default for MemoryNames {
    fn default() -> Self {
        let [epoch, asked] = [const { AtomicU64::new(0) }; 2];
        Self { shared: Arc::default(), epoch, asked, splits: SplitLimits::default() }
    }
}

impl MemoryNames {
    /// The same store for another node.
    #[must_use]
    pub fn for_another_node(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), ..Self::default() }
    }

    /// The same, which splits directories that have so many entries and get another one; `None`: none.
    #[must_use]
    pub fn splitting_from(self, entries: Option<u64>) -> Self {
        Self { splits: SplitLimits::new(entries), ..self }
    }

    /// For tests: its current content, for a later [`restart`](Self::restart).
    #[must_use]
    pub fn saved(&self) -> Shards {
        Shards(self.shared.lock().shards.clone())
    }

    /// For tests: restarts it with the saved content.
    pub fn restart(&self, saved: Shards) {
        let shared = &mut *self.shared.lock();
        (shared.shards, shared.epoch) = (saved.0, 0);
    }

    fn in_epoch<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> Result<T> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let shared = &mut *self.shared.lock();
        if shared.epoch == 0 || shared.epoch != self.epoch.load(Ordering::SeqCst) {
            return Err(NamesError::Stale);
        }
        Ok(act(shared))
    }
}

impl NameStore for MemoryNames {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        self.in_epoch(|shared| {
            shared.now += 1;
            let script = match script {
                Script::List(after, limit) => &Script::List(*after, (*limit).min(PAGE_ENTRIES_MAX)),
                script => script,
            };
            let mut shards = Shards(std::mem::take(&mut shared.shards));
            let entries_max = self.splits.of(shard).unwrap_or(u64::MAX);
            let answer = shards.run_within(shard, script, shared.now, entries_max);
            shared.shards = shards.0;
            answer
        })
    }

    fn refresh(&self) -> Result<State> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared.lock();
        self.epoch.store(if shared.is_held { 0 } else { shared.epoch }, Ordering::SeqCst);
        Ok(match shared.epoch {
            0 if shared.shards.is_empty() => State::Empty,
            0 => State::Doubtful(1),
            _ if shared.is_held => State::Held,
            _ => State::Confirmed,
        })
    }

    fn begin_epoch(&self, is_alone: bool) -> Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let shared = &mut *self.shared.lock();
        shared.epochs += 1;
        (shared.epoch, shared.is_held) = (shared.epochs, is_alone);
        self.epoch.store(shared.epoch, Ordering::SeqCst);
        Ok(())
    }

    fn reserve(&self, count: u64) -> Result<u64> {
        self.in_epoch(|shared| {
            // 1 is the root.
            let first = shared.numbers + 2;
            shared.numbers += count;
            first
        })
    }

    fn shards(&self) -> Result<Vec<InodeNumber>> {
        self.in_epoch(|shared| shared.shards.keys().copied().collect())
    }

    fn inspect(&self, shard: InodeNumber) -> Result<Option<InspectedShard>> {
        let inspected = |shard: &Shard| InspectedShard {
            is_directory: shard.body.directory_of().is_some(),
            is_bucket: matches!(shard.body, Body::Bucket { .. }),
            locks: shard.locks.values().map(|(intent, _)| intent.clone()).collect(),
            committed: shard.committed.values().map(|(intent, _)| intent.clone()).collect(),
        };
        self.in_epoch(|shared| shared.shards.get(&shard).map(inspected))
    }

    fn remove(&self, shard: InodeNumber) -> Result<()> {
        self.in_epoch(|shared| drop(shared.shards.remove(&shard)))
    }

    fn spare(&self, directory: InodeNumber, entries: u64) {
        self.splits.spare(directory, entries);
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}
