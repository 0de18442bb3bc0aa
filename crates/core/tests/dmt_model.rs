//! The data mapping table against a model of plain arrays: any sequence of operations, with
//! reopening in between, must show the same bytes mapped, dirty and counted (I4, I5).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use halocline_core::meta::local::{LocalDmt, Options};
use halocline_core::meta::{BLOCK, Discard, Dmt, FileId, OriginKey, Segment};
use halocline_model::evict;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use proptest::prelude::*;

const FILE_BYTES: u64 = 8 * BLOCK;
const LIMIT: u64 = 12 * BLOCK;
const FILES: u64 = 2;

fn options() -> Options {
    let eviction = evict::by_name("lru").expect("lru is a policy");
    Options { limit_bytes: LIMIT, eviction, cdt_entries: 8 }
}

fn placement(number: u16) -> Placement {
    Placement { layout: Layout::OneDv, group: number }
}

fn key(number: u64) -> OriginKey {
    OriginKey { inode: number, born_ns: 7 }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Write(u64, ByteRange, u16, bool),
    Abandon(u64, ByteRange, u16),
    Dirty(u64, ByteRange),
    Clean(u64, ByteRange, bool),
    Unmap(u64, ByteRange),
    Evict(u64),
    Discard,
    Barrier,
    Reopen(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..FILES;
    let range = (0..FILE_BYTES / 512, 1..24_u64)
        .prop_map(|(at, len)| ByteRange::new(at * 512, ((at + len) * 512).min(FILE_BYTES)));
    let place = 0..2_u16;
    prop_oneof![
        6 => (file.clone(), range.clone(), place.clone(), any::<bool>())
            .prop_map(|(f, r, p, d)| Op::Write(f, r, p, d)),
        1 => (file.clone(), range.clone(), place).prop_map(|(f, r, p)| Op::Abandon(f, r, p)),
        3 => (file.clone(), range.clone()).prop_map(|(f, r)| Op::Dirty(f, r)),
        3 => (file.clone(), range.clone(), any::<bool>()).prop_map(|(f, r, s)| Op::Clean(f, r, s)),
        2 => (file, range).prop_map(|(f, r)| Op::Unmap(f, r)),
        2 => (1..6 * BLOCK).prop_map(Op::Evict),
        2 => Just(Op::Discard),
        2 => Just(Op::Barrier),
        1 => any::<bool>().prop_map(Op::Reopen),
    ]
}

/// What one byte is: the object it lies in and whether it is dirty.
type Byte = Option<(u16, bool)>;

/// Plain arrays. Discards stay counted until the table hands them out.
#[derive(Debug, Clone)]
struct Model {
    bytes: Vec<Vec<Byte>>,
    pending: BTreeSet<(u64, u16, u64)>,
}

impl Model {
    fn new() -> Self {
        let whole = usize::try_from(FILE_BYTES).unwrap();
        Self { bytes: vec![vec![None; whole]; 2], pending: BTreeSet::new() }
    }

    fn of(&mut self, file: u64, range: ByteRange) -> &mut [Byte] {
        let (start, end) = (range.start, range.end);
        let bounds = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
        &mut self.bytes[usize::try_from(file).unwrap()][bounds]
    }

    fn mapped_blocks(&self) -> BTreeSet<(u64, u16, u64)> {
        let mut blocks = BTreeSet::new();
        for (file, bytes) in (0..).zip(&self.bytes) {
            for (at, byte) in (0..).zip(bytes) {
                if let Some((place, _)) = byte {
                    blocks.insert((file, *place, at / BLOCK));
                }
            }
        }
        blocks
    }

    /// Everything that was used before and is not mapped now waits to be discarded.
    fn unmapped(&mut self, before: &BTreeSet<(u64, u16, u64)>) {
        let mapped = self.mapped_blocks();
        self.pending.extend(before.difference(&mapped));
    }

    fn used(&self) -> u64 {
        self.mapped_blocks().union(&self.pending).count() as u64 * BLOCK
    }

    fn discarded(&mut self, discard: &Discard, file: u64) {
        for block in discard.range.start / BLOCK..discard.range.end / BLOCK {
            let known = self.pending.remove(&(file, discard.placement.group, block));
            assert!(known, "I5: only blocks that nothing needs are discarded");
        }
    }
}

struct Pair {
    dir: tempfile::TempDir,
    table: Option<LocalDmt>,
    model: Model,
    ids: Vec<FileId>,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (table, _) = LocalDmt::open(dir.path(), options()).unwrap();
        let ids = (0..FILES)
            .map(|n| table.register(key(n), Path::new(&format!("f{n}"))).unwrap())
            .collect();
        Self { dir, table: Some(table), model: Model::new(), ids }
    }

    fn table(&self) -> &LocalDmt {
        self.table.as_ref().unwrap()
    }

    fn id(&self, file: u64) -> FileId {
        self.ids[usize::try_from(file).unwrap()]
    }

    fn number(&self, id: FileId) -> u64 {
        self.ids.iter().position(|known| *known == id).unwrap() as u64
    }

    fn segments(&self, file: u64, range: ByteRange) -> Vec<Segment> {
        let mut segments = Vec::new();
        self.table().lookup(self.id(file), range, &mut segments);
        segments
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write(file, range, place, dirty) => self.write(file, range, place, dirty),
            Op::Abandon(file, range, place) => self.abandon(file, range, place),
            Op::Dirty(file, range) => {
                self.table().mark_dirty(self.id(file), range).unwrap();
                for byte in self.model.of(file, range).iter_mut().flatten() {
                    byte.1 = true;
                }
            }
            Op::Clean(file, range, stale) => self.clean(file, range, stale),
            Op::Unmap(file, range) => {
                let before = self.model.mapped_blocks();
                self.table().unmap(self.id(file), range).unwrap();
                self.model.of(file, range).fill(None);
                self.model.unmapped(&before);
            }
            Op::Evict(bytes) => self.evict(bytes),
            Op::Discard => self.discard(),
            Op::Barrier => self.table().barrier().unwrap(),
            Op::Reopen(closed) => self.reopen(closed),
        }
    }

    fn write(&mut self, file: u64, range: ByteRange, place: u16, dirty: bool) {
        for missing in self.segments(file, range).iter().filter(|s| s.extent.is_none()) {
            let range = missing.range;
            let used = self.model.used();
            let mut after = self.model.clone();
            after.of(file, range).fill(Some((place, dirty)));
            for block in after.mapped_blocks() {
                after.pending.remove(&block);
            }
            let fits = self.table().reserve(self.id(file), range, placement(place));
            assert_eq!(fits, after.used() <= LIMIT || after.used() == used, "I5 of {range:?}");
            if fits {
                assert_eq!(self.table().usage().used, after.used(), "counted before the write");
                self.table().map(self.id(file), range, placement(place), dirty).unwrap();
                self.model = after;
            }
        }
    }

    fn abandon(&mut self, file: u64, range: ByteRange, place: u16) {
        for missing in self.segments(file, range).iter().filter(|s| s.extent.is_none()) {
            if self.table().reserve(self.id(file), missing.range, placement(place)) {
                let mut with = self.model.clone();
                with.of(file, missing.range).fill(Some((place, false)));
                let blocks = with.mapped_blocks();
                self.table().release(self.id(file), missing.range, placement(place));
                self.model.unmapped(&blocks);
            }
        }
    }

    fn clean(&mut self, file: u64, range: ByteRange, stale: bool) {
        let dirty = self.table().dirty(self.id(file), range, usize::MAX);
        let list: Vec<_> =
            dirty.iter().map(|e| (e.range, e.generation.wrapping_add(stale.into()))).collect();
        let cleared = self.table().mark_clean(self.id(file), &list).unwrap();
        if stale {
            assert_eq!(cleared, 0, "a stale generation clears nothing");
            return;
        }
        assert_eq!(cleared, dirty.iter().map(|e| e.range.len()).sum::<u64>());
        for extent in dirty {
            for byte in self.model.of(file, extent.range).iter_mut().flatten() {
                byte.1 = false;
            }
        }
    }

    fn evict(&mut self, bytes: u64) {
        let before = self.model.mapped_blocks();
        let dirty_before = self.table().usage().dirty;
        let discards = self.table().evict(bytes, None, &mut |_, _| true).unwrap();
        let freed: u64 = discards.iter().map(|d| d.range.len()).sum();
        assert!(discards.is_empty() || freed >= bytes, "all or nothing");
        assert_eq!(self.table().usage().dirty, dirty_before, "I3: dirty data is never dropped");
        let ids = self.ids.clone();
        for (file, id) in (0..).zip(ids) {
            let whole = ByteRange::new(0, FILE_BYTES);
            let mut segments = Vec::new();
            self.table.as_ref().unwrap().lookup(id, whole, &mut segments);
            for gone in segments.iter().filter(|s| s.extent.is_none()) {
                let bytes = self.model.of(file, gone.range);
                assert!(bytes.iter().flatten().all(|byte| !byte.1));
                bytes.fill(None);
            }
        }
        self.model.unmapped(&before);
        for discard in discards {
            self.model.discarded(&discard, self.number(discard.file));
            self.table().discarded(&discard);
        }
    }

    fn discard(&mut self) {
        for queued in self.table().take_discards() {
            for part in self.table().still_discardable(&queued) {
                self.model.discarded(&part, self.number(part.file));
                self.table().discarded(&part);
            }
        }
    }

    fn reopen(&mut self, closed: bool) {
        if closed {
            self.table().close().unwrap();
        }
        drop(self.table.take());
        let stray = !self.model.pending.is_empty();
        let (table, recovery) = LocalDmt::open(self.dir.path(), options()).unwrap();
        assert_eq!(recovery.unclean, !closed);
        assert_eq!(recovery.stray_blocks, !closed || stray);
        assert!(recovery.lost.is_empty() && !recovery.power_loss);
        self.model.pending.clear();
        self.table = Some(table);
    }

    fn check(&mut self) {
        let mut sums = BTreeMap::from([("mapped", 0), ("dirty", 0)]);
        for file in 0..FILES {
            let segments = self.segments(file, ByteRange::new(0, FILE_BYTES));
            let mut shown: Vec<Byte> = Vec::new();
            for segment in &segments {
                let byte = segment.extent.map(|e| (e.placement.group, e.dirty));
                shown.extend(vec![byte; usize::try_from(segment.range.len()).unwrap()]);
            }
            assert_eq!(shown, self.model.of(file, ByteRange::new(0, FILE_BYTES)));
            *sums.get_mut("mapped").unwrap() += shown.iter().flatten().count() as u64;
            *sums.get_mut("dirty").unwrap() +=
                shown.iter().flatten().filter(|byte| byte.1).count() as u64;
        }
        let usage = self.table().usage();
        assert_eq!(usage.mapped, sums["mapped"]);
        assert_eq!(usage.dirty, sums["dirty"]);
        assert_eq!(usage.used, self.model.used(), "I5 against brute force");
        assert!(usage.used <= LIMIT, "I5");
        let dirty_files = self.table().dirty_files();
        let expected: Vec<FileId> = (0..FILES)
            .filter(|&f| !self.table().dirty(self.id(f), ByteRange::new(0, u64::MAX), 1).is_empty())
            .map(|f| self.id(f))
            .collect();
        assert_eq!(dirty_files.iter().map(|(file, _)| *file).collect::<Vec<_>>(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn i5_the_table_is_its_model(ops in proptest::collection::vec(op(), 1..60)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.apply(op);
            pair.check();
        }
    }
}
