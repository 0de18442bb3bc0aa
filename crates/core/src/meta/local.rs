//! The tables in memory, durable through an embedded log-structured store.
//!
//! A change is planned on the extents, committed to the store, then applied to memory: memory
//! never runs ahead of the store, and a reader waits for the last step only. Locks are taken in
//! the order names, files, a file's `change`, its `mapped`, the eviction order; a search for
//! victims holds the eviction order and only tries the others.

mod change;
mod evict;
mod marks;
mod names;
mod open;
mod options;
mod untrusted;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use parking_lot::{Mutex, RwLock};

use super::cdt::{Cdt, Durable};
use super::checksums::Checksums;
use super::files::{Busy, FileState, Files};
use super::journal::Journal;
use super::order::Order;
use super::owner::{self, CacheIdentity, Owner};
use super::recover::{self, Counts, Left, Recovery};
use super::space::Space;
use super::upkeep::Upkeep;
use super::{BLOCK, Discard, Dmt, Extent, FileId, FileRecord, OriginKey, Segment, Stamp, Usage};
use super::{Wanted, record};
use crate::error::{Error, Result};

pub use options::{Clock, Options, system_clock};

/// Name of the store's directory in the cache directory.
pub const STORE_DIR: &str = "meta";

/// Records are sorted into tables once the newest take this many bytes of memory: enough for
/// 200,000 extents, and little to read again after a crash.
const MEMTABLE_BYTES: u64 = 32 << 20;

#[derive(Debug, Default)]
struct Sums {
    mapped: AtomicU64,
    dirty: AtomicU64,
    held: AtomicU64,
    extents: AtomicU64,
    dirty_extents: AtomicU64,
}

/// Epochs: `current` stamps what happens now, `cut` is the last one closed for new stamps,
/// `completed` the last one whose data and records are durable.
#[derive(Debug)]
struct Epochs {
    current: AtomicU64,
    cut: AtomicU64,
    completed: AtomicU64,
}

/// The data mapping table and the critical data table of one process.
pub struct LocalDmt {
    // Field order is drop order: the store closes before the cache directory is given up.
    _upkeep: Option<Upkeep>,
    journal: Arc<Journal>,
    checksums: Checksums,
    owner: Owner,
    clock: Clock,
    space: Space,
    names: Mutex<()>,
    files: RwLock<Files>,
    busy: Busy,
    order: Mutex<Order>,
    cdt: Mutex<Cdt>,
    sums: Sums,
    epochs: Epochs,
    generation: AtomicU64,
    mark_bytes: u64,
    /// Room was wanted that held extents take.
    crowded: AtomicBool,
    /// Objects may hold blocks that nothing here counts, until somebody has trimmed them.
    untrimmed: AtomicBool,
}

impl fmt::Debug for LocalDmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalDmt")
            .field("journal", &self.journal)
            .field("usage", &self.usage())
            .field("limit", &self.space.limit())
            .finish_non_exhaustive()
    }
}

impl LocalDmt {
    /// Takes the cache directory `dir` and opens its tables, or makes them if it is empty.
    pub fn open(dir: &Path, options: Options) -> Result<(Self, Recovery)> {
        Self::open_on_boot(dir, options, &owner::boot_id()?)
    }

    /// The same on a machine whose boot id is `boot_id`: how a power loss is told from a crash.
    pub fn open_on_boot(dir: &Path, options: Options, boot_id: &str) -> Result<(Self, Recovery)> {
        Self::open_tuned(dir, options, boot_id, MEMTABLE_BYTES)
    }

