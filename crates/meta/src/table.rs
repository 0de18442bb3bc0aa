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

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::batch::Batch;
use super::checksums::Checksums;
use super::identity::CacheIdentity;
use super::owner::Owner;
use super::record::State;
use super::records::RecordStore;
use super::{Discard, Extent, FileId, FileRecord, OriginKey, Segment, Stamp, Usage, record};
use halocline_os::error::{Error, Result};

pub use critical::CriticalRanges;
pub use options::{Access, NowMs, Options};

use blocks::UnmappedBlocks;
use change::Changes;
use epochs::Epochs;
use evict::Evictor;
use extent_index::ExtentIndex;
use untrusted::Untrusted;

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
    changes: Arc<Changes>,
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
            .field("usage", &self.usage())
            .field("limit", &self.index.space().limit())
            .finish_non_exhaustive()
    }
}

impl ExtentTable {
    /// The identity of the cache directory.
    pub fn identity(&self) -> &CacheIdentity {
        self.owner.identity()
    }
}

/// Files by identity and path, and the critical data table.
impl ExtentTable {
    /// The file with this origin identity, if the cache knows it.
    pub fn find(&self, key: OriginKey) -> Option<FileId> {
        self.index.files().read().find(key)
    }

    /// All files the cache knows.
    pub fn files(&self) -> Vec<FileRecord> {
        self.index.files().all()
    }

    /// One file's record.
    pub fn file(&self, file: FileId) -> Option<FileRecord> {
        self.index.files().known(file).ok().map(|state| state.record.lock().clone())
    }

    /// The file with this origin identity, registered under `path` if it is new.
    pub fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.index.files().register_on(None, key, path)
    }

    /// The same for a file that lies on a `mount` below the origin's root, see [`FileRecord::mount`].
    pub fn register_on(
        &self,
        mount: Option<OriginKey>,
        key: OriginKey,
        path: &Path,
    ) -> Result<FileId> {
        self.index.files().register_on(mount, key, path)
    }

    /// Records the current state of the origin's file.
    pub fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        self.index.files().stamp(file, stamp)
    }

    /// Renames `from`, and everything below it if it is a directory, to `to`.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.index.files().rename(from, to)
    }

    /// Exchanges the paths `a` and `b`, with everything below each.
    pub fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        self.index.files().exchange(a, b)
    }

    /// Forgets a file that has no extents.
    pub fn forget(&self, file: FileId) -> Result<()> {
        self.index.files().forget(file)
    }

    /// Whether the cache knows a file but has nothing of it: no extent, no block, no critical range.
    pub fn is_empty(&self, file: FileId) -> bool {
        self.index.files().is_empty(file)
    }

    /// All such files.
    pub fn empty_files(&self) -> Vec<FileId> {
        self.index.files().empty_files()
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
        self.index.lookup(file, range, out);
    }

    /// As [`ExtentTable::lookup`] and [`ExtentTable::touch`] together, which takes one search instead of two.
    pub fn lookup_used(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        self.index.lookup_used(file, range, out);
    }

    /// Marks the extents under `range` as just used.
    pub fn touch(&self, file: FileId, range: ByteRange) {
        self.index.touch(file, range);
    }

    /// Dirty extents of `file` inside `range` in offset order, at most `limit`.
    pub fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent> {
        self.index.dirty(file, range, limit)
    }

    /// Bytes of all dirty extents of `file`.
    pub fn dirty_bytes(&self, file: FileId) -> u64 {
        self.index.dirty_bytes(file)
    }

    /// Files with dirty extents, with the time of their oldest in milliseconds since the epoch.
    pub fn dirty_files(&self) -> Vec<(FileId, u64)> {
        self.index.dirty_files()
    }

    /// All extents of a file in offset order.
    pub fn extents(&self, file: FileId) -> Vec<Extent> {
        self.index.extents(file)
    }

    /// A file's extents as recorded, with the epoch of the dirty ones: what a crash now would leave. For tests.
    pub fn recorded(&self, file: FileId) -> Vec<(ByteRange, Placement, Option<u64>)> {
        self.index.recorded(file)
    }
}

/// Changes of extents.
impl ExtentTable {
    /// Publishes `range`, whose data is on the cache at `placement`. The range MUST be unmapped.
    pub fn map(
        &self,
        file: FileId,
        range: ByteRange,
        placement: Placement,
        dirty: bool,
    ) -> Result<()> {
        if dirty {
            self.owner.mark().set();
        }
        self.changes.map(file, range, placement, dirty)
    }

