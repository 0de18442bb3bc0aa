//! The extent engine against plain byte arrays: random operations with reopen and crash between
//! them; contents, sizes and limits are compared after each (I1, I2, I3, I4, I5, I7).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, ME, still};
use halocline_api::config::{EmulatedDevice, EmulatedHdd, Mode};
use halocline_api::control::Controlled;
use halocline_vfs::Allocate;
use halocline_vfs::Engine;
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const LENGTH_MAX: u64 = 256 << 10;
pub(crate) const LIMIT: u64 = 160 << 10;

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write { name: usize, offset: u64, len: u64, seed: u8 },
    Read { name: usize, offset: u64, len: u64 },
    Truncate { name: usize, size: u64 },
    Punch { name: usize, offset: u64, len: u64 },
    Unlink { name: usize },
    Rename { from: usize, to: usize },
    Flush,
    Evict { name: usize },
    Warm { name: usize },
    Fetch,
    Fsync { name: usize },
    Close,
    CloseDirty,
    Crash,
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES.len();
    let offset = prop_oneof![0..LENGTH_MAX, (0..64u64).prop_map(|block| block * 4096)];
    let len = prop_oneof![1..64u64, 1..40_000u64, Just(4096), Just(8192)];
    prop_oneof![
        10 => (name.clone(), offset.clone(), len.clone(), any::<u8>())
            .prop_map(|(name, offset, len, seed)| Op::Write { name, offset, len, seed }),
        4 => (name.clone(), offset.clone(), len.clone())
            .prop_map(|(name, offset, len)| Op::Read { name, offset, len }),
        2 => (name.clone(), 0..LENGTH_MAX).prop_map(|(name, size)| Op::Truncate { name, size }),
        2 => (name.clone(), offset, len)
            .prop_map(|(name, offset, len)| Op::Punch { name, offset, len }),
        1 => name.clone().prop_map(|name| Op::Unlink { name }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename { from, to }),
        2 => Just(Op::Flush),
        1 => name.clone().prop_map(|name| Op::Evict { name }),
        1 => name.clone().prop_map(|name| Op::Warm { name }),
        1 => Just(Op::Fetch),
        1 => name.prop_map(|name| Op::Fsync { name }),
        1 => Just(Op::Close),
        1 => Just(Op::CloseDirty),
        1 => Just(Op::Crash),
    ]
}

fn pattern(seed: u8, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len)
        .map(|at| u8::try_from((at * 31 + u64::from(seed) * 7 + 1) % 251).unwrap())
        .collect()
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

struct Run {
    fixture: Fixture,
    truth: BTreeMap<&'static str, Vec<u8>>,
}

impl Run {
    fn apply(&mut self, op: &Op) {
        let fixture = &mut self.fixture;
        match *op {
            Op::Write { name, offset, len, seed } => {
                let data = pattern(seed, offset, len);
                fixture.write(NAMES[name], offset, &data);
                let file = self.truth.entry(NAMES[name]).or_default();
                file.resize(file.len().max(at(offset + len)), 0);
                file[at(offset)..at(offset + len)].copy_from_slice(&data);
            }
            Op::Read { name, offset, len } => {
                if let Some(file) = self.truth.get(NAMES[name]) {
                    let end = file.len().min(at(offset + len));
                    let want = file.get(at(offset)..end).unwrap_or_default();
                    assert_eq!(fixture.read(NAMES[name], offset, at(len)), want, "I1: {op:?}");
                }
            }
            Op::Truncate { name, size } => {
                if let Some(file) = self.truth.get_mut(NAMES[name]) {
                    fixture.truncate(NAMES[name], size);
                    file.resize(at(size), 0);
                }
            }
            Op::Punch { name, offset, len } => {
                if let Some(file) = self.truth.get_mut(NAMES[name]) {
                    let handle = fixture.handle(NAMES[name]);
                    fixture.engine().allocate(&handle, offset, len, Allocate::PunchHole).unwrap();
                    let end = file.len().min(at(offset + len));
                    if let Some(hole) = file.get_mut(at(offset)..end) {
                        hole.fill(0);
                    }
                }
            }
            _ => self.apply_whole(op),
        }
        self.compare(op);
    }

