//! The extents of all files in memory, with what must always agree with them: the sums, the eviction queue, the lists of files
//! that have work for the rebuilder, the space on the cache.
//!
//! Whoever changes the extents of a file has an [`Edit`] of it. What it changes is recorded by then, or needs no record.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::options::NowMs;
use super::registry::FileRegistry;
use super::replace::Replace;
use super::sums::Sums;
use crate::block_accounting::{Space, push_joined};
use crate::eviction_queue::{EvictionQueue, Offered, Uses};
use crate::files::{Busy, FileState, Mapped, MappedEdit};
use crate::rangemap::{Entry, RangeMap};
use crate::record::ExtentRecord;
use crate::write_intent::{HELD, WriteIntent};
use crate::{BLOCK, Discard, Extent, FileId, Segment, Usage};

/// The extents of all files.
pub struct ExtentIndex {
    files: FileRegistry,
    space: Space,
    busy: Busy,
    eviction_queue: Mutex<EvictionQueue>,
    sums: Sums,
    generation: AtomicU64,
    clock: NowMs,
}

impl fmt::Debug for ExtentIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentIndex").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl ExtentIndex {
    /// The index of extents that were loaded: `sums` are theirs, `eviction_queue` has a slot for each, and `generation` is the
    /// last one that any of them has.
    pub(super) fn new(
        files: FileRegistry,
        (space, sums): (Space, Sums),
        eviction_queue: EvictionQueue,
        (generation, clock): (u64, NowMs),
    ) -> Self {
        let busy = Busy::default();
        for state in files.read().all() {
            // Which lists it.
            drop(state.edit(&busy));
        }
        let (eviction_queue, generation) = (Mutex::new(eviction_queue), generation.into());
        Self { files, space, busy, eviction_queue, sums, generation, clock }
    }

    /// The files.
    pub(super) fn files(&self) -> &FileRegistry {
        &self.files
    }

    /// The space on the cache.
    pub(super) fn space(&self) -> &Space {
        &self.space
    }

    /// The time for records, which have 48 bits for it.
    pub(super) fn now_ms(&self) -> u64 {
        (self.clock)().clamp(1, (1 << 48) - 1)
    }

    /// A generation that no extent has had.
    pub(super) fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Relaxed) + 1
    }

    /// Bytes and numbers of extents.
    pub fn usage(&self) -> Usage {
        self.sums.usage(self.space.used())
    }

    /// An upper bound of the bytes that eviction can free, found without looking at any extent.
    pub(super) fn evictable_at_most(&self) -> u64 {
        self.sums.evictable_at_most()
    }

    /// Whether dirty neighbours hold any clean bytes.
    pub(super) fn any_held(&self) -> bool {
        self.sums.any_held()
    }

    /// Begins to change a file's extents: nobody else reads or changes them until the result is dropped.
    pub(super) fn edit<'i>(&'i self, state: &'i FileState) -> Edit<'i> {
        Edit { index: self, state, mapped: state.edit(&self.busy) }
    }

    /// Offers extents for eviction in the policy's order.
    pub(super) fn search(&self, judge: impl FnMut(FileId, u64) -> Offered) {
        self.eviction_queue.lock().search(judge);
    }

    /// Lets the clean extents of a file be offered again.
    pub(super) fn unpark(&self, state: &FileState) {
        let mapped = state.mapped();
        let mut queue = self.eviction_queue.lock();
        for (start, entry) in mapped.extents.entries().filter(|(_, entry)| !entry.dirty()) {
            queue.unpark(entry.slot, entry.end - start);
        }
    }
}

/// Looking.
impl ExtentIndex {
    /// Splits `range` into maximal segments by coverage, in order, into `out` (cleared first).
    pub fn lookup(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.files.read().get(file) {
            Some(state) => state.mapped().extents.split(range, out),
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    /// As [`Self::lookup`] and [`Self::touch`] together, which takes one search instead of two.
    pub fn lookup_used(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>) {
        out.clear();
        match self.files.read().get(file) {
            Some(state) => {
                let mut uses = None;
                let mut note = |entry: &_| uses.get_or_insert_with(|| self.uses()).note(entry);
                state.mapped().extents.split_noting(range, out, &mut note);
            }
            None if range.is_empty() => {}
            None => out.push(Segment { range, extent: None }),
        }
    }

    /// Marks the extents under `range` as just used.
    pub fn touch(&self, file: FileId, range: ByteRange) {
        let Some(state) = self.files.state(file) else { return };
        let mapped = state.mapped();
        let mut uses = self.uses();
        mapped.extents.overlapping(range).for_each(|(_, entry)| uses.note(entry));
    }

    fn uses(&self) -> Uses<'_> {
        Uses::at(self.now_ms(), &self.eviction_queue)
    }

    /// Dirty extents of `file` inside `range` in offset order, at most `limit`.
    pub fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped();
        mapped.extents.dirty(range).take(limit).collect()
    }

    /// Bytes of all dirty extents of `file`.
    pub fn dirty_bytes(&self, file: FileId) -> u64 {
        self.files.state(file).map_or(0, |state| state.mapped().extents.dirty_bytes())
    }

