//! Power losses under the whole engine: blocks that no sync covered are old or new in any choice,
//! and so are the sectors of the records' log behind its last sync. What was fsynced is there (I4); what
//! was not is something that was written since; the loss is listed (I6); and all of it is so
//! again after the next crash.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use halocline_vfs::Allocate;
use halocline_vfs::Engine;
use proptest::prelude::*;

use crate::fixture::{Fixture, still};
use crate::truth::{at, pattern};
use crate::volatile::Pages;

const NAMES: [&str; 2] = ["a", "b"];
const LENGTH_MAX: u64 = 96 << 10;
/// Bytes of a file of the log before its first change.
const HEAD: usize = 64;

#[derive(Debug, Clone)]
enum Op {
    Write { name: usize, offset: u64, len: u64, seed: u8 },
    Truncate { name: usize, size: u64 },
    Punch { name: usize, offset: u64, len: u64 },
    Fsync { name: usize },
    Flush,
    Evict { name: usize },
    Fetch { name: usize },
    PowerLoss { choice: u64 },
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES.len();
    let offset = || prop_oneof![0..LENGTH_MAX, (0..24u64).prop_map(|block| block * 4096)];
    let len = || prop_oneof![1..64u64, 1..20_000u64, Just(4096)];
    prop_oneof![
        10 => (name(), offset(), len(), any::<u8>())
            .prop_map(|(name, offset, len, seed)| Op::Write { name, offset, len, seed }),
        2 => (name(), 0..LENGTH_MAX).prop_map(|(name, size)| Op::Truncate { name, size }),
        1 => (name(), offset(), len())
            .prop_map(|(name, offset, len)| Op::Punch { name, offset, len }),
        3 => name().prop_map(|name| Op::Fsync { name }),
        3 => Just(Op::Flush),
        1 => name().prop_map(|name| Op::Evict { name }),
        2 => name().prop_map(|name| Op::Fetch { name }),
        3 => any::<u64>().prop_map(|choice| Op::PowerLoss { choice }),
        1 => Just(Op::Kill),
    ]
}

/// A file: what it holds now, and what each byte and its length have been since its last fsync.
#[derive(Debug, Default)]
struct Contents {
    now: Vec<u8>,
    since: BTreeMap<usize, BTreeSet<u8>>,
    lengths: BTreeSet<usize>,
}

impl Contents {
    fn change(&mut self, offset: usize, data: &[u8]) {
        self.grow(offset + data.len());
        for (byte, value) in (offset..).zip(data) {
            let since = self.since.entry(byte).or_default();
            since.extend([self.now[byte], *value]);
            self.now[byte] = *value;
        }
    }

    fn grow(&mut self, len: usize) {
        if len > self.now.len() {
            self.resize(len);
        }
    }

    fn resize(&mut self, len: usize) {
        self.lengths.extend([self.now.len(), len]);
        for byte in len..self.now.len() {
            self.since.entry(byte).or_default().extend([self.now[byte], 0]);
        }
        for byte in self.now.len()..len {
            self.since.entry(byte).or_default().insert(0);
        }
        self.now.resize(len, 0);
    }

    fn fsynced(&mut self) {
        self.since.clear();
        self.lengths.clear();
    }
}

struct Run {
    fixture: Fixture,
    pages: Arc<Pages>,
    files: [Contents; 2],
    boots: u64,
    /// The log as it was synced at least.
    synced: BTreeMap<PathBuf, Vec<u8>>,
}

impl Run {
    fn new() -> Self {
        let mut fixture = Fixture::in_memory(still(160 << 10, "always"));
        let pages = Arc::new(Pages::default());
        fixture.crash();
        fixture.volatile = Some(Arc::clone(&pages));
        fixture.boot_id = Some("boot-0".to_owned());
        fixture.open();
        let files = Default::default();
        let mut run = Self { fixture, pages, files, boots: 0, synced: BTreeMap::new() };
        run.opened();
        for (name, file) in NAMES.iter().zip(&mut run.files) {
            run.fixture.write(name, 0, &[9]);
            file.change(0, &[9]);
        }
        run.synced = run.log();
        run
    }

    fn apply(&mut self, op: &Op) {
        let (fixture, files) = (&mut self.fixture, &mut self.files);
        match *op {
            Op::Write { name, offset, len, seed } => {
                let data = pattern(seed, offset, len);
                fixture.write(NAMES[name], offset, &data);
                files[name].change(at(offset), &data);
            }
            Op::Truncate { name, size } => {
                fixture.truncate(NAMES[name], size);
                files[name].resize(at(size));
            }
            Op::Punch { name, offset, len } => {
                let handle = fixture.handle(NAMES[name]);
                fixture.engine().allocate(&handle, offset, len, Allocate::PunchHole).unwrap();
                let end = files[name].now.len().min(at(offset + len));
                if at(offset) < end {
                    files[name].change(at(offset), &vec![0; end - at(offset)]);
                }
            }
            Op::Fsync { name } => {
                let handle = fixture.handle(NAMES[name]);
                fixture.engine().fsync(&handle, false).unwrap();
                files[name].fsynced();
                self.synced = self.log();
            }
            Op::Flush => {
                fixture.flush();
                self.synced = self.log();
            }
            Op::Evict { name } => {
                fixture.evict(NAMES[name]);
                self.synced = self.log();
            }
            Op::Fetch { name } => {
                fixture.read(NAMES[name], 0, at(LENGTH_MAX));
                fixture.engine().fetch_wanted().unwrap();
            }
            Op::PowerLoss { choice } => self.lose_power(choice),
            Op::Kill => {
                fixture.crash();
                fixture.open();
                self.opened();
            }
        }
        self.compare(op);
    }

