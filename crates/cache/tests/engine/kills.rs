//! `kill -9` at every device call of a story: a process of its own runs it and kills itself before
//! or after the nth call; what it had acknowledged by then is there at the next opening, what was
//! under way is there or not, byte by byte, and the origin ends up with the same (I4, I7).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_api::config::{Config, VolumeKind, VolumeShape};
use halocline_api::control::Controlled;
use halocline_cache::Decorations;
use halocline_cache::ExtentEngine;
use halocline_model::request::ByteRange;
use halocline_storage::device::{Device, ServerFile, Space};
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{BY, Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
/// Tells the child where to work and when to die.
const ORDERS: &str = "HALOCLINE_TEST_KILL";

/// A device that kills the process before or after its nth call, counted over both sides.
#[derive(Debug)]
struct KillingDevice {
    below: Arc<dyn Device>,
    calls: Arc<AtomicU64>,
    nth: u64,
    after: bool,
}

impl KillingDevice {
    fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        let due = self.calls.fetch_add(1, Ordering::Relaxed) == self.nth;
        let done = (!due || self.after).then(call);
        if due {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
        done.expect("nobody lives on")
    }
}

impl Device for KillingDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.run(|| self.below.read_at(file, offset, bufs))
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.run(|| self.below.write_at(file, offset, bufs))
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.run(|| self.below.allocate(file, range, how))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.run(|| self.below.truncate(file, len))
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.run(|| self.below.sync(file, data_only))
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(&'static str, u64, u64, u8),
    Truncate(&'static str, u64),
    Punch(&'static str, u64, u64),
    Rename(&'static str, &'static str, u32),
    Unlink(&'static str),
    Fsync(&'static str),
    Flush,
    Evict(&'static str),
    Fetch(&'static str),
}

use Step::{Evict, Fetch, Flush, Fsync, Punch, Rename, Truncate, Unlink};

const STORY: &[Step] = &[
    Step::Write("a", 0, 48 * KIB, 1),
    Step::Write("b", 3 * KIB, 20 * KIB, 2),
    Flush,
    Step::Write("a", 5 * KIB + 3, 9 * KIB, 3),
    Fsync("a"),
    Step::Write("a", 6 * KIB, 2 * KIB, 4),
    Rename("b", "c", 0),
    Step::Write("c", 0, 8 * KIB, 5),
    Punch("a", 4 * KIB, 6 * KIB),
    Truncate("a", 30 * KIB),
    Truncate("a", 40 * KIB),
    Step::Write("d", 0, 90 * KIB, 6),
    Rename("a", "c", libc::RENAME_EXCHANGE),
    Flush,
    Evict("c"),
    Fetch("c"),
    Step::Write("c", 10 * KIB, 12 * KIB, 7),
    Rename("c", "d", 0),
    Step::Write("e", 0, KIB, 8),
    Unlink("e"),
    Flush,
];

/// On a striped origin: truncates below bytes that the cache has, clean and dirty, and growth behind them in each way.
const STRIPED_STORY: &[Step] = &[
    Step::Write("a", 0, 48 * KIB, 1),
    Flush,
    Truncate("a", 9 * KIB + 5),
    Step::Write("a", 44 * KIB, 4 * KIB, 2),
    Flush,
    Step::Write("a", 10 * KIB, 30 * KIB, 3),
    Truncate("a", 21 * KIB),
    Truncate("a", 50 * KIB),
    Flush,
    Evict("a"),
    Fetch("a"),
    Step::Write("a", 0, 3 * KIB, 4),
    Truncate("a", KIB),
    Punch("a", 0, 512),
    Step::Write("a", 20 * KIB, 20 * KIB, 5),
    Flush,
    Truncate("a", 0),
    Step::Write("a", 30 * KIB, KIB, 6),
];

/// A story, with the origin that it is told on.
#[derive(Clone, Copy)]
struct Told {
    story: &'static [Step],
    servers: u32,
}

const PLAIN: Told = Told { story: STORY, servers: 0 };
const STRIPED: Told = Told { story: STRIPED_STORY, servers: 3 };

impl Told {
    fn config(self) -> Config {
        let still = still(120 * KIB, "always");
        let shape =
            VolumeShape { kind: VolumeKind::Striped, servers: self.servers, stripe: 4 * KIB };
        let origin = if self.servers > 0 { shape } else { still.origin };
        Config { origin, ..still }
    }
}

type Files = BTreeMap<&'static str, Vec<u8>>;

/// The files after a step.
fn after(files: &Files, step: Step) -> Files {
    let mut files = files.clone();
    match step {
        Step::Write(name, offset, len, seed) => {
            let file = files.entry(name).or_default();
            file.resize(file.len().max(at(offset + len)), 0);
            file[at(offset)..at(offset + len)].copy_from_slice(&pattern(seed, offset, len));
        }
        Truncate(name, size) => files.get_mut(name).unwrap().resize(at(size), 0),
        Punch(name, offset, len) => {
            files.get_mut(name).unwrap()[at(offset)..at(offset + len)].fill(0);
        }
        Rename(from, to, flags) => {
            let moved = files.remove(from).unwrap();
            let before = files.insert(to, moved);
            if flags & libc::RENAME_EXCHANGE != 0 {
                files.insert(from, before.unwrap());
            }
        }
        Unlink(name) => drop(files.remove(name)),
        Fsync(_) | Flush | Evict(_) | Fetch(_) => {}
    }
    files
}

fn make(engine: &ExtentEngine, step: Step) {
    let root = engine.root();
    let mut silent = |_| ControlFlow::Continue(());
    let open = |name: &str| {
        if let Ok((vnode, _)) = engine.lookup(&root, OsStr::new(name)) {
            return engine.open(&vnode, libc::O_RDWR, ME).unwrap();
        }
        let flags = libc::O_RDWR | libc::O_CREAT;
        engine.create((&root, OsStr::new(name)), 0o644, flags, BY).unwrap().2
    };
    match step {
        Step::Write(name, offset, len, seed) => {
            engine.write(&open(name), offset, &pattern(seed, offset, len), ME).unwrap();
        }
        Truncate(name, size) => {
            let vnode = engine.lookup(&root, OsStr::new(name)).unwrap().0;
            let change = SetAttr { size: Some(size), ..SetAttr::default() };
            engine.set_attr(&vnode, None, &change, ME).unwrap();
        }
        Punch(name, offset, len) => {
            engine.allocate(&open(name), offset, len, Allocate::PunchHole).unwrap();
        }
        Rename(from, to, flags) => {
            engine.rename((&root, OsStr::new(from)), (&root, OsStr::new(to)), flags, ME).unwrap();
        }
        Unlink(name) => engine.unlink(&root, OsStr::new(name), ME).unwrap(),
        Fsync(name) => engine.fsync(&open(name), false).unwrap(),
        Flush => drop(Controlled::flush(engine, None, false, &mut silent).unwrap()),
        Evict(name) => drop(engine.evict(Path::new(name), false, &mut silent).unwrap()),
        Fetch(name) => {
            engine.read(&open(name), 0, &mut vec![0; at(100 * KIB)], ME).unwrap();
            engine.fetch_wanted().unwrap();
        }
    }
}

#[test]
#[ignore = "run by i4_a_kill_at_any_device_call_loses_nothing_acknowledged"]
fn child() {
    let orders = std::env::var(ORDERS).expect("the parent gives orders");
    let [origin, cache, ledger, nth, after, kind] =
        orders.split(':').collect::<Vec<_>>().try_into().unwrap();
    let (nth, after) = (nth.parse().unwrap(), after == "after");
    let told = if kind == "striped" { STRIPED } else { PLAIN };
    let calls = Arc::new(AtomicU64::new(0));
    let killing = |_: usize, below| -> Arc<dyn Device> {
        Arc::new(KillingDevice { below, calls: Arc::clone(&calls), nth, after })
    };
    let data_bytes = Some(120 * KIB - 960);
    let around = Decorations { origin: &killing, cache: &killing, data_bytes, ..Decorations::NONE };
    let (origin, cache) = (Path::new(origin), Path::new(cache));
    let engine = ExtentEngine::open_decorated(origin, cache, &told.config(), around).unwrap();
    let mut ledger = File::options().append(true).open(ledger).unwrap();
    for step in told.story {
        make(&engine, *step);
        ledger.write_all(b".").unwrap();
    }
}

/// Runs the story until it is killed; `false` when it ended first.
fn attack(told: Told, nth: u64, when: &str) -> bool {
    let mut fixture = match told.servers {
        0 => Fixture::in_memory(told.config()),
        _ => Fixture::new(told.config()),
    };
    fixture.close();
    let scratch = tempfile::tempdir().unwrap();
    let ledger = scratch.path().join("ledger");
    fs::write(&ledger, "").unwrap();
    let (origin, cache) = (fixture.origin.path().display(), fixture.cache.path().display());
    let kind = if told.servers > 0 { "striped" } else { "plain" };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--ignored"])
        .env(ORDERS, format!("{origin}:{cache}:{}:{nth}:{when}:{kind}", ledger.display()))
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(libc::SIGKILL);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(killed || output.status.success(), "{when} call {nth}: {said}");

    let acknowledged = fs::read(&ledger).unwrap().len();
    let before =
        told.story[..acknowledged].iter().fold(Files::new(), |files, step| after(&files, *step));
    let under_way = told.story.get(acknowledged).copied();
    let next = under_way.map_or_else(|| before.clone(), |step| after(&before, step));
    let what = format!("killed {when} call {nth} in step {acknowledged}, {under_way:?}");
    fixture.open();
    let found = look(&fixture, (&before, &next), under_way, &what);
    fixture.close();
    if told.servers > 0 {
        check_alone(&mut fixture, &found, &what);
        return killed;
    }
    for (name, bytes) in found {
        let on_origin = fs::read(fixture.origin.path().join(name)).unwrap();
        assert!(on_origin == bytes, "I7: {name} on the origin, {what}");
    }
    killed
}

/// The origin has the same without the cache that it was under, whose clean bytes might hide what it lacks, and zeros where the
/// files grow.
fn check_alone(fixture: &mut Fixture, found: &Files, what: &str) {
    fixture.with_cache(tempfile::tempdir().unwrap());
    fixture.open();
    for (name, bytes) in found {
        assert!(fixture.read(name, 0, bytes.len()) == *bytes, "I7: {name} on the origin, {what}");
        let mut grown = bytes.clone();
        grown.resize(at(70 * KIB), 0);
        fixture.truncate(name, 70 * KIB);
        assert!(fixture.read(name, 0, grown.len()) == grown, "I1: {name} grown, {what}");
    }
    fixture.close();
}

/// Every file is as before the step under way or as after it, byte by byte.
fn look(
    fixture: &Fixture,
    (before, next): (&Files, &Files),
    under_way: Option<Step>,
    what: &str,
) -> Files {
    let mut found = Files::new();
    for name in ["a", "b", "c", "d", "e"] {
        let (old, new) = (before.get(name), next.get(name));
        if !fixture.exists(name) {
            assert!(old.is_none() || new.is_none(), "I4: {name} is gone, {what}");
            continue;
        }
        let len = at(fixture.size(name));
        let bytes = fixture.read(name, 0, len);
        // A file that the step under way was creating may be there, still empty.
        let known = [old, new].into_iter().flatten().any(|file| file.len() == len);
        assert!(known || (old.is_none() && len == 0), "I4: {name} has {len} bytes, {what}");
        if let Some(Truncate(..)) = under_way {
            let is_whole = [old, new].into_iter().flatten().any(|file| *file == bytes);
            assert!(is_whole, "I4: {name} has half a truncate, {what}");
        }
        let wrong = (0..len).find(|&byte| {
            let value = Some(&bytes[byte]);
            let grown = old.is_none_or(|old| byte >= old.len()) && bytes[byte] == 0;
            value != old.and_then(|old| old.get(byte))
                && value != new.and_then(|new| new.get(byte))
                && !grown
        });
        assert!(wrong.is_none(), "I4: {name} at {wrong:?}, {what}");
        found.insert(name, bytes);
    }
    found
}

#[test]
fn i4_a_kill_at_any_device_call_loses_nothing_acknowledged() {
    for when in ["before", "after"] {
        let calls = (0..1000).take_while(|&nth| attack(PLAIN, nth, when)).count();
        assert!((30..1000).contains(&calls), "the story makes {calls} device calls");
    }
}

/// Regression: the servers of a striped origin were cut before the file was shorter, so a kill in between left it long, with
/// zeros on one server, under clean bytes of the cache that hid them until these were dropped.
#[test]
fn i4_a_kill_at_any_device_call_over_a_striped_origin_leaves_no_half_truncate() {
    for when in ["before", "after"] {
        let calls = (0..1000).take_while(|&nth| attack(STRIPED, nth, when)).count();
        assert!((30..1000).contains(&calls), "the story makes {calls} device calls");
    }
}