    /// The same, and a new store sorts its records into tables whenever the newest take
    /// `memtable_bytes` bytes of memory: small in tests, so that a few records reach tables.
    pub fn open_tuned(
        dir: &Path,
        options: Options,
        boot_id: &str,
        memtable_bytes: u64,
    ) -> Result<(Self, Recovery)> {
        crate::private::check_above(dir)?;
        let (mut owner, distrusted) = Owner::take_with_witness(dir, options.witness.as_deref())?;
        let set_aside = options.records_bytes;
        let journal = Arc::new(open::open_store(&mut owner, boot_id, memtable_bytes, set_aside)?);
        let space = Space::new(options.limit_bytes, Arc::clone(journal.footprint()), set_aside);
        let order = Order::new(options.eviction);
        let cdt = Cdt::new(options.cdt_entries);
        let loaded = recover::load(&journal, &space, order, cdt, boot_id)?;
        let Counts { mapped, dirty, extents, dirty_extents } = loaded.counts;
        if loaded.recovery.left == Left::PowerLost {
            tracing::warn!(
                files = loaded.recovery.dropped.len(),
                "the machine went down: extents that no fsync covered were dropped"
            );
        }
        let of_boot = (boot_id, loaded.recovery.left);
        let room = (&space, &*journal);
        let checksums =
            open::open_checksums(&owner, options.checksums, of_boot, room, &loaded.files)?;
        let dmt = Self {
            _upkeep: (set_aside < u64::MAX).then(|| Upkeep::start(&journal)),
            journal,
            checksums,
            owner,
            clock: options.clock,
            space,
            names: Mutex::default(),
            files: RwLock::new(loaded.files),
            busy: Busy::default(),
            order: Mutex::new(loaded.order),
            cdt: Mutex::new(loaded.cdt),
            sums: Sums {
                mapped: mapped.into(),
                dirty: dirty.into(),
                held: 0.into(),
                extents: extents.into(),
                dirty_extents: dirty_extents.into(),
            },
            epochs: Epochs {
                current: (loaded.epoch + 1).into(),
                cut: loaded.completed.into(),
                completed: loaded.completed.into(),
            },
            generation: loaded.generation.into(),
            mark_bytes: options.mark_bytes,
            crowded: false.into(),
            untrimmed: loaded.recovery.trim.into(),
        };
        for state in dmt.files.read().all() {
            dmt.busy.update(state, &state.mapped.write());
        }
        dmt.honour(&distrusted)?;
        Ok((dmt, loaded.recovery))
    }

    /// What the cache directory says it is.
    pub fn identity(&self) -> &CacheIdentity {
        self.owner.identity()
    }

    fn now_ms(&self) -> u64 {
        (self.clock)().clamp(1, (1 << 48) - 1)
    }

    fn state(&self, file: FileId) -> Option<Arc<FileState>> {
        self.files.read().get(file).cloned()
    }

    fn known(&self, file: FileId) -> Result<Arc<FileState>> {
        let state = self.state(file).filter(|state| !state.forgotten.load(Relaxed));
        state.ok_or_else(|| {
            Error::invalid(
                format!("the cache does not know file {}", file.0),
                "register it first; this is a fault of the program",
            )
        })
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Relaxed) + 1
    }

    /// Keeps what changed in the critical data table; a failure latches in the journal.
    fn keep_critical(&self, changes: &[Durable]) {
        for change in changes {
            let kept = match *change {
                Durable::Keep(wanted, order) => self.journal.put(
                    &record::critical_key(wanted.file, wanted.range),
                    &record::encode_critical(wanted.placement, order),
                ),
                Durable::Drop(file, range) => {
                    self.journal.remove(&record::critical_key(file, range))
                }
            };
            if let Err(error) = kept {
                tracing::warn!(%error, "a critical range was not recorded");
            }
        }
    }
}

impl Dmt for LocalDmt {
    fn register(&self, key: OriginKey, path: &Path) -> Result<FileId> {
        self.register_file(key, path)
    }

    fn find(&self, key: OriginKey) -> Option<FileId> {
        self.files.read().find(key)
    }

    fn files(&self) -> Vec<FileRecord> {
        let files = self.files.read();
        let known = files.all().filter(|state| !state.forgotten.load(Relaxed));
        let mut records: Vec<_> = known.map(|state| state.record.lock().clone()).collect();
        records.sort_by_key(|record| record.id);
        records
    }

