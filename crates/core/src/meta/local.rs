//! The data mapping table of one process: range maps in memory, every change in a journal.
//!
//! What must hold here:
//! - a change is committed to the journal before memory shows it, in one batch (I4);
//! - the epoch of a change is read and the change committed while no barrier begins, so that a
//!   durable epoch means durable records;
//! - blocks whose old mapping could come back after a power loss are not freed before a barrier.
//!
//! Locks, in the order in which they may be taken: names, gate, files of the table by identity,
//! then any one of eviction order, dirty files, discards. The CDT's lock takes only the journal's.

mod discard;
mod extents;
mod files;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use halocline_model::evict::Eviction;
use halocline_model::request::ByteRange;
use parking_lot::{Mutex, RwLock};

use super::cdt::{Cdt, Told};
use super::journal::{Batch, Journal};
use super::names::Names;
use super::owner::Owner;
use super::rangemap::{Change, NO_SLOT, Piece, RangeMap};
use super::record::{self, ExtentRecord, Session};
use super::recover;
use super::slab::Slab;
use super::space::{FileSpace, Space};
use super::{
    Discard, Dmt, Extent, FileId, FileRecord, OriginKey, Placement, Segment, Stamp, Usage, Wanted,
};
use crate::error::Result;

/// An extent's use counts once in this time.
const TOUCH_EVERY_MS: u64 = 100;

/// How a table is opened.
#[derive(Debug)]
pub struct Options {
    /// Bytes on disk that the cache may use.
    pub limit_bytes: u64,
    /// The order in which clean extents leave.
    pub eviction: Box<dyn Eviction>,
    /// Entries that the critical data table holds at most.
    pub cdt_entries: usize,
}

/// A file that lost mappings in a power loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The file.
    pub file: FileId,
    /// Its path below the origin's root.
    pub path: PathBuf,
    /// Dirty ranges that were not durable: written since the last fsync or barrier, and gone.
    pub dirty: Vec<ByteRange>,
    /// Clean bytes that were dropped; the origin has them.
    pub clean_bytes: u64,
}

/// What opening a table found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the last session ended without `close`.
    pub unclean: bool,
    /// Whether the machine went down before it could.
    pub power_loss: bool,
    /// Whether cache objects may hold blocks that no extent maps: the caller frees them.
    pub stray_blocks: bool,
    /// Files that lost mappings.
    pub lost: Vec<Lost>,
    /// Files known.
    pub files: u64,
    /// Extents mapped.
    pub extents: u64,
}

/// The extents and blocks of one file.
#[derive(Debug, Default)]
pub(super) struct FileState {
    pub(super) map: RangeMap,
    pub(super) space: FileSpace,
}