    /// Operations on whole files and on the engine.
    fn apply_whole(&mut self, op: &Op) {
        let fixture = &mut self.fixture;
        match *op {
            Op::Unlink { name } => {
                if self.truth.remove(NAMES[name]).is_some() {
                    let engine = fixture.engine();
                    engine.unlink(&engine.root(), OsStr::new(NAMES[name]), ME).unwrap();
                }
            }
            Op::Rename { from, to } => {
                if from != to
                    && let Some(file) = self.truth.remove(NAMES[from])
                {
                    let engine = fixture.engine();
                    let root = engine.root();
                    let name = |index: usize| (&root, OsStr::new(NAMES[index]));
                    engine.rename(name(from), name(to), 0, ME).unwrap();
                    self.truth.insert(NAMES[to], file);
                }
            }
            Op::Flush => {
                fixture.flush();
                assert_eq!(
                    fixture.engine().status().dirty_bytes,
                    0,
                    "I7: all dirty bytes are on the origin"
                );
                self.compare_origin();
            }
            Op::Evict { name } if self.truth.contains_key(NAMES[name]) => {
                fixture.evict(NAMES[name]);
            }
            Op::Warm { name } if self.truth.contains_key(NAMES[name]) => {
                fixture.warm(NAMES[name]);
            }
            Op::Fsync { name } if self.truth.contains_key(NAMES[name]) => {
                fixture.engine().fsync(&fixture.handle(NAMES[name]), false).unwrap();
            }
            Op::Evict { .. } | Op::Warm { .. } | Op::Fsync { .. } => {}
            Op::Fetch => {
                fixture.engine().fetch_wanted().unwrap();
            }
            Op::Close => {
                fixture.close();
                self.compare_origin();
                self.fixture.open();
            }
            Op::CloseDirty => {
                fixture.close_dirty();
                fixture.open();
            }
            Op::Crash => {
                fixture.crash();
                fixture.open();
            }
            Op::Write { .. } | Op::Read { .. } | Op::Truncate { .. } | Op::Punch { .. } => {
                unreachable!("these change bytes: apply does them")
            }
        }
    }

    fn compare(&self, op: &Op) {
        for name in NAMES {
            let Some(file) = self.truth.get(name) else {
                assert!(!self.fixture.exists(name), "{name} is gone after {op:?}");
                continue;
            };
            assert_eq!(self.fixture.size(name), file.len() as u64, "size of {name} after {op:?}");
            let read = self.fixture.read(name, 0, file.len() + 10);
            let wrong = read.iter().zip(file).position(|(got, want)| got != want);
            assert!(
                read.len() == file.len() && wrong.is_none(),
                "I1: {name} at {wrong:?} after {op:?}"
            );
        }
        let status = self.fixture.engine().status();
        assert!(status.used_bytes <= LIMIT, "I5: {} bytes after {op:?}", status.used_bytes);
        // The file system's own index of a sparse object is not data block: at this size it is one
        // block for each of the three objects at most. `sides::limit_bytes` sets room aside for it.
        let blocks = self.fixture.cache_blocks();
        assert!(blocks <= LIMIT + 3 * 4096, "I5: {blocks} bytes on disk after {op:?}");
    }

    /// I7: the origin alone holds everything.
    fn compare_origin(&self) {
        for (name, file) in &self.truth {
            let path = self.fixture.origin.path().join(name);
            assert!(std::fs::read(path).unwrap() == *file, "I7: {name} on the origin");
        }
    }
}

fn run(mode: Mode, policy: &str, ops: &[Op]) {
    let mut config = still(LIMIT, policy);
    config.mode = mode;
    run_on(Fixture::new(config), ops);
}

/// Makes `ops` and compares after each; panics where something differs.
pub(crate) fn run_on(fixture: Fixture, ops: &[Op]) {
    let mut run = Run { fixture, truth: BTreeMap::new() };
    for op in ops {
        run.apply(op);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn write_back_equals_byte_arrays(ops in prop::collection::vec(op(), 1..60)) {
        run(Mode::WriteBack, "always", &ops);
    }

    #[test]
    fn write_through_equals_byte_arrays(ops in prop::collection::vec(op(), 1..40)) {
        run(Mode::WriteThrough, "always", &ops);
    }

    #[test]
    fn read_only_equals_byte_arrays(ops in prop::collection::vec(op(), 1..40)) {
        run(Mode::ReadOnly, "always", &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// The whole engine on emulated devices, without their waiting and without files of the cache.
    #[test]
    fn simulated_devices_equal_byte_arrays(ops in prop::collection::vec(op(), 1..60)) {
        let fixture = Fixture::simulated(still(LIMIT, "always"), "hdd+4xssd");
        run_on(fixture, &ops);
    }
}

/// Minutes of an emulated disk take no minutes, on whatever machine: a hundred writes that seek for seconds.
#[test]
fn simulated_devices_take_their_time_and_no_real_time() {
    const SEEK: Duration = Duration::from_secs(3);
    let mut fixture = Fixture::simulated(still(64 << 20, "never"), "hdd+ssd");
    fixture.close();
    let seek_ms = 1000.0 * SEEK.as_secs_f64();
    let slow = EmulatedHdd { seek_ms_min: seek_ms, seek_ms_max: seek_ms, ..EmulatedHdd::default() };
    fixture.config.emulate.as_mut().unwrap().origin.device = EmulatedDevice::Hdd(slow);
    fixture.open();
    let (clock, real) = (fixture.clock.clone(), Instant::now());
    let begun = clock.instant();
    let handle = fixture.handle("a");
    for at in 0..100 {
        let offset = (at * 79 % 100) << 20;
        fixture.engine().write(&handle, offset, &[1; 4096], ME).unwrap();
    }
    let simulated = clock.elapsed(begun);
    assert!(simulated >= 99 * SEEK, "{simulated:?}");
    assert!(real.elapsed() < simulated, "{:?} for {simulated:?}", real.elapsed());
}