    /// Sets `D_flag` on the mapped bytes of `range`, splitting clean extents at its bounds, and gives them a new
    /// generation; extents that are already dirty stay whole.
    pub fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.owner.mark().set();
        self.changes.mark_dirty(file, range)
    }

    /// Whether a barrier has covered a dirty extent under `range`: it survives a power loss, so what replaces it must
    /// be durable before it is unmapped (I4).
    pub fn promised(&self, file: FileId, range: ByteRange) -> bool {
        self.changes.promised(file, range)
    }

    /// Cuts dirty extents at the bounds of `range`, so that the part inside can be flushed or kept separately; returns
    /// whether there was one to cut.
    pub fn cut_dirty(&self, file: FileId, range: ByteRange) -> Result<bool> {
        self.changes.cut_dirty(file, range)
    }

    /// Clears `D_flag` of every extent inside `range` whose generation equals the given one; returns the number of
    /// bytes. They become evictable at the next `barrier`.
    pub fn mark_clean(&self, file: FileId, cleaned: &[(ByteRange, u64)]) -> Result<u64> {
        self.changes.mark_clean(file, cleaned)
    }

    /// Unmaps all of `range`, dirty or not, and queues its space for discarding. For a file that was forgotten
    /// meanwhile this does nothing: a caller that drops its bytes need not know which of the two came first.
    pub fn unmap(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.changes.unmap(file, range)
    }

    /// For a store that is not [`usable`](Self::usable): unmaps `range` in memory, after ensuring by other means that
    /// no later opening trusts what its records say about these bytes. An error means that there was no such means;
    /// nothing is changed then.
    pub fn abandon(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.untrusted.abandon(file, range)
    }

    /// For a store that is not [`usable`](Self::usable), and whose dirty bytes are no longer needed: ensures that no
    /// later opening trusts anything. From then on [`abandon`](Self::abandon) only changes memory. An error means that
    /// there was no means to inform a later opening.
    pub fn give_up(&self) -> Result<()> {
        self.untrusted.give_up()
    }
}

/// Space.
impl ExtentTable {
    /// Reserves blocks for `range` before its data is written; `false` if the limit does not allow it without
    /// evictions. `map` turns the reservation into use.
    pub fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        self.blocks.reserve(file, range, placement)
    }

    /// Releases a reservation. Its blocks may have been written: they are queued for discarding and count as used until
    /// then.
    pub fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        self.blocks.release(file, range, placement);
    }

    /// Takes the queued ranges whose unmapping is durable. The caller locks each exclusively, asks `still_due` which
    /// parts are to be freed, frees those, then calls `discarded`.
    pub fn take_discards(&self) -> Vec<Discard> {
        self.blocks.take_discards()
    }

    /// The parts of a taken range that were not claimed since. This differs from what `lookup` shows as unmapped: a
    /// part that was mapped again, made durable by a barrier and unmapped again since would come back after a power
    /// loss, and find its data gone.
    pub fn still_due(&self, discard: &Discard) -> Vec<Discard> {
        self.blocks.still_due(discard)
    }

    /// A range was discarded: its blocks are free again.
    pub fn discarded(&self, discard: &Discard) {
        self.blocks.discarded(discard);
    }

    /// The cache holds only what the extents need: the trim that recovery requested is done. Until then every clean
    /// close passes the duty on (I5).
    pub fn trimmed(&self) {
        self.blocks.trimmed();
    }

    /// Protects a file's extents from eviction, or allows it again. Not durable: the engine applies its globs at each
    /// mount.
    pub fn pin(&self, file: FileId, pinned: bool) {
        self.evictor.pin(file, pinned);
    }

    /// Unmaps clean, durable, unpinned extents in the policy's order until `bytes` are freed, but none that overlaps
    /// `keep`, and returns what the caller must now discard before it calls `discarded`. `lock` is called with the
    /// whole blocks of each extent, never twice for the same byte, and must not wait: `false` skips the extent. The
    /// caller holds what `lock` locked until it has discarded the blocks, so that no reader loses bytes (I2). If there
    /// are not enough evictable bytes, evicts nothing and returns an empty list.
    pub fn evict(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
    ) -> Result<Vec<Discard>> {
        self.evictor.evict(bytes, keep, lock)
    }

    /// The limit of data in bytes on disk: the one given at opening, minus what the records take beyond the space
    /// reserved for them, minus what is saved of conflicts.
    pub fn limit(&self) -> u64 {
        self.index.space().limit()
    }

    /// Counts bytes on disk that are about to be saved of a conflict, outside the objects: the limit shrinks by them.
    /// `false` if there would be more of them than [`ExtentTable::saved_max`]. Only one caller at a time may count.
    pub fn save(&self, bytes: u64) -> bool {
        self.index.space().save(bytes)
    }

    /// The same as [`ExtentTable::save`], for bytes that are saved even though they do not fit.
    pub fn save_anyway(&self, bytes: u64) {
        self.index.space().save_anyway(bytes);
    }

    /// Sets the number of such bytes.
    pub fn set_saved(&self, bytes: u64) {
        self.index.space().set_saved(bytes);
    }

    /// The most bytes that may be saved of conflicts.
    pub fn saved_max(&self) -> u64 {
        self.index.space().saved_max()
    }

    /// The most bytes that the records themselves take on the cache's device.
    pub fn records_bytes(&self) -> u64 {
        self.index.space().records_bytes()
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
        self.persist()?;
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
        self.changes.persist()
    }

    /// Ensures that no power loss brings back as dirty what is not dirty now: other nodes may be about to get it, and to
    /// write newer bytes to the origin. Does nothing where no such record can be on the disk.
    pub fn persist_cleaned(&self) -> Result<()> {
        self.changes.persist_cleaned()
    }

    /// Bytes and numbers of extents.
    pub fn usage(&self) -> Usage {
        self.index.usage()
    }

    /// Checksums of cached data.
    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }
}
