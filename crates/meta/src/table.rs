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
mod open;
mod options;
mod registry;
mod replace;
mod sums;
#[cfg(test)]
mod tests;
mod untrusted;
mod write_intents;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};

use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::batch::Batch;
use super::block_accounting::Space;
use super::cdt::Cdt;
use super::checksums::Checksums;
use super::eviction_queue::{EvictionQueue, Uses};
use super::files::Busy;
use super::identity::CacheIdentity;
use super::invalidations::Invalidation;
use super::load::{self, Recovery, Shutdown, Source};
use super::log::Pace;
use super::owner::Owner;
use super::record::State;
use super::records::RecordStore;
use super::records::unrecorded::Unrecorded;
use super::{Extent, FileId, FileRecord, OriginKey, Segment, Stamp, Usage, record};
use halocline_os::error::{Error, Result};

pub use critical::CriticalRanges;
pub use options::{Access, Clock, Options};

use cleaned::Cleaned;
use epochs::Epochs;
use registry::FileRegistry;
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
    // Field order is drop order: the store, which the next three fields also hold, closes before the cache directory is
    // given up.
    records: Arc<dyn RecordStore>,
    files: FileRegistry,
    critical: Arc<CriticalRanges>,
    space: Space,
    /// Identifies this session in the records.
    boot_id: String,
    checksums: Checksums,
    owner: Owner,
    clock: Clock,
    busy: Busy,
    eviction_queue: Mutex<EvictionQueue>,
    sums: Sums,
    epochs: Epochs,
    cleaned: Cleaned,
    generation: AtomicU64,
    intent_bytes: u64,
    /// Whether eviction needed space that is taken by held extents.
    crowded: AtomicBool,
    /// Whether objects may contain blocks that are not accounted for here, until the caller has trimmed them.
    untrimmed: AtomicBool,
}

impl fmt::Debug for ExtentTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentTable")
            .field("records", &self.records)
            .field("usage", &self.usage())
            .field("limit", &self.space.limit())
            .finish_non_exhaustive()
    }
}

impl ExtentTable {
    /// Takes the cache directory `dir` and opens its tables, or creates them if it is empty.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Recovery)> {
        Self::open_on_boot(dir, options, &halocline_os::boot_id::boot_id()?)
    }

    /// The same on a machine with the boot id `boot_id`, which distinguishes a power loss from a crash.
    pub fn open_on_boot(dir: &Path, options: Options, boot_id: &str) -> Result<(Self, Recovery)> {
        let pace = Pace::of(options.records_bytes);
        Self::open_at_pace(dir, options, boot_id, pace)
    }

    /// For tests: the same with a log that is replaced by a snapshot whenever it takes `log_bytes` bytes, so that a few
    /// records lead to snapshots.
    pub fn open_tuned(
        dir: &Path,
        options: Options,
        boot_id: &str,
        log_bytes: u64,
    ) -> Result<(Self, Recovery)> {
        Self::open_at_pace(dir, options, boot_id, Pace::of_log(log_bytes))
    }

    fn open_at_pace(
        dir: &Path,
        options: Options,
        boot_id: &str,
        pace: Pace,
    ) -> Result<(Self, Recovery)> {
        halocline_os::private::check_above(dir)?;
        let (mut owner, invalidated) = Owner::take_with_witness(dir, options.witness.as_deref())?;
        let mut damage = None;
        let records = match options.access {
            Access::Salvage => open::salvage_records(&owner, boot_id, &mut damage)?,
            _ => open::open_records(&mut owner, boot_id, pace)?,
        };
        let (dmt, mut recovery) = Self::over((owner, &invalidated), records, options, boot_id)?;
        recovery.damage = damage;
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
            open::open_checksums(&owner, (are_kept, access), of_boot, &space, &loaded.files)?;
        let critical = Arc::new(CriticalRanges::new(&records, loaded.cdt));
        let files = FileRegistry::new(&records, &critical, loaded.files);
        let dmt = Self {
            records,
            boot_id: boot_id.to_owned(),
            checksums,
            owner,
            clock: options.clock,
            space,
            files,
            critical,
            busy: Busy::default(),
            eviction_queue: Mutex::new(loaded.eviction_queue),
            sums: Sums::of(loaded.counts),
            epochs: Epochs::after(loaded.epoch, loaded.completed),
            cleaned: Cleaned::default(),
            generation: loaded.generation.into(),
            intent_bytes: options.intent_bytes,
            crowded: false.into(),
            untrimmed: loaded.recovery.trim.into(),
        };
        for state in dmt.files.read().all() {
            dmt.busy.update(state, &state.mapped.write());
        }
        dmt.honour(invalidated, access)?;
        match access {
            Access::Change if dmt.usage().dirty > 0 => dmt.owner.mark().set(),
            Access::Change if options.marks_witness => {}
            _ => dmt.owner.mark().leave_off(),
        }
        Ok((dmt, loaded.recovery))
    }

    /// The identity of the cache directory.
    pub fn identity(&self) -> &CacheIdentity {
        self.owner.identity()
    }

    fn now_ms(&self) -> u64 {
        (self.clock)().clamp(1, (1 << 48) - 1)
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Relaxed) + 1
    }

    /// Writes one record as a batch of its own.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(key, value);
        self.records.commit(&batch)
    }

    /// Commits a batch unless it is empty.
    fn commit_unless_empty(&self, batch: &Batch) -> Result<()> {
        if batch.is_empty() { Ok(()) } else { self.records.commit(batch) }
    }
}