    /// Files with dirty extents, with the time of their oldest in milliseconds since the epoch.
    pub fn dirty_files(&self) -> Vec<(FileId, u64)> {
        self.busy.dirty()
    }

    /// Files with blocks that wait to be discarded.
    pub(super) fn waiting_files(&self) -> Vec<FileId> {
        self.busy.waiting()
    }

    /// All extents of a file in offset order.
    pub fn extents(&self, file: FileId) -> Vec<Extent> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped();
        mapped.extents.all().collect()
    }

    /// A file's extents as recorded, with the epoch of the dirty ones: what a crash now would leave. For tests.
    pub fn recorded(&self, file: FileId) -> Vec<(ByteRange, Placement, Option<u64>)> {
        let Some(state) = self.files.state(file) else { return Vec::new() };
        let mapped = state.mapped();
        assert!(mapped.intents.agree_with(&mapped.extents), "intents and extents disagree");
        let mut recorded: Vec<_> = Vec::new();
        for (start, entry) in mapped.extents.entries() {
            match mapped.intents.at(start) {
                Some(intent) if intent.range.start < start => {}
                Some(intent) => recorded.push((intent.range, entry.placement, Some(intent.epoch))),
                None => {
                    let epoch = entry.dirty().then_some(entry.epoch);
                    recorded.push((ByteRange::new(start, entry.end), entry.placement, epoch));
                }
            }
        }
        recorded
    }
}

/// A change of one file's extents in memory. When it ends, the file is listed by what it has then.
pub(super) struct Edit<'i> {
    index: &'i ExtentIndex,
    state: &'i FileState,
    mapped: MappedEdit<'i>,
}

/// Extents.
impl Edit<'_> {
    /// Adds an extent that was recorded. If it is clean, it may be evicted once the last record of its blocks is gone.
    pub(super) fn map(&mut self, mut record: ExtentRecord) {
        let Mapped { extents, blocks, .. } = &mut *self.mapped;
        let ByteRange { start, .. } = record.range;
        let epoch = blocks.occupy(extents, &self.index.space, record.range, record.placement);
        if !record.dirty {
            record.epoch = epoch;
        }
        let mut queue = self.index.eviction_queue.lock();
        let slot = queue.insert(self.state.id, start, record.range.len());
        drop(queue);
        extents.insert(start, Entry::new(&record, self.index.next_generation(), slot));
        self.index.sums.count(&record, 1);
    }

    /// Applies a replacement that was recorded. The first piece that was not used just now keeps the extent's place in the
    /// eviction queue.
    pub(super) fn replace(&mut self, replace: Replace) {
        let (extents, sums) = (&mut self.mapped.extents, &self.index.sums);
        let mut queue = self.index.eviction_queue.lock();
        let old = extents.remove(replace.start).expect("planned under `change`");
        let old_record = old.record(ByteRange::new(replace.start, old.end));
        sums.count(&old_record, -1);
        let heir = replace
            .pieces
            .iter()
            .position(|piece| piece.record.last_use_ms == old_record.last_use_ms)
            .unwrap_or(0);
        if replace.pieces.is_empty() {
            queue.remove(old.slot);
        }
        for (index, piece) in replace.pieces.into_iter().enumerate() {
            let ByteRange { start, end } = piece.record.range;
            let slot = if index == heir {
                queue.renamed(old.slot, start);
                if piece.record.last_use_ms != old_record.last_use_ms {
                    queue.touch(old.slot);
                }
                old.slot
            } else {
                queue.insert(self.state.id, start, end - start)
            };
            if !piece.record.dirty && piece.record.epoch != HELD {
                queue.unpark(slot, end - start);
            }
            sums.count(&piece.record, 1);
            extents.insert(start, Entry::new(&piece.record, piece.generation, slot));
        }
    }

    /// Unmaps what was planned and, if it is recorded, recorded in `epoch`.
    pub(super) fn unmap(&mut self, plan: Vec<Replace>, gone: Vec<ExtentRecord>, epoch: u64) {
        for replace in plan {
            self.replace(replace);
        }
        for record in gone {
            // Punching may begin once no record of these bytes can come back.
            let due = if record.dirty || record.epoch == HELD { epoch } else { record.epoch };
            self.retire(&record, due);
        }
    }

    /// Makes the blocks of an unmapped range wait for `epoch`. A clean neighbour that still needs some of these blocks
    /// waits, too: it must not be evicted earlier.
    fn retire(&mut self, record: &ExtentRecord, epoch: u64) {
        let Mapped { extents, blocks, .. } = &mut *self.mapped;
        blocks.retire(extents, record.range, record.placement, epoch);
        let neighbours: Vec<u64> = extents
            .overlapping(record.range.widen_to(BLOCK))
            .filter(|(_, entry)| entry.placement == record.placement && !entry.dirty())
            .map(|(start, _)| start)
            .collect();
        for start in neighbours {
            let entry = extents.get_mut(start).expect("it was just seen");
            entry.epoch = entry.epoch.max(epoch);
        }
    }

    /// Unmaps the clean extent at `start`, which was recorded, and hands its blocks out for discarding.
    pub(super) fn evict(&mut self, start: u64, discards: &mut Vec<Discard>) {
        let Mapped { extents, blocks, .. } = &mut *self.mapped;
        let entry = extents.remove(start).expect("planned under `change`");
        self.index.eviction_queue.lock().remove(entry.slot);
        let record = entry.record(ByteRange::new(start, entry.end));
        assert!(!record.dirty, "I3: dirty data is never evicted");
        self.index.sums.count(&record, -1);
        for range in blocks.retire(extents, record.range, record.placement, 0) {
            blocks.take_now(range, record.placement);
            let discard = Discard { file: self.state.id, range, placement: record.placement };
            push_joined(discards, discard);
        }
    }
}

