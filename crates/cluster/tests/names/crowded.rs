//! A directory in which one intent after another is in the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Namespace, WaitLimit};
use halocline_cluster::names::{InspectedShard, NameStore, Result, State};
use halocline_model::namespace::{Answer, InodeNumber, Intent, IntentId, ROOT, Script};
use halocline_model::token::Session;
use halocline_os::clock::Clock;

use super::world::{at, directory, node};

/// Whose intents these are.
const OTHER: Session = Session(99);

/// A store in which each request meets another intent.
#[derive(Debug)]
struct Crowded {
    store: MemoryNames,
    met: AtomicU64,
    intents: u64,
}

impl NameStore for Crowded {
    fn run(&self, shard: InodeNumber, script: &Script) -> Result<Answer> {
        let is_read = matches!(script, Script::Read(_));
        let number = self.met.fetch_add(u64::from(is_read), Ordering::SeqCst);
        if is_read && number < self.intents {
            let id = IntentId { session: OTHER, number };
            return Ok(Answer::Busy(Intent { id, decider: shard, locked: vec![shard] }));
        }
        self.store.run(shard, script)
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

    fn round_trips(&self) -> u64 {
        self.store.round_trips()
    }
}

/// Regression: each further intent was waited for as long as the first one, without end.
#[test]
fn intents_that_follow_one_another_are_not_waited_for_without_end() {
    let store = MemoryNames::default();
    Namespace::format(&store, &directory()).unwrap();
    let clock = Clock::simulated();
    let wait = WaitLimit { clock: clock.clone(), ..WaitLimit::default() };
    let crowded = Arc::new(Crowded { store, met: AtomicU64::new(0), intents: 20_000 });
    let names = node(Arc::clone(&crowded) as _, 1, wait);
    let begun = clock.instant();
    let _is_absent = names.lookup(&at(ROOT, "f"));
    let counts = names.counts();
    assert!(counts.completed >= 10, "{counts:?}");
    let each = clock.elapsed(begun) / u32::try_from(counts.completed).unwrap();
    assert!(each <= Duration::from_millis(1100), "{each:?}: {counts:?}");
}