/// Files by identity and path, and the critical data table.
impl ExtentTable {
    /// The file with this origin identity, if the cache knows it.
    pub fn find(&self, key: OriginKey) -> Option<FileId> {
        self.files.read().find(key)
    }

    /// All files the cache knows.
    pub fn files(&self) -> Vec<FileRecord> {
        self.files.all()
    }

    /// One file's record.
    pub fn file(&self, file: FileId) -> Option<FileRecord> {
        self.files.known(file).ok().map(|state| state.record.lock().clone())
    }

    /// The file with this origin identity, registered under `path` if it is new.
    pub fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.files.register_on(None, key, path)
    }

    /// The same for a file that lies on a `mount` below the origin's root, see [`FileRecord::mount`].
    pub fn register_on(
        &self,
        mount: Option<OriginKey>,
        key: OriginKey,
        path: &Path,
    ) -> Result<FileId> {
        self.files.register_on(mount, key, path)
    }

    /// Records the current state of the origin's file.
    pub fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        self.files.stamp(file, stamp)
    }

    /// Renames `from`, and everything below it if it is a directory, to `to`.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.files.rename(from, to)
    }

    /// Exchanges the paths `a` and `b`, with everything below each.
    pub fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        self.files.exchange(a, b)
    }

    /// Forgets a file that has no extents.
    pub fn forget(&self, file: FileId) -> Result<()> {
        self.files.forget(file)
    }

    /// Whether the cache knows a file but has nothing of it: no extent, no block, no critical range.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.files.is_empty(file)
    }

    /// All such files.
    pub fn empty_files(&self) -> Vec<FileId> {
        self.files.empty_files()
    }

    /// The critical data table.
    pub fn critical(&self) -> &CriticalRanges {
        &self.critical
    }
}