/// Write intents.
impl Edit<'_> {
    /// Whether the extent at `start` belongs to an intent.
    pub(super) fn has_intent_at(&self, start: u64) -> bool {
        self.mapped.intents.at(start).is_some()
    }

    /// Adds an intent, whose extents are there.
    pub(super) fn add_intent(&mut self, intent: WriteIntent) {
        self.mapped.intents.insert(intent);
        debug_assert!(intent.is_covered_by(&self.mapped.extents), "an intent without its extents");
    }

    /// Removes an intent, whose extents are recorded one by one.
    pub(super) fn remove_intent(&mut self, intent: WriteIntent) {
        self.mapped.intents.remove(intent);
    }

    /// Takes `range` out of all intents.
    pub(super) fn cut_intents(&mut self, range: ByteRange) {
        self.mapped.intents.cut(range);
    }

    /// Turns an intent in which nothing is dirty any more, recorded in `epoch`, into one extent. It takes the place in
    /// the eviction queue of the piece that was used last.
    pub(super) fn merge(&mut self, intent: WriteIntent, epoch: u64) {
        let (mapped, sums) = (&mut *self.mapped, &self.index.sums);
        debug_assert!(intent.is_covered_by(&mapped.extents), "an intent without its extents");
        let record = merged(&mapped.extents, intent, epoch);
        let starts: Vec<u64> = mapped.extents.overlapping(intent.range).map(|(at, _)| at).collect();
        let mut queue = self.index.eviction_queue.lock();
        let mut heir: Option<(u64, u32)> = None;
        for start in starts {
            let entry = mapped.extents.remove(start).expect("it was just seen");
            let piece = entry.record(ByteRange::new(start, entry.end));
            assert!(!piece.dirty, "I3: dirty extents do not become clean by merging");
            sums.count(&piece, -1);
            let beaten = match heir {
                Some((last_use_ms, _)) if last_use_ms >= piece.last_use_ms => Some(entry.slot),
                _ => heir.replace((piece.last_use_ms, entry.slot)).map(|(_, slot)| slot),
            };
            if let Some(slot) = beaten {
                queue.remove(slot);
            }
        }
        let (_, slot) = heir.expect("an intent is covered");
        queue.renamed(slot, intent.range.start);
        queue.unpark(slot, intent.range.len());
        drop(queue);
        sums.count(&record, 1);
        let entry = Entry::new(&record, self.index.next_generation(), slot);
        mapped.extents.insert(intent.range.start, entry);
        mapped.intents.remove(intent);
    }
}

/// Blocks.
impl Edit<'_> {
    /// Reserves the blocks of `range`; `false` if the limit does not allow it.
    pub(super) fn reserve(&mut self, range: ByteRange, placement: Placement) -> bool {
        let Mapped { extents, blocks, .. } = &mut *self.mapped;
        blocks.reserve(extents, &self.index.space, range, placement)
    }

    /// Queues reserved blocks for discarding.
    pub(super) fn release(&mut self, range: ByteRange, placement: Placement) {
        let Mapped { extents, blocks, .. } = &mut *self.mapped;
        blocks.release(extents, range, placement);
    }

    /// Takes the waiting blocks whose epoch is complete.
    pub(super) fn take_due(&mut self, completed: u64, due: &mut Vec<Discard>) {
        self.mapped.blocks.take_due(self.state.id, completed, due);
    }

    /// Frees discarded blocks; returns whether the file has no more that wait.
    pub(super) fn free(&mut self, range: ByteRange, placement: Placement) -> bool {
        self.mapped.blocks.discarded(&self.index.space, range, placement);
        self.mapped.blocks.is_empty()
    }
}

/// A clean intent as one extent, last used when the last of its pieces was.
pub(super) fn merged(extents: &RangeMap, intent: WriteIntent, epoch: u64) -> ExtentRecord {
    let pieces = || extents.overlapping(intent.range).map(|(_, entry)| entry);
    let first = pieces().next().expect("an intent is covered");
    ExtentRecord {
        range: intent.range,
        placement: first.placement,
        dirty: false,
        epoch,
        dirty_since_ms: 0,
        last_use_ms: pieces().map(|entry| entry.last_use_ms.load(Relaxed)).max().unwrap_or(0),
    }
}