/// Counters behind [`Usage`].
#[derive(Debug, Default)]
pub(super) struct Counts {
    mapped: AtomicU64,
    dirty: AtomicU64,
    extents: AtomicU64,
    dirty_extents: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, piece: &Piece) {
        self.mapped.fetch_add(piece.range.len(), Ordering::Relaxed);
        self.extents.fetch_add(1, Ordering::Relaxed);
        if piece.dirty {
            self.dirty.fetch_add(piece.range.len(), Ordering::Relaxed);
            self.dirty_extents.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sub(&self, piece: &Piece) {
        self.mapped.fetch_sub(piece.range.len(), Ordering::Relaxed);
        self.extents.fetch_sub(1, Ordering::Relaxed);
        if piece.dirty {
            self.dirty.fetch_sub(piece.range.len(), Ordering::Relaxed);
            self.dirty_extents.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Epochs are the time between barriers. A change belongs to the one in which it was committed.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Held shared while a change is committed, exclusively while an epoch ends.
    gate: RwLock<u64>,
    /// The last epoch that is durable.
    durable: AtomicU64,
    /// The last epoch that was sealed; the lock is held by the barrier at work.
    sealed: AtomicU64,
    barrier: Mutex<()>,
}

impl Epochs {
    pub(super) fn starting_at(current: u64, durable: u64) -> Self {
        Self {
            gate: RwLock::new(current),
            durable: AtomicU64::new(durable),
            sealed: AtomicU64::new(durable),
            barrier: Mutex::new(()),
        }
    }

    fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }
}

/// The data mapping table of one process.
#[derive(Debug)]
pub struct LocalDmt {
    pub(super) names: RwLock<Names>,
    pub(super) files: RwLock<HashMap<FileId, Arc<RwLock<FileState>>>>,
    pub(super) order: Mutex<Slab>,
    /// Uses that came while the order was busy.
    late_uses: Mutex<Vec<u32>>,
    pub(super) cdt: Mutex<Cdt>,
    /// Files with dirty extents and when the oldest became so.
    pub(super) dirty: Mutex<BTreeMap<FileId, u64>>,
    /// Files with blocks to discard.
    discards: Mutex<BTreeSet<FileId>>,
    pub(super) space: Space,
    pub(super) counts: Counts,
    pub(super) epochs: Epochs,
    generation: AtomicU64,
    pub(super) journal: Journal,
    // Last: the directory is ours until the journal is closed (I8).
    pub(super) owner: Owner,
}

/// Now, in milliseconds since the epoch.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl LocalDmt {
    /// Opens the table of the cache in `dir`, made if the directory is empty, and recovers it.
    ///
    /// # Errors
    /// `Invalid` if another process owns the cache or the directory is not one, `Store` if what
    /// is there is damaged or of another version. Nothing is ever deleted.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Recovery)> {
        recover::open(dir, options)
    }

    /// Ends the session: the next one is told that nothing was lost. The caller has stopped
    /// changing the table, synced the data and called `barrier`.
    pub fn close(&self) -> Result<()> {
        let stray_blocks = !self.discards.lock().is_empty();
        let session = Session { clean: true, stray_blocks, boot: super::owner::boot_id() };
        let key = [record::kind::SESSION];
        let mut batch = Batch::default();
        batch.put(&key, record::session_value(&key, &session));
        self.journal.commit(batch)?;
        self.journal.sync()
    }

    /// The identity of the cache, made once.
    pub fn cache_id(&self) -> &str {
        self.owner.cache_id()
    }

    /// Bytes the metadata has on disk; not part of [`Usage::used`].
    pub fn disk_bytes(&self) -> u64 {
        self.journal.disk_bytes()
    }

    pub(super) fn empty(journal: Journal, owner: Owner, options: Options, next: u64) -> Self {
        Self {
            names: RwLock::new(Names::starting_at(next)),
            files: RwLock::default(),
            order: Mutex::new(Slab::new(options.eviction)),
            late_uses: Mutex::default(),
            cdt: Mutex::new(Cdt::new(options.cdt_entries)),
            dirty: Mutex::default(),
            discards: Mutex::default(),
            space: Space::new(options.limit_bytes),
            counts: Counts::default(),
            epochs: Epochs::starting_at(1, 0),
            generation: AtomicU64::new(1),
            journal,
            owner,
        }
    }

    fn state(&self, file: FileId) -> Option<Arc<RwLock<FileState>>> {
        self.files.read().get(&file).cloned()
    }

    fn state_or_new(&self, file: FileId) -> Arc<RwLock<FileState>> {
        self.state(file).unwrap_or_else(|| Arc::clone(self.files.write().entry(file).or_default()))
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Commits a change of one file's extents and shows it. The caller holds the file's lock and
    /// the gate.
    fn commit(&self, file: FileId, state: &mut FileState, change: Change) -> Result<()> {
        let mut batch = Batch::default();
        put_change(&mut batch, file, &change);
        self.journal.commit(batch)?;
        self.show(file, state, change);
        Ok(())
    }

    /// Shows a committed change.
    fn show(&self, file: FileId, state: &mut FileState, change: Change) {
        let oldest = state.map.oldest_dirty_ms();
        let mut order = self.order.lock();
        let kept: HashSet<u32> = change.after.iter().map(|piece| piece.slot).collect();
        for piece in &change.before {
            state.map.remove(piece);
            self.counts.sub(piece);
            if !kept.contains(&piece.slot) {
                order.remove(piece.slot);
            }
        }
        for mut piece in change.after {
            if piece.slot == NO_SLOT {
                piece.slot = order.insert(file, &piece);
            } else {
                order.update(file, &piece);
            }
            state.map.insert(&piece);
            self.counts.add(&piece);
        }
        drop(order);
        self.show_oldest(file, oldest, state);
    }

    fn show_oldest(&self, file: FileId, before: Option<u64>, state: &FileState) {
        let now = state.map.oldest_dirty_ms();
        if now == before {
            return;
        }
        let mut dirty = self.dirty.lock();
        match now {
            Some(oldest) => dirty.insert(file, oldest),
            None => dirty.remove(&file),
        };
    }

    /// Notes uses in the eviction order; never waits for it.
    fn use_slots(&self, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        match self.order.try_lock() {
            Some(mut order) => slots.iter().for_each(|&slot| order.touch(slot)),
            None => self.late_uses.lock().extend_from_slice(slots),
        }
    }

    fn tell(&self, told: &Told) -> Result<()> {
        let mut batch = Batch::default();
        for &(file, range) in &told.unflagged {
            batch.remove(&record::wanted_key(file, range));
        }
        for (wanted, turn) in &told.flagged {
            let key = record::wanted_key(wanted.file, wanted.range);
            batch.put(&key, record::wanted_value(&key, wanted.placement, *turn));
        }
        self.journal.commit(batch)
    }

    /// A change of the CDT. It is an advice, so a store that fails does not make it fail: the
    /// journal remembers the failure for the next change of the DMT.
    fn change_cdt(&self, change: impl FnOnce(&mut Cdt) -> Told) {
        let mut cdt = self.cdt.lock();
        let told = change(&mut cdt);
        if let Err(error) = self.tell(&told) {
            tracing::debug!("the critical data table is not kept: {error}");
        }
    }
}

/// Adds a change of one file's extents to a batch.
fn put_change(batch: &mut Batch, file: FileId, change: &Change) {
    // A batch names each key once: the store knows no order inside a batch.
    let set: HashSet<u64> = change.after.iter().map(|piece| piece.range.start).collect();
    for start in change.before.iter().map(|piece| piece.range.start) {
        if !set.contains(&start) {
            batch.remove(&record::extent_key(file, start));
        }
    }
    for piece in &change.after {
        let key = record::extent_key(file, piece.range.start);
        batch.put(&key, record::extent_value(&key, &record_of(piece)));
    }
}

fn record_of(piece: &Piece) -> ExtentRecord {
    ExtentRecord {
        range: piece.range,
        placement: piece.placement,
        dirty: piece.dirty,
        epoch: piece.epoch,
        time_ms: if piece.dirty { piece.dirty_since_ms } else { piece.last_use_ms },
    }
}

impl Dmt for LocalDmt {
    fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.register_file(key, path)
    }

    fn find(&self, key: OriginKey) -> Option<FileId> {
        self.names.read().find(key)
    }

    fn files(&self) -> Vec<FileRecord> {
        self.names.read().all().cloned().collect()
    }

    fn file(&self, file: FileId) -> Option<FileRecord> {
        self.names.read().get(file).cloned()
    }

    fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        self.stamp_file(file, stamp)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.rename_files(from, to)
    }

    fn forget(&self, file: FileId) -> Result<()> {
        self.forget_file(file)
    }

    fn lookup(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.files.read().get(&file) {
            Some(state) => state.read().map.segments(range, out),
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    fn touch(&self, file: FileId, range: ByteRange) {
        let Some(state) = self.state(file) else { return };
        let mut slots = Vec::new();
        state.read().map.touch(range, now_ms(), TOUCH_EVERY_MS, |slot| slots.push(slot));
        self.use_slots(&slots);
    }

    fn map(&self, file: FileId, range: ByteRange, placement: Placement, dirty: bool) -> Result<()> {
        self.map_extent(file, range, placement, dirty)
    }

    fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.set_dirty(file, range)
    }

    fn mark_clean(&self, file: FileId, extents: &[(ByteRange, u64)]) -> Result<u64> {
        self.set_clean(file, extents)
    }

    fn unmap(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.unmap_range(file, range)
    }

    fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent> {
        let Some(state) = self.state(file) else { return Vec::new() };
        let state = state.read();
        state.map.dirty_overlapping(range).take(limit).map(Piece::extent).collect()
    }

    fn dirty_files(&self) -> Vec<(FileId, u64)> {
        self.dirty.lock().iter().map(|(&file, &oldest)| (file, oldest)).collect()
    }

    fn extents(&self, file: FileId) -> Vec<Extent> {
        let Some(state) = self.state(file) else { return Vec::new() };
        let whole = ByteRange::new(0, u64::MAX);
        let state = state.read();
        state.map.overlapping(whole).map(Piece::extent).collect()
    }

    fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        self.reserve_blocks(file, range, placement)
    }

    fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        self.release_blocks(file, range, placement);
    }

    fn evict(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
    ) -> Result<Vec<Discard>> {
        self.evict_extents(bytes, keep, lock)
    }

    fn pin(&self, file: FileId, pinned: bool) {
        self.order.lock().pin(file, pinned);
    }

    fn take_discards(&self) -> Vec<Discard> {
        self.take_queued()
    }

    fn still_discardable(&self, discard: &Discard) -> Vec<Discard> {
        self.confirm_discard(discard)
    }

    fn discarded(&self, discard: &Discard) {
        self.free_blocks(discard);
    }

    fn seal(&self) {
        let mut current = self.epochs.gate.write();
        self.epochs.sealed.store(*current, Ordering::Release);
        *current += 1;
    }

    fn barrier(&self) -> Result<()> {
        let _turn = self.epochs.barrier.lock();
        if self.epochs.sealed.load(Ordering::Acquire) == self.epochs.durable() {
            self.seal();
        }
        let epoch = self.epochs.sealed.load(Ordering::Acquire);
        let key = [record::kind::BARRIER];
        let mut batch = Batch::default();
        batch.put(&key, record::number_value(&key, epoch));
        self.journal.commit(batch)?;
        self.journal.sync()?;
        self.epochs.durable.store(epoch, Ordering::Release);
        self.order.lock().promote(epoch);
        Ok(())
    }

    fn note_critical(&self, wanted: Wanted, fetch: bool) {
        self.change_cdt(|cdt| cdt.note(wanted, fetch));
    }

    fn wanted(&self, limit: usize) -> Vec<Wanted> {
        self.cdt.lock().wanted(limit)
    }

    fn fetched(&self, file: FileId, range: ByteRange) {
        self.change_cdt(|cdt| cdt.fetched(file, range));
    }

    fn drop_critical(&self, file: FileId, range: ByteRange) {
        self.change_cdt(|cdt| cdt.drop_inside(file, range));
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.space.used(),
            mapped: self.counts.mapped.load(Ordering::Relaxed),
            dirty: self.counts.dirty.load(Ordering::Relaxed),
            extents: self.counts.extents.load(Ordering::Relaxed),
            dirty_extents: self.counts.dirty_extents.load(Ordering::Relaxed),
        }
    }

    fn limit(&self) -> u64 {
        self.space.limit()
    }
}