/// Extents.
impl ExtentTable {
    /// Splits `range` into maximal segments by coverage, in order, into `out` (cleared first).
    pub fn lookup(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.files.read().get(file) {
            Some(state) => state.mapped.read().extents.split(range, out),
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    /// As [`ExtentTable::lookup`] and [`ExtentTable::touch`] together, which takes one search instead of two.
    pub fn lookup_used(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.files.read().get(file) {
            Some(state) => {
                let mut uses = None;
                let mut note = |entry: &_| uses.get_or_insert_with(|| self.uses()).note(entry);
                state.mapped.read().extents.split_noting(range, out, &mut note);
            }
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    /// Marks the extents under `range` as just used.
    pub fn touch(&self, file: FileId, range: ByteRange) {
        let Some(state) = self.files.state(file) else { return };
        let mapped = state.mapped.read();
        let mut uses = self.uses();
        mapped.extents.overlapping(range).for_each(|(_, entry)| uses.note(entry));
    }

    fn uses(&self) -> Uses<'_> {
        Uses::at(self.now_ms(), &self.eviction_queue)
    }

    /// Dirty extents of `file` inside `range` in offset order, at most `limit`.
    pub fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        mapped.extents.dirty(range).take(limit).collect()
    }

    /// Bytes of all dirty extents of `file`.
    pub fn dirty_bytes(&self, file: FileId) -> u64 {
        self.files.state(file).map_or(0, |state| state.mapped.read().extents.dirty_bytes())
    }

    /// Files with dirty extents, with the time of their oldest in milliseconds since the epoch.
    pub fn dirty_files(&self) -> Vec<(FileId, u64)> {
        self.busy.dirty()
    }

    /// All extents of a file in offset order.
    pub fn extents(&self, file: FileId) -> Vec<Extent> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        mapped.extents.all().collect()
    }

    /// Begins a barrier: what is mapped or dirtied from now on belongs to the next one. To be called before data is
    /// synced; otherwise data written during the sync would count as synced.
    pub fn cut(&self) {
        if self.crowded.swap(false, Relaxed) {
            // Before the cut, so that this barrier makes them evictable. A failure latches in the log, and the
            // barrier reports it.
            let _ = self.settle_intents();
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
        self.put(record::EPOCH_KEY, &record::encode_counter(epoch))?;
        self.persist()?;
        self.epochs.complete(epoch);
        Ok(())
    }

    /// Marks the store as cleanly closed. The caller has synced all data. Every later change is refused.
    pub fn close(&self) -> Result<()> {
        // What is clean stays clean at the next opening.
        self.settle_intents()?;
        self.checksums.close().map_err(Error::at(self.owner.dir(), "sync the checksums in"))?;
        let states = self.files.states();
        let untrimmed = self.untrimmed.load(Acquire)
            || states.iter().any(|state| !state.mapped.read().blocks.is_empty());
        let state = State { closed: true, untrimmed, boot_id: self.boot_id.clone() };
        let mut last = Batch::default();
        last.put(record::STATE_KEY, &record::encode_state(&state));
        self.records.close(&last)
    }

    /// Removes its mark from the origin if nothing is dirty; after that, another cache may be mounted over the origin.
    /// The caller MUST have made what was dirty durable there.
    pub fn settle_origin(&self) {
        if self.usage().dirty == 0 {
            self.owner.mark().clear();
        }
    }

    /// Fails if the store refuses changes because a write to it failed, with that failure. Lookups and writes to dirty
    /// extents still work; nothing can be mapped, cleaned or unmapped.
    pub fn usable(&self) -> Result<()> {
        self.records.usable()
    }

    /// Makes all records so far durable, without declaring any data durable: not a barrier.
    pub fn persist(&self) -> Result<()> {
        let noted = self.cleaned.noted();
        self.records.sync()?;
        self.cleaned.synced(noted);
        Ok(())
    }

    /// Ensures that no power loss brings back as dirty what is not dirty now: other nodes may be about to get it, and to
    /// write newer bytes to the origin. Does nothing where no such record can be on the disk.
    pub fn persist_cleaned(&self) -> Result<()> {
        if self.cleaned.may_come_back(self.cleaned.noted()) { self.persist() } else { Ok(()) }
    }

    /// Bytes and numbers of extents.
    pub fn usage(&self) -> Usage {
        self.sums.usage(self.space.used())
    }

    /// Checksums of cached data.
    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// The limit of data in bytes on disk: the one given at opening, minus what the records take beyond the space
    /// reserved for them, minus what is saved of conflicts.
    pub fn limit(&self) -> u64 {
        self.space.limit()
    }

    /// Counts bytes on disk that are about to be saved of a conflict, outside the objects: the limit shrinks by them.
    /// `false` if there would be more of them than [`ExtentTable::saved_max`]. Only one caller at a time may count.
    pub fn save(&self, bytes: u64) -> bool {
        self.space.save(bytes)
    }

    /// The same as [`ExtentTable::save`], for bytes that are saved even though they do not fit.
    pub fn save_anyway(&self, bytes: u64) {
        self.space.save_anyway(bytes);
    }

    /// Sets the number of such bytes.
    pub fn set_saved(&self, bytes: u64) {
        self.space.set_saved(bytes);
    }

    /// The most bytes that may be saved of conflicts.
    pub fn saved_max(&self) -> u64 {
        self.space.saved_max()
    }

    /// The most bytes that the records themselves take on the cache's device.
    pub fn records_bytes(&self) -> u64 {
        self.space.records_bytes()
    }
}
