//! The local DMT against a naive model of byte arrays: random operations, kills, clean closes and
//! power losses; every byte's mapping and every block's count compared after each (I3, I4, I5).

#![expect(clippy::cast_possible_truncation, reason = "the model is small")]

mod model;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_meta::load::Shutdown;
use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{BLOCK, Discard, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use model::{Cell, Model, blocks};

const FILES: u64 = 2;
const BYTES: usize = 5 * BLOCK as usize;
const LIMIT: u64 = 12 * BLOCK;

fn placement(which: bool) -> Placement {
    if which {
        Placement { layout: Layout::OneDv, group: 1 }
    } else {
        Placement { layout: Layout::OneDh, group: 0 }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Write { file: u64, range: ByteRange, place: bool, dirty: bool },
    Reserve { file: u64, range: ByteRange, place: bool },
    ReleaseAll,
    MarkDirty { file: u64, range: ByteRange },
    MarkClean { file: u64, range: ByteRange, stale: bool },
    Unmap { file: u64, range: ByteRange },
    Touch { file: u64, range: ByteRange },
    Pin { file: u64, pinned: bool },
    Evict { blocks: u64, keep: Option<(u64, ByteRange)> },
    Take,
    Discarded,
    Cut,
    Barrier,
    Kill,
    Close,
    PowerLoss,
}

/// Ranges that often share and often meet block bounds.
fn range() -> impl Strategy<Value = ByteRange> {
    let end = BYTES as u64;
    let point = prop_oneof![
        (0..=end / BLOCK).prop_map(|block| block * BLOCK),
        (0..=end / 512).prop_map(|sector| sector * 512),
        0..=end,
    ];
    (point.clone(), point)
        .prop_filter("not empty", |(a, b)| a != b)
        .prop_map(|(a, b)| ByteRange::new(a.min(b), a.max(b)))
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0..FILES, range());
    prop_oneof![
        8 => (at(), any::<bool>(), any::<bool>())
            .prop_map(|((file, range), place, dirty)| Op::Write { file, range, place, dirty }),
        1 => (at(), any::<bool>())
            .prop_map(|((file, range), place)| Op::Reserve { file, range, place }),
        1 => Just(Op::ReleaseAll),
        4 => at().prop_map(|(file, range)| Op::MarkDirty { file, range }),
        4 => (at(), prop::bool::weighted(0.2))
            .prop_map(|((file, range), stale)| Op::MarkClean { file, range, stale }),
        3 => at().prop_map(|(file, range)| Op::Unmap { file, range }),
        2 => at().prop_map(|(file, range)| Op::Touch { file, range }),
        1 => (0..FILES, any::<bool>()).prop_map(|(file, pinned)| Op::Pin { file, pinned }),
        3 => (1..6u64, prop::option::of(at())).prop_map(|(blocks, keep)| Op::Evict { blocks, keep }),
        2 => Just(Op::Take),
        2 => Just(Op::Discarded),
        2 => Just(Op::Cut),
        2 => Just(Op::Barrier),
        1 => Just(Op::Kill),
        1 => Just(Op::Close),
        1 => Just(Op::PowerLoss),
    ]
}

struct Pair {
    dir: tempfile::TempDir,
    dmt: Option<ExtentTable>,
    ids: Vec<FileId>,
    model: Model,
    taken: Vec<Discard>,
    clock: Arc<AtomicU64>,
    intent_bytes: u64,
}

fn open(dir: &Path, clock: &Arc<AtomicU64>, boot: u64, intent: u64) -> (ExtentTable, Shutdown) {
    let clock = Arc::clone(clock);
    let options = Options {
        intent_bytes: intent,
        clock: Box::new(move || clock.fetch_add(1, Relaxed)),
        ..Options::new(LIMIT, Box::<Lru>::default(), 8)
    };
    let (dmt, recovery) =
        ExtentTable::open_tuned(dir, options, &format!("boot-{boot}"), 4096).unwrap();
    (dmt, recovery.last_shutdown)
}

impl Pair {
    fn new(intent_bytes: u64) -> Self {
        // In memory where that exists: each open syncs.
        let fast = Path::new("/dev/shm");
        let builder = tempfile::Builder::new();
        let dir = if fast.is_dir() { builder.tempdir_in(fast) } else { builder.tempdir() }.unwrap();
        let clock = Arc::new(AtomicU64::new(1000));
        let (dmt, _) = open(dir.path(), &clock, 0, intent_bytes);
        let ids = (0..FILES)
            .map(|file| {
                let key = OriginKey { inode: file, born_ns: 0 };
                dmt.files().register(key, Path::new(&file.to_string())).unwrap()
            })
            .collect();
        let model = Model::new();
        Self { dir, dmt: Some(dmt), ids, model, taken: Vec::new(), clock, intent_bytes }
    }

    fn dmt(&self) -> &ExtentTable {
        self.dmt.as_ref().unwrap()
    }

    fn id(&self, file: u64) -> FileId {
        self.ids[file as usize]
    }

    fn file(&self, id: FileId) -> u64 {
        self.ids.iter().position(|&known| known == id).unwrap() as u64
    }

    fn reopen(&mut self, last_shutdown: Shutdown) {
        // A new run begins after every epoch that was recorded: in a write intent, that of its first write.
        let recorded = self.ids.iter().flat_map(|&id| self.dmt().index().recorded(id));
        let seen = recorded.filter_map(|(_, _, dirty)| dirty).max();
        let last = self.model.end_run(seen);
        self.dmt = None;
        if last_shutdown == Shutdown::PowerLost {
            self.model.lose_power();
        }
        let boot = self.model.power_losses;
        let (dmt, found) = open(self.dir.path(), &self.clock, boot, self.intent_bytes);
        assert_eq!(found, last_shutdown);
        self.dmt = Some(dmt);
        self.taken.clear();
        self.model.forget_unstored();
        self.model.unsettled = false;
        if last_shutdown == Shutdown::Closed {
            self.model.completed = last;
        }
        self.model.epoch = last + 1;
        self.model.cut = self.model.completed;
    }

    fn crash(&mut self, last_shutdown: Shutdown) -> TestCaseResult {
        self.believe_records()?;
        self.reopen(last_shutdown);
        Ok(())
    }

    /// Makes the model what the store says: as much is mapped, and everything dirty is recorded as
    /// dirty, no later than it became so (I4). What is recorded beyond lies in write intents.
    fn believe_records(&mut self) -> TestCaseResult {
        for (file, &id) in self.ids.iter().enumerate() {
            let mut recorded = vec![None; BYTES];
            for (range, place, dirty) in self.dmt().index().recorded(id) {
                let cell = Cell { place: place == placement(true), dirty };
                recorded[range.start as usize..range.end as usize].fill(Some(cell));
            }
            for (at, cell) in self.model.cells[file].iter_mut().enumerate() {
                let (cell_is, says) = (cell.map(|c| c.place), recorded[at].map(|c| c.place));
                prop_assert_eq!(cell_is, says, "byte {} is mapped otherwise", at);
                let dirty = cell.and_then(|cell| cell.dirty);
                let as_recorded = recorded[at].and_then(|cell| cell.dirty);
                if let Some(since) = dirty {
                    prop_assert!(as_recorded.is_some_and(|epoch| epoch <= since), "I4: byte {at}");
                }
                prop_assert!(self.intent_bytes > 1 || dirty == as_recorded, "byte {at} too much");
                *cell = recorded[at];
            }
        }
        Ok(())
    }

    fn write(&mut self, file: u64, range: ByteRange, place: bool, dirty: bool) {
        for part in self.model.unmapped(file, range) {
            if !self.reserve(file, part, place) {
                continue;
            }
            self.dmt().changes().map(self.id(file), part, placement(place), dirty).unwrap();
            let at = self
                .model
                .reserved
                .iter()
                .position(|&(f, whole, p)| f == file && p == place && whole.contains(part));
            let (_, whole, _) = self.model.reserved.swap_remove(at.unwrap());
            for rest in
                [ByteRange::new(whole.start, part.start), ByteRange::new(part.end, whole.end)]
            {
                if !rest.is_empty() {
                    self.model.reserved.push((file, rest, place));
                }
            }
            let epoch = self.model.epoch;
            let cell = Cell { place, dirty: dirty.then_some(epoch) };
            self.model.bytes(file, part).fill(Some(cell));
        }
    }

    fn reserve(&mut self, file: u64, range: ByteRange, place: bool) -> bool {
        self.model.reserved.push((file, range, place));
        let waited = std::mem::take(&mut self.model.waiting);
        let covered = self.model.covered();
        self.model.waiting = waited.difference(&covered).copied().collect();
        let fits = self.model.used() <= LIMIT;
        assert_eq!(self.dmt().blocks().reserve(self.id(file), range, placement(place)), fits, "I5");
        if !fits {
            self.model.reserved.pop();
            self.model.waiting = waited;
        }
        let Model { waiting, handed_out, .. } = &mut self.model;
        handed_out.retain(|block| waiting.contains(block));
        fits
    }

    fn mark_clean(&mut self, file: u64, range: ByteRange, stale: bool) {
        let dirty = self.dmt().index().dirty(self.id(file), range, usize::MAX);
        let stale_by = u64::from(stale) * 1_000_000;
        let list: Vec<_> = dirty.iter().map(|e| (e.range, e.generation + stale_by)).collect();
        let cleaned = self.dmt().changes().mark_clean(self.id(file), &list).unwrap();
        if stale {
            assert_eq!(cleaned, 0, "a stale generation clears nothing (I3)");
            return;
        }
        assert_eq!(cleaned, dirty.iter().map(|e| e.range.len()).sum::<u64>());
        for extent in dirty {
            self.model.unsettled = true;
            for cell in self.model.bytes(file, extent.range) {
                cell.as_mut().unwrap().dirty = None;
            }
        }
    }

    fn unmap(&mut self, file: u64, range: ByteRange) {
        self.dmt().changes().unmap(self.id(file), range).unwrap();
        self.model.unsettled = true;
        let mut touched = BTreeSet::new();
        for at in range.start..range.end {
            if let Some(cell) = self.model.cells[file as usize][at as usize].take() {
                touched.insert((file, cell.place, at / BLOCK));
            }
        }
        self.model.retire(touched);
    }

    fn evict(&mut self, wanted: u64, keep: Option<(u64, ByteRange)>) -> TestCaseResult {
        let before: Vec<_> = self.ids.iter().map(|&id| self.dmt().index().extents(id)).collect();
        let kept = keep.map(|(file, range)| (self.id(file), range));
        let mut locked = Vec::new();
        let mut lock = |file, range: ByteRange| {
            let is_locked = |&(f, r): &(_, ByteRange)| f == file && r.overlaps(range);
            assert!(!locked.iter().any(is_locked), "locked twice");
            locked.push((file, range));
            true
        };
        let discards = self.dmt().evictor().evict(wanted, kept, &mut lock).unwrap();
        let mut touched = BTreeSet::new();
        let mut possible = self.model.covered();
        for (file, extents) in before.iter().enumerate() {
            let after = self.dmt().index().extents(self.ids[file]);
            let file = file as u64;
            for extent in extents {
                let place = extent.placement == placement(true);
                let overlaps = keep.is_some_and(|(f, r)| f == file && r.overlaps(extent.range));
                let evictable = !extent.dirty && !self.model.pinned[file as usize] && !overlaps;
                if after.iter().any(|other| other.range == extent.range) {
                    continue;
                }
                prop_assert!(evictable, "I3: {extent:?} was not evictable");
                prop_assert!(
                    blocks(file, extent.range, place).all(|(_, _, block)| {
                        let range = ByteRange::at(block * BLOCK, BLOCK);
                        let held =
                            |&(f, r): &(_, ByteRange)| f == self.id(file) && r.overlaps(range);
                        locked.iter().any(held)
                    }),
                    "I2: evicted without its lock"
                );
                touched.extend(blocks(file, extent.range, place));
                self.model.bytes(file, extent.range).fill(None);
            }
        }
        self.model.retire(touched);
        let freed: u64 = discards.iter().map(|discard| discard.range.len()).sum();
        prop_assert!(discards.is_empty() || freed >= wanted, "all or nothing");
        for discard in &discards {
            let file = self.file(discard.file);
            for block in blocks(file, discard.range, discard.placement == placement(true)) {
                prop_assert!(self.model.waiting.contains(&block), "I2: {block:?} is still needed");
                self.model.handed_out.insert(block);
            }
        }
        if discards.is_empty() && !self.model.unsettled {
            for (file, extents) in before.iter().enumerate() {
                let file = file as u64;
                for extent in extents {
                    let overlaps = keep.is_some_and(|(f, r)| f == file && r.overlaps(extent.range));
                    let pinned = self.model.pinned[file as usize];
                    if !pinned && !overlaps && !self.is_recorded_dirty(file, extent.range) {
                        self.model.bytes(file, extent.range).fill(None);
                    }
                }
            }
            let needed = self.model.covered();
            possible.retain(|block| !needed.contains(block));
            prop_assert!((possible.len() as u64 * BLOCK) < wanted, "enough was evictable");
            for (file, extents) in before.iter().enumerate() {
                for extent in extents {
                    let place = extent.placement == placement(true);
                    for cell in self.model.bytes(file as u64, extent.range) {
                        if cell.is_none() {
                            prop_assert!(!extent.dirty);
                            *cell = Some(Cell { place, dirty: None });
                        }
                    }
                }
            }
        }
        self.taken.extend(discards);
        Ok(())
    }

    fn is_recorded_dirty(&self, file: u64, range: ByteRange) -> bool {
        let recorded = self.dmt().index().recorded(self.id(file));
        recorded.iter().any(|record| record.2.is_some() && record.0.contains(range))
    }

    fn discard(&mut self) {
        for discard in std::mem::take(&mut self.taken) {
            let file = self.file(discard.file);
            let place = discard.placement == placement(true);
            let covered = self.model.covered();
            for block in blocks(file, discard.range, place) {
                let range = ByteRange::at(block.2 * BLOCK, BLOCK);
                // As the caller does: what is in use again is neither punched nor given back.
                if !covered.contains(&block) {
                    self.dmt().blocks().discarded(&Discard { range, ..discard });
                    // What was claimed and given up since waits for another turn.
                    if self.model.handed_out.remove(&block) {
                        self.model.waiting.remove(&block);
                    }
                }
            }
        }
    }

    fn run(&mut self, op: &Op) -> TestCaseResult {
        match *op {
            Op::Write { file, range, place, dirty } => self.write(file, range, place, dirty),
            Op::Reserve { file, range, place } => {
                for part in self.model.unmapped(file, range) {
                    self.reserve(file, part, place);
                }
            }
            Op::ReleaseAll => {
                for (file, range, place) in std::mem::take(&mut self.model.reserved) {
                    self.dmt().blocks().release(self.id(file), range, placement(place));
                    self.model.waiting.extend(blocks(file, range, place));
                }
                let covered = self.model.covered();
                self.model.waiting.retain(|block| !covered.contains(block));
            }
            Op::MarkDirty { file, range } => {
                self.dmt().changes().mark_dirty(self.id(file), range).unwrap();
                let epoch = self.model.epoch;
                for cell in self.model.bytes(file, range).iter_mut().flatten() {
                    cell.dirty.get_or_insert(epoch);
                }
            }
            Op::MarkClean { file, range, stale } => self.mark_clean(file, range, stale),
            Op::Unmap { file, range } => self.unmap(file, range),
            Op::Touch { file, range } => self.dmt().index().touch(self.id(file), range),
            Op::Pin { file, pinned } => {
                self.dmt().evictor().pin(self.id(file), pinned);
                self.model.pinned[file as usize] = pinned;
            }
            Op::Evict { blocks, keep } => self.evict(blocks * BLOCK, keep)?,
            Op::Take => {
                let due = self.dmt().blocks().take_discards();
                for discard in &due {
                    let file = self.file(discard.file);
                    for block in blocks(file, discard.range, discard.placement == placement(true)) {
                        prop_assert!(self.model.waiting.contains(&block), "I2: {block:?} in use");
                        self.model.handed_out.insert(block);
                    }
                }
                self.taken.extend(due);
            }
            Op::Discarded => self.discard(),
            Op::Cut => {
                // What was held may be recorded as clean now, for the barrier to make evictable.
                self.model.unsettled |= self.dmt().index().usage().held > 0;
                self.dmt().cut();
                self.model.cut = self.model.epoch;
                self.model.epoch += 1;
            }
            Op::Barrier => {
                self.dmt().barrier().unwrap();
                if self.model.cut <= self.model.completed {
                    self.model.cut = self.model.epoch;
                    self.model.epoch += 1;
                    self.model.unsettled = false;
                }
                self.model.completed = self.model.cut;
            }
            Op::Kill => self.crash(Shutdown::Crashed)?,
            Op::Close => {
                self.dmt().close().unwrap();
                assert!(self.dmt().barrier().is_err());
                self.reopen(Shutdown::Closed);
            }
            Op::PowerLoss => {
                self.model.power_losses += 1;
                self.crash(Shutdown::PowerLost)?;
            }
        }
        Ok(())
    }

    fn compare(&self) -> TestCaseResult {
        let (mut mapped, mut dirty) = (0, 0);
        let mut segments = Vec::new();
        for (file, cells) in self.model.cells.iter().enumerate() {
            let mut seen = vec![None; BYTES];
            let all = ByteRange::new(0, BYTES as u64);
            self.dmt().index().lookup(self.ids[file], all, &mut segments);
            let mut at = 0;
            for segment in &segments {
                prop_assert_eq!(segment.range.start, at, "segments are in order without gaps");
                at = segment.range.end;
                if let Some(extent) = segment.extent {
                    prop_assert!(extent.range.contains(segment.range));
                    prop_assert_eq!(extent.dirty, extent.dirty_since_ms > 0);
                    let state = (extent.placement == placement(true), extent.dirty);
                    seen[segment.range.start as usize..at as usize].fill(Some(state));
                    mapped += segment.range.len();
                    dirty += if extent.dirty { segment.range.len() } else { 0 };
                }
            }
            prop_assert_eq!(at, BYTES as u64);
            let want: Vec<_> =
                cells.iter().map(|cell| cell.map(|c| (c.place, c.dirty.is_some()))).collect();
            if let Some(at) = (0..BYTES).find(|&at| want[at] != seen[at]) {
                prop_assert_eq!((file, at, seen[at]), (file, at, want[at]), "a mapping differs");
            }
        }
        let usage = self.dmt().index().usage();
        prop_assert_eq!((usage.mapped, usage.dirty), (mapped, dirty));
        prop_assert_eq!(usage.used, self.model.used(), "I5: blocks counted against brute force");
        prop_assert!(usage.used <= LIMIT, "I5");
        let extents = self.ids.iter().flat_map(|&id| self.dmt().index().extents(id));
        let extents: Vec<_> = extents.collect();
        prop_assert_eq!(usage.extents, extents.len() as u64);
        prop_assert_eq!(usage.dirty_extents, extents.iter().filter(|e| e.dirty).count() as u64);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..Default::default() })]

    #[test]
    fn the_tables_agree_with_byte_arrays(
        ops in prop::collection::vec(op(), 1..60),
        intent_bytes in prop_oneof![Just(1), Just(2 * BLOCK), Just(1 << 20)],
    ) {
        let mut pair = Pair::new(intent_bytes);
        for op in ops {
            pair.run(&op)?;
            pair.compare()?;
        }
    }
}