    fn lose_power(&mut self, choice: u64) {
        let mut random = choice;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 33
        };
        let kept = next();
        self.fixture.crash();
        // All, some, or none.
        self.age_log(|| match kept % 3 {
            0 => next() % 2 == 0,
            which => which == 1,
        });
        self.boot(|| next() % 2 == 0);
    }

    /// All records reach the disk, nothing else does that was not synced.
    fn lose_data(&mut self) {
        self.fixture.crash();
        self.boot(|| false);
    }

    /// What the devices have not synced is kept as `keeps` says.
    fn boot(&mut self, keeps: impl FnMut() -> bool) {
        self.pages.lose(keeps);
        self.boots += 1;
        self.fixture.boot_id = Some(format!("boot-{}", self.boots));
        self.fixture.open();
        self.settle();
        self.opened();
    }

    /// An opening syncs the store.
    fn opened(&mut self) {
        self.synced = self.log();
    }

    /// The files of the log.
    fn log(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let dir = std::fs::read_dir(self.fixture.cache.path().join("meta")).unwrap();
        let files = dir.map(|entry| entry.unwrap().path());
        let is_log =
            |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"log-");
        files.filter(is_log).map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    }

    /// Sectors of the log that were written since the last sync reach the disk as `keeps` says.
    fn age_log(&self, mut keeps: impl FnMut() -> bool) {
        for (path, now) in self.log() {
            // A file is made durable with its head before there is a change in it.
            let mut old = self.synced.get(&path).cloned().unwrap_or_else(|| now[..HEAD].to_vec());
            old.resize(now.len(), 0);
            let file = File::options().write(true).open(path).unwrap();
            for (at, (now, old)) in (0..).step_by(512).zip(now.chunks(512).zip(old.chunks(512))) {
                if now != old && !keeps() {
                    file.write_all_at(old, at).unwrap();
                }
            }
        }
    }

    /// After a power loss each byte is what it was at some time since the file's last fsync, and
    /// stays that.
    fn settle(&mut self) {
        for (name, file) in NAMES.iter().zip(&mut self.files) {
            let len = at(self.fixture.size(name));
            assert!(
                len == file.now.len() || file.lengths.contains(&len),
                "I4: {name} has {len} bytes, not {} or one of {:?}",
                file.now.len(),
                file.lengths
            );
            let found = self.fixture.read(name, 0, len);
            assert_eq!(found.len(), len, "bytes of {name}");
            for (byte, value) in found.iter().enumerate() {
                let right = file.now.get(byte) == Some(value)
                    || file.since.get(&byte).is_some_and(|since| since.contains(value));
                assert!(right, "I4: byte {byte} of {name} is {value}: nobody wrote that");
            }
            *file = Contents { now: found, ..Contents::default() };
        }
    }

    fn compare(&self, op: &Op) {
        for (name, file) in NAMES.iter().zip(&self.files) {
            let found = self.fixture.read(name, 0, file.now.len() + 10);
            let wrong = found.iter().zip(&file.now).position(|(got, want)| got != want);
            assert!(
                found.len() == file.now.len() && wrong.is_none(),
                "I1: {name} at {wrong:?} after {op:?}"
            );
        }
    }
}

/// Fsyncs some bytes and takes the power away, all that was not synced with it; panics if an
/// fsynced byte is gone. `prepare` is done to the engine first.
pub(crate) fn fsync_and_lose(prepare: impl FnOnce(&Fixture)) {
    let mut run = Run::new();
    prepare(&run.fixture);
    for op in [Op::Write { name: 0, offset: 0, len: 20_000, seed: 1 }, Op::Fsync { name: 0 }] {
        run.apply(&op);
    }
    run.lose_data();
}

/// The record that bytes are unmapped reaches the disk, what replaced them on the origin does not:
/// the fsynced bytes must not be gone with both.
#[test]
fn i4_what_replaces_fsynced_bytes_is_durable_before_they_are_forgotten() {
    let write = |seed| Op::Write { name: 0, offset: 0, len: 20_000, seed };
    for change in
        [Op::Truncate { name: 0, size: 5_000 }, Op::Punch { name: 0, offset: 3_000, len: 9_000 }]
    {
        let mut run = Run::new();
        for op in [write(1), Op::Flush, write(2), Op::Fsync { name: 0 }, change] {
            run.apply(&op);
        }
        run.lose_data();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn i4_what_was_fsynced_survives_power_loss(ops in prop::collection::vec(op(), 1..50)) {
        let mut run = Run::new();
        for op in &ops {
            run.apply(op);
        }
        run.lose_power(7);
    }
}