    fn file(&self, file: FileId) -> Option<FileRecord> {
        let state = self.state(file).filter(|state| !state.forgotten.load(Relaxed))?;
        let record = state.record.lock().clone();
        Some(record)
    }

    fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()> {
        self.stamp_file(file, stamp)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.rename_below(from, to)
    }

    fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        self.exchange_below(a, b)
    }

    fn forget(&self, file: FileId) -> Result<()> {
        self.forget_file(file)
    }

    fn is_hollow(&self, file: FileId) -> bool {
        self.state(file).is_some_and(|state| self.has_nothing_of(&state))
    }

    fn hollow_files(&self) -> Vec<FileId> {
        let files = self.files.read();
        files.all().filter(|state| self.has_nothing_of(state)).map(|state| state.id).collect()
    }

    fn lookup(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.state(file) {
            Some(state) => state.mapped.read().extents.split(range, out),
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    fn touch(&self, file: FileId, range: ByteRange) {
        let Some(state) = self.state(file) else { return };
        let now = self.now_ms();
        let mapped = state.mapped.read();
        // The order is a hint: a use within the same millisecond, or while somebody searches
        // for victims, may go unnoticed there.
        let mut order = None;
        for (_, entry) in mapped.extents.overlapping(range) {
            if entry.last_use_ms.swap(now, Relaxed) != now {
                order = order.or_else(|| self.order.try_lock());
                if let Some(order) = &mut order {
                    order.touch(entry.slot);
                }
            }
        }
    }

    fn map(&self, file: FileId, range: ByteRange, placement: Placement, dirty: bool) -> Result<()> {
        self.map_range(file, range, placement, dirty)
    }

    fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.dirty_range(file, range)
    }

    fn cut_dirty(&self, file: FileId, range: ByteRange) -> Result<bool> {
        self.cut_range(file, range)
    }

    fn mark_clean(&self, file: FileId, extents: &[(ByteRange, u64)]) -> Result<u64> {
        self.clean_extents(file, extents)
    }

    fn unmap(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.unmap_range(file, range)
    }

    fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent> {
        let Some(state) = self.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        mapped.extents.dirty(range).take(limit).collect()
    }

    fn dirty_bytes(&self, file: FileId) -> u64 {
        self.state(file).map_or(0, |state| state.mapped.read().extents.dirty_bytes())
    }

    fn promised(&self, file: FileId, range: ByteRange) -> bool {
        self.is_promised(file, range)
    }

    fn dirty_files(&self) -> Vec<(FileId, u64)> {
        self.busy.dirty()
    }

    fn extents(&self, file: FileId) -> Vec<Extent> {
        let Some(state) = self.state(file) else { return Vec::new() };
        let mapped = state.mapped.read();
        mapped.extents.all().collect()
    }

    fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool {
        let Ok(state) = self.known(file) else { return false };
        if range.is_empty() || range.end > change::END_MAX {
            return false;
        }
        let mut mapped = state.mapped.write();
        let mapped = &mut *mapped;
        let reserved = mapped.blocks.reserve(&mapped.extents, &self.space, range, placement);
        self.busy.update(&state, mapped);
        reserved
    }

    fn release(&self, file: FileId, range: ByteRange, placement: Placement) {
        let Some(state) = self.state(file) else { return };
        let mut mapped = state.mapped.write();
        let mapped = &mut *mapped;
        mapped.blocks.release(&mapped.extents, range, placement);
        self.busy.update(&state, mapped);
    }

    fn evict(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
    ) -> Result<Vec<Discard>> {
        self.evict_bytes(bytes, keep, lock)
    }

    fn pin(&self, file: FileId, pinned: bool) {
        self.pin_file(file, pinned);
    }

    fn take_discards(&self) -> Vec<Discard> {
        let completed = self.epochs.completed.load(Acquire);
        let mut due = Vec::new();
        for file in self.busy.waiting() {
            if let Some(state) = self.state(file) {
                state.mapped.write().blocks.take_due(file, completed, &mut due);
            }
        }
        due
    }

    fn still_due(&self, discard: &Discard) -> Vec<Discard> {
        let Some(state) = self.state(discard.file) else { return Vec::new() };
        let mapped = state.mapped.read();
        let parts = mapped.blocks.still_due(discard.range, discard.placement);
        parts.map(|range| Discard { range, ..*discard }).collect()
    }

    fn discarded(&self, discard: &Discard) {
        debug_assert!(discard.range == discard.range.widen_to(BLOCK), "I5: whole blocks only");
        let Some(state) = self.state(discard.file) else { return };
        let mut mapped = state.mapped.write();
        mapped.blocks.discarded(&self.space, discard.range, discard.placement);
        self.busy.update(&state, &mapped);
        let done = mapped.blocks.is_empty() && state.forgotten.load(Relaxed);
        drop(mapped);
        if done {
            self.files.write().remove(discard.file);
        }
    }

    fn cut(&self) {
        if self.crowded.swap(false, Relaxed) {
            // Before the cut, so that this barrier makes them evictable. A failure latches in the
            // journal, and the barrier tells it.
            let _ = self.settle_marks();
        }
        let closed = self.epochs.current.fetch_add(1, AcqRel);
        self.epochs.cut.store(closed, Release);
    }

    fn barrier(&self) -> Result<()> {
        if self.epochs.cut.load(Acquire) <= self.epochs.completed.load(Acquire) {
            self.cut();
        }
        let epoch = self.epochs.cut.load(Acquire);
        self.journal.put(record::EPOCH_KEY, &record::encode_counter(epoch))?;
        self.journal.sync()?;
        self.epochs.completed.fetch_max(epoch, AcqRel);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        // What is clean stays so at the next opening.
        self.settle_marks()?;
        self.checksums.close().map_err(Error::at(self.owner.dir(), "sync the checksums in"))?;
        let states: Vec<_> = self.files.read().all().cloned().collect();
        let untrimmed = self.untrimmed.load(Acquire)
            || states.iter().any(|state| !state.mapped.read().blocks.is_empty());
        self.journal.close(untrimmed)
    }

    fn usable(&self) -> Result<()> {
        self.journal.check()
    }

    fn abandon(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.abandon_range(file, range)
    }

    fn give_up(&self) -> Result<()> {
        self.distrust_all()
    }

    fn persist(&self) -> Result<()> {
        self.journal.sync()
    }

    fn trimmed(&self) {
        self.untrimmed.store(false, Release);
    }

    fn note_critical(&self, wanted: Wanted, fetch: bool) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.note(wanted, fetch, &mut changes);
        self.keep_critical(&changes);
    }

    fn wanted(&self, limit: usize) -> Vec<Wanted> {
        self.cdt.lock().wanted(limit)
    }

    fn fetched(&self, file: FileId, range: ByteRange) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.fetched(file, range, &mut changes);
        self.keep_critical(&changes);
    }

    fn drop_critical(&self, file: FileId, range: ByteRange) {
        let mut changes = Vec::new();
        let mut cdt = self.cdt.lock();
        cdt.drop_range(file, range, &mut changes);
        self.keep_critical(&changes);
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.space.used(),
            mapped: self.sums.mapped.load(Relaxed),
            dirty: self.sums.dirty.load(Relaxed),
            held: self.sums.held.load(Relaxed),
            extents: self.sums.extents.load(Relaxed),
            dirty_extents: self.sums.dirty_extents.load(Relaxed),
        }
    }

    fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    fn limit(&self) -> u64 {
        self.space.limit()
    }

    fn records_bytes(&self) -> u64 {
        self.journal.footprint().bytes()
    }
}
