//! The tables in memory, durable through a store of records ([`RecordStore`]).
//!
//! A change is planned on the extents, committed to the store, then applied to memory: memory is never ahead of the
//! store, and a reader waits only for the last step. Locks are taken in the order names, files, a file's `change`, its
//! `mapped`, the eviction queue; a search for victims holds the eviction queue and only tries the others.

mod blocks;
mod change;
mod cleaned;
mod critical;
mod epochs;
mod evict;
mod extent_index;
mod open;
mod options;
mod registry;
mod replace;
mod sums;
#[cfg(test)]
mod tests;
mod untrusted;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::batch::Batch;
use super::cdt::Cdt;
use super::checksums::Checksums;
use super::eviction_queue::EvictionQueue;
use super::identity::CacheIdentity;
use super::invalidations::Invalidation;
use super::load::{self, Recovery, Shutdown, Source};
use super::owner::Owner;
use super::record;
use super::record::State;
use super::records::RecordStore;
use super::records::unrecorded::Unrecorded;
use halocline_os::error::{Error, Result};

pub use super::block_accounting::Space;
pub use blocks::UnmappedBlocks;
pub use change::ExtentChanges;
pub use critical::CriticalRanges;
pub use evict::Evictor;
pub use extent_index::ExtentIndex;
pub use options::{Access, NowMs, Options};
pub use registry::FileRegistry;
pub use untrusted::Untrusted;

use epochs::Epochs;
use sums::Sums;

/// Name of the store's directory in the cache directory.
pub const STORE_DIR: &str = "meta";

/// The data mapping table and the critical data table of one process, with the accounting of space and the eviction
/// queue, over a store of records.
///
/// The caller guarantees that it holds the file's range lock over every range that it passes (shared for `lookup` and
/// `touch`, exclusive otherwise), and that data is on the cache before `map`. Every change is recorded when its call
/// returns: it survives `kill -9`, as a whole or not at all. After a power loss there is a consistent prefix of all
/// changes.
pub struct ExtentTable {
    // Field order is drop order: the store, which the fields before the last also hold, closes before the cache directory is
    // given up.
    records: Arc<dyn RecordStore>,
    critical: Arc<CriticalRanges>,
    index: Arc<ExtentIndex>,
    epochs: Arc<Epochs>,
    changes: Arc<ExtentChanges>,
    evictor: Evictor,
    blocks: UnmappedBlocks,
    untrusted: Untrusted,
    /// Identifies this session in the records.
    boot_id: String,
    checksums: Checksums,
    owner: Arc<Owner>,
}

impl fmt::Debug for ExtentTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentTable")
            .field("records", &self.records)
            .field("usage", &self.index.usage())
            .field("limit", &self.index.space().limit())
            .finish_non_exhaustive()
    }
}

/// Opening.
impl ExtentTable {
    /// Takes the cache directory `dir` and opens its tables, or creates them if it is empty.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Recovery)> {
        Self::open_on_boot(dir, options, &halocline_os::boot_id::boot_id()?)
    }

    /// The same on a machine with the boot id `boot_id`, which distinguishes a power loss from a crash.
    pub fn open_on_boot(dir: &Path, options: Options, boot_id: &str) -> Result<(Self, Recovery)> {
        Self::open_rewriting(dir, options, boot_id, None)
    }

    /// For tests: the same with a log that is replaced by a snapshot whenever it takes `log_bytes` bytes, so that a few
    /// records lead to snapshots.
    pub fn open_tuned(
        dir: &Path,
        options: Options,
        boot_id: &str,
        log_bytes: u64,
    ) -> Result<(Self, Recovery)> {
        Self::open_rewriting(dir, options, boot_id, Some(log_bytes))
    }

    fn open_rewriting(
        dir: &Path,
        options: Options,
        boot_id: &str,
        rewrite_bytes: Option<u64>,
    ) -> Result<(Self, Recovery)> {
        let opened = open::store(dir, &options, boot_id, rewrite_bytes)?;
        let (owner, invalidated) = (opened.owner, &opened.invalidated);
        let (dmt, mut recovery) =
            Self::over((owner, invalidated), opened.records, options, boot_id)?;
        recovery.damage = opened.damage;
        Ok((dmt, recovery))
    }

    /// The tables of an owned cache whose records are open, and the invalidations that were found for it.
    fn over(
        (owner, invalidated): (Owner, &[Invalidation]),
        records: Arc<dyn RecordStore>,
        options: Options,
        boot_id: &str,
    ) -> Result<(Self, Recovery)> {
        let set_aside = options.records_bytes;
        let access = options.access;
        let looks = access != Access::Change;
        let records = if looks { Arc::new(Unrecorded(records)) } else { records };
        let space = Space::new(options.limit_bytes, Arc::clone(&records), set_aside);
        let eviction_queue = EvictionQueue::new(options.eviction);
        let cdt = Cdt::new(options.cdt_entries);
        let path = &owner.dir().join(STORE_DIR);
        let source = Source { records: &*records, path, space: &space };
        let loaded = load::load(source, eviction_queue, cdt, boot_id)?;
        if loaded.recovery.last_shutdown == Shutdown::PowerLost {
            tracing::warn!(
                files = loaded.recovery.dropped.len(),
                "the machine went down: extents that no fsync covered were dropped"
            );
        }
        let of_boot = (boot_id, loaded.recovery.last_shutdown);
        let are_kept = options.checksums;
        let checksums =
            open::checksums(&owner, (are_kept, access), of_boot, &space, &loaded.files)?;
        let critical = Arc::new(CriticalRanges::new(&records, loaded.cdt));
        let files = FileRegistry::new(&records, &critical, loaded.files);
        let (sums, last) = (Sums::of(loaded.counts), (loaded.generation, options.clock));
        let index = ExtentIndex::new(files, (space, sums), loaded.eviction_queue, last);
        let (index, owner) = (Arc::new(index), Arc::new(owner));
        let epochs = Arc::new(Epochs::after(loaded.epoch, loaded.completed));
        let changes =
            Arc::new(ExtentChanges::new(&records, &index, &epochs, &owner, options.intent_bytes));
        let dmt = Self {
            evictor: Evictor::new(&records, &index, &epochs),
            blocks: UnmappedBlocks::new(&index, &epochs, loaded.recovery.trim),
            untrusted: Untrusted::new(&changes, &index, &owner),
            records,
            critical,
            index,
            epochs,
            changes,
            boot_id: boot_id.to_owned(),
            checksums,
            owner,
        };
        dmt.untrusted.honour(invalidated, access)?;
        match access {
            Access::Change if dmt.index.usage().dirty > 0 => dmt.owner.mark().set(),
            Access::Change if options.marks_witness => {}
            _ => dmt.owner.mark().leave_off(),
        }
        Ok((dmt, loaded.recovery))
    }
}

