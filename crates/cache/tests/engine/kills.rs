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
    let [origin, cache, ledger, nth, after] =
        orders.split(':').collect::<Vec<_>>().try_into().unwrap();
    let (nth, after) = (nth.parse().unwrap(), after == "after");
    let calls = Arc::new(AtomicU64::new(0));
    let killing = |_: usize, below| -> Arc<dyn Device> {
        Arc::new(KillingDevice { below, calls: Arc::clone(&calls), nth, after })
    };
    let data_bytes = Some(120 * KIB - 960);
    let around = Decorations { origin: &killing, cache: &killing, data_bytes, ..Decorations::NONE };
    let config = still(120 * KIB, "always");
    let engine =
        ExtentEngine::open_decorated(Path::new(origin), Path::new(cache), &config, around).unwrap();
    let mut ledger = File::options().append(true).open(ledger).unwrap();
    for step in STORY {
        make(&engine, *step);
        ledger.write_all(b".").unwrap();
    }
}

/// Runs the story until it is killed; `false` when it ended first.
fn attack(nth: u64, when: &str) -> bool {
    let mut fixture = Fixture::in_memory(still(120 * KIB, "always"));
    fixture.close();
    let scratch = tempfile::tempdir().unwrap();
    let ledger = scratch.path().join("ledger");
    fs::write(&ledger, "").unwrap();
    let (origin, cache) = (fixture.origin.path().display(), fixture.cache.path().display());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child", "--ignored"])
        .env(ORDERS, format!("{origin}:{cache}:{}:{nth}:{when}", ledger.display()))
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(libc::SIGKILL);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(killed || output.status.success(), "{when} call {nth}: {said}");

    let acknowledged = fs::read(&ledger).unwrap().len();
    let before =
        STORY[..acknowledged].iter().fold(Files::new(), |files, step| after(&files, *step));
    let under_way = STORY.get(acknowledged).copied();
    let next = under_way.map_or_else(|| before.clone(), |step| after(&before, step));
    let what = format!("killed {when} call {nth} in step {acknowledged}, {under_way:?}");
    fixture.open();
    let found = look(&fixture, &before, &next, &what);
    fixture.close();
    for (name, bytes) in found {
        let on_origin = fs::read(fixture.origin.path().join(name)).unwrap();
        assert!(on_origin == bytes, "I7: {name} on the origin, {what}");
    }
    killed
}

/// Every file is as before the step under way or as after it, byte by byte.
fn look(fixture: &Fixture, before: &Files, next: &Files, what: &str) -> Files {
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
        let calls = (0..1000).take_while(|&nth| attack(nth, when)).count();
        assert!((30..1000).contains(&calls), "the story makes {calls} device calls");
    }
}
