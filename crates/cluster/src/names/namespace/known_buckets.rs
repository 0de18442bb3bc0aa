//! Which buckets directories have, as this node was told: a directory keeps its buckets as long as it exists, and their
//! numbers are never used again. So what is known is right, or the bucket is gone, and its directory is asked again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use halocline_model::namespace::{Buckets, EntryName, InodeNumber};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// The most directories that are remembered; then all are forgotten, and asked again.
const DIRECTORIES_MAX: usize = 4096;

#[derive(Debug, Clone)]
struct Known {
    buckets: Buckets,
    /// Until when the directory's time moves on by itself.
    touched: Option<Instant>,
    /// Counts how often this node has set that time.
    times_set: u64,
}

/// What this node knows of directories with buckets.
#[derive(Debug, Default)]
pub(super) struct KnownBuckets {
    all: RwLock<FxHashMap<u64, Known>>,
}

impl KnownBuckets {
    pub(super) fn of(&self, directory: InodeNumber) -> Option<Buckets> {
        self.all.read().get(&directory.0).map(|known| known.buckets.clone())
    }

    /// The shard that has a name, as far as is known.
    pub(super) fn shard(&self, at: &EntryName) -> InodeNumber {
        let all = self.all.read();
        let known = all.get(&at.directory.0);
        known.and_then(|known| known.buckets.of(&at.name)).unwrap_or(at.directory)
    }

    /// A name at the shard that has it.
    pub(super) fn place(&self, at: &EntryName) -> EntryName {
        EntryName { directory: self.shard(at), name: at.name.clone() }
    }

    pub(super) fn learn(&self, directory: InodeNumber, buckets: &Buckets) {
        let mut all = self.all.write();
        if all.get(&directory.0).is_some_and(|known| known.buckets == *buckets) {
            return;
        }
        if all.len() >= DIRECTORIES_MAX {
            all.clear();
        }
        let known = Known { buckets: buckets.clone(), touched: None, times_set: 0 };
        all.insert(directory.0, known);
    }

    pub(super) fn learn_all(&self, told: &BTreeMap<InodeNumber, Buckets>) {
        for (directory, buckets) in told {
            self.learn(*directory, buckets);
        }
    }

    pub(super) fn forget(&self, directory: InodeNumber) {
        self.all.write().remove(&directory.0);
    }

    pub(super) fn forget_all(&self) {
        self.all.write().clear();
    }

    /// How often this node has set the time of a directory with buckets, if that time is to be moved on now.
    pub(super) fn must_touch(&self, directory: InodeNumber, now: Instant) -> Option<u64> {
        let all = self.all.read();
        let known = all.get(&directory.0)?;
        known.touched.is_none_or(|until| until <= now).then_some(known.times_set)
    }

    /// The time moves on by itself for so long after `sent`, unless this node has set it since.
    pub(super) fn touched(
        &self,
        directory: InodeNumber,
        times_set: u64,
        (sent, lasts): (Instant, Duration),
    ) {
        if let Some(known) = self.all.write().get_mut(&directory.0)
            && known.times_set == times_set
        {
            known.touched = known.touched.max(sent.checked_add(lasts));
        }
    }

    /// This node sets a directory's time: it no longer moves on by itself.
    pub(super) fn set_time(&self, directory: InodeNumber) {
        if let Some(known) = self.all.write().get_mut(&directory.0) {
            (known.touched, known.times_set) = (None, known.times_set + 1);
        }
    }
}