impl ExtentTable {
    /// The identity of the cache directory.
    pub fn identity(&self) -> &CacheIdentity {
        self.owner.identity()
    }
}

/// The components, each with its own methods.
impl ExtentTable {
    /// The files that the cache knows.
    pub fn files(&self) -> &FileRegistry {
        self.index.files()
    }

    /// The critical data table.
    pub fn critical(&self) -> &CriticalRanges {
        &self.critical
    }

    /// What is cached.
    pub fn index(&self) -> &ExtentIndex {
        &self.index
    }

    /// Changes of what is cached.
    pub fn changes(&self) -> &ExtentChanges {
        &self.changes
    }

    /// What takes extents off the cache to make room.
    pub fn evictor(&self) -> &Evictor {
        &self.evictor
    }

    /// Blocks that no extent uses.
    pub fn blocks(&self) -> &UnmappedBlocks {
        &self.blocks
    }

    /// What to do where the store refuses changes.
    pub fn untrusted(&self) -> &Untrusted {
        &self.untrusted
    }

    /// The limit of the cache, and what counts against it.
    pub fn space(&self) -> &Space {
        self.index.space()
    }

    /// Checksums of cached data.
    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }
}

/// What is durable, and what of it is closed.
impl ExtentTable {
    /// Begins a barrier: what is mapped or dirtied from now on belongs to the next one. To be called before data is
    /// synced; otherwise data written during the sync would count as synced.
    pub fn cut(&self) {
        if self.evictor.was_crowded() {
            // Before the cut, so that this barrier makes them evictable. A failure latches in the log, and the
            // barrier reports it.
            let _ = self.changes.settle_intents();
        }
        self.epochs.cut();
    }

    /// Makes all changes before the last `cut` durable against power loss (and those before this call, if there was no
    /// `cut` since the last barrier). The caller has synced their data, and allows only one barrier at a time between
    /// `cut` and `barrier`.
    pub fn barrier(&self) -> Result<()> {
        if !self.epochs.is_cut() {
            self.cut();
        }
        let epoch = self.epochs.closed();
        let mut covered = Batch::default();
        covered.put(record::EPOCH_KEY, &record::encode_counter(epoch));
        self.records.commit(&covered)?;
        self.changes.persist()?;
        self.epochs.complete(epoch);
        Ok(())
    }

    /// Marks the store as cleanly closed. The caller has synced all data. Every later change is refused.
    pub fn close(&self) -> Result<()> {
        // What is clean stays clean at the next opening.
        self.changes.settle_intents()?;
        self.checksums.close().map_err(Error::at(self.owner.dir(), "sync the checksums in"))?;
        let untrimmed = self.blocks.are_to_be_trimmed();
        let state = State { closed: true, untrimmed, boot_id: self.boot_id.clone() };
        let mut last = Batch::default();
        last.put(record::STATE_KEY, &record::encode_state(&state));
        self.records.close(&last)
    }

    /// Removes its mark from the origin if nothing is dirty; after that, another cache may be mounted over the origin.
    /// The caller MUST have made what was dirty durable there.
    pub fn settle_origin(&self) {
        if self.index.usage().dirty == 0 {
            self.owner.mark().clear();
        }
    }
}
