//! Two requests on one file in every order that device calls can separate: the first is held
//! before or after each of its device calls on either side while the second runs as far as it
//! gets. What both leave is what one order of the two would leave (I1, I2, I3), on the origin too (I7),
//! and after a kill (I4).

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use halocline_api::control::{Controlled, Side};
use halocline_cache::ExtentEngine;
use halocline_storage::device::fault::{Effect, Faults, When};
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
/// A request that takes this long waits for the other one, or for ever.
const FOR_EVER: Duration = Duration::from_mins(5);
/// How long the second request gets while the first is held: it may have to wait for it.
const HEAD_START: Duration = Duration::from_millis(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// Over clean, dirty and missing bytes.
    Write,
    /// Over everything and beyond the end.
    WriteAll,
    Shrink,
    Grow,
    Punch,
    Read,
    Fsync,
    Flush,
    Evict,
    Fetch,
    Unlink,
    Rename,
}

use Request::{
    Evict, Fetch, Flush, Fsync, Grow, Punch, Read, Rename, Shrink, Unlink, Write, WriteAll,
};

const FIRST: [Request; 9] = [Write, WriteAll, Shrink, Grow, Punch, Flush, Evict, Fetch, Read];
const SECOND: [Request; 12] =
    [Write, WriteAll, Shrink, Grow, Punch, Read, Fsync, Flush, Evict, Fetch, Unlink, Rename];

/// What there is of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    name: Option<&'static str>,
    bytes: Vec<u8>,
}

impl State {
    /// After `request`, made by the first or the second.
    fn after(&self, request: Request, seed: u8) -> Self {
        let mut next = self.clone();
        match request {
            Write => next.write(5 * KIB + 100, 40 * KIB, seed),
            WriteAll => next.write(0, 70 * KIB, seed),
            Shrink => next.bytes.truncate(at(10 * KIB)),
            Grow => next.bytes.resize(at(90 * KIB), 0),
            Punch => {
                let end = next.bytes.len().min(at(30 * KIB));
                next.bytes[at(6 * KIB)..end].fill(0);
            }
            Unlink => next.name = None,
            Rename => next.name = next.name.map(|_| "renamed"),
            Read | Fsync | Flush | Evict | Fetch => {}
        }
        next
    }

    fn write(&mut self, offset: u64, len: u64, seed: u8) {
        let end = at(offset + len);
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[at(offset)..end].copy_from_slice(&pattern(seed, offset, len));
    }
}

type Handle = Arc<<ExtentEngine as Engine>::Handle>;

/// Makes a request; a read returns what it read. Names may be gone by then.
fn make(engine: &ExtentEngine, handle: &Handle, request: Request, seed: u8) -> Option<Vec<u8>> {
    let root = engine.root();
    let mut silent = |_| ControlFlow::Continue(());
    match request {
        Write => {
            let data = pattern(seed, 5 * KIB + 100, 40 * KIB);
            engine.write(handle, 5 * KIB + 100, &data, ME).unwrap();
        }
        WriteAll => engine.write(handle, 0, &pattern(seed, 0, 70 * KIB), ME).unwrap(),
        Shrink | Grow => {
            let size = if request == Shrink { 10 * KIB } else { 90 * KIB };
            let change = SetAttr { size: Some(size), ..SetAttr::default() };
            if let Ok((vnode, _)) = engine.lookup(&root, OsStr::new("file")) {
                engine.set_attr(&vnode, Some(handle), &change, ME).unwrap();
            }
        }
        Punch => {
            engine.allocate(handle, 6 * KIB, 24 * KIB, Allocate::PunchHole).unwrap();
        }
        Read => {
            let mut found = vec![0xEE; at(100 * KIB)];
            let len = engine.read(handle, 0, &mut found, ME).unwrap();
            found.truncate(len);
            return Some(found);
        }
        Fsync => engine.fsync(handle, false).unwrap(),
        Flush => drop(Controlled::flush(engine, None, false, &mut silent).unwrap()),
        Evict => drop(engine.evict(Path::new("file"), false, &mut silent)),
        Fetch => drop(engine.fetch_wanted().unwrap()),
        Unlink => engine.unlink(&root, OsStr::new("file"), ME).unwrap(),
        Rename => {
            let names = ((&root, OsStr::new("file")), (&root, OsStr::new("renamed")));
            engine.rename(names.0, names.1, 0, ME).unwrap();
        }
    }
    None
}

/// A file with clean, dirty and missing bytes, some of them wanted, in a cache that it fills.
fn begin() -> (Fixture, State) {
    let fixture = Fixture::in_memory(still(88 * KIB, "always"));
    let mut state = State { name: Some("file"), bytes: Vec::new() };
    let mut write = |offset: u64, len: u64, seed| {
        fixture.write("file", offset, &pattern(seed, offset, len));
        state.write(offset, len, seed);
    };
    write(0, 64 * KIB, 1);
    fixture.flush();
    fixture.evict("file");
    write(24 * KIB, 16 * KIB, 2);
    fixture.flush();
    write(8 * KIB, 8 * KIB, 3);
    write(9 * KIB + 5, 77, 4);
    fixture.read("file", 0, at(24 * KIB));
    (fixture, state)
}

/// Runs `first`, held at one place, and `second` meanwhile; `false` when the place was not reached.
fn race(first: Request, second: Request, side: Side, effect: Effect, nth: u64) -> bool {
    let (mut fixture, before) = begin();
    let what = format!("{first:?} {effect:?} at {side:?} call {nth}, {second:?}");
    let faults: Arc<Faults> = match side {
        Side::Origin => Arc::clone(&fixture.origin_faults),
        Side::Cache => Arc::clone(&fixture.cache_faults),
    };
    let handles: [Handle; 2] = [fixture.handle("file").into(), fixture.handle("file").into()];
    faults.set(None, effect, When::Nth(nth));
    let (send, done) = channel();
    let start = |index: usize, request, seed| {
        let (engine, handle) = (Arc::clone(fixture.engine()), Arc::clone(&handles[index]));
        let send = send.clone();
        thread::spawn(move || {
            let read = make(&engine, &handle, request, seed);
            drop((engine, handle));
            send.send(()).unwrap();
            read
        })
    };
    let one = start(0, first, 10);
    while faults.stalled() == 0 && !one.is_finished() {
        thread::yield_now();
    }
    let held = faults.stalled() > 0;
    let two = start(1, second, 20);
    let mut ended = usize::from(done.recv_timeout(HEAD_START).is_ok());
    faults.clear();
    while ended < 2 {
        match done.recv_timeout(FOR_EVER) {
            Ok(()) => ended += 1,
            Err(RecvTimeoutError::Timeout) => panic!("{what}: they wait for each other"),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let reads = [one.join().unwrap_or_else(|_| panic!("{what}")), two.join().unwrap()];
    let orders =
        [before.after(first, 10).after(second, 20), before.after(second, 20).after(first, 10)];
    for (read, other) in reads.iter().zip([before.after(second, 20), before.after(first, 10)]) {
        let right = |read: &Vec<u8>| *read == before.bytes || *read == other.bytes;
        assert!(read.as_ref().is_none_or(right), "{what}: I1: it read a mixture");
    }
    drop(handles);
    finish(&mut fixture, &orders, &what);
    held
}

/// The file is one of `orders`, now, after a kill, and on the origin alone.
fn finish(fixture: &mut Fixture, orders: &[State], what: &str) {
    let found = |fixture: &Fixture| {
        let name = ["file", "renamed"].into_iter().find(|name| fixture.exists(name));
        let size = name.map_or(0, |name| fixture.size(name));
        State { name, bytes: name.map_or_else(Vec::new, |name| fixture.read(name, 0, at(size))) }
    };
    let state = found(fixture);
    let same = |state: &State, order: &State| {
        state.name == order.name && (state.name.is_none() || state.bytes == order.bytes)
    };
    assert!(
        orders.iter().any(|order| same(&state, order)),
        "{what}: I1: neither order leaves this"
    );
    let used = fixture.engine().status().used_bytes;
    assert!(used <= 88 * KIB, "{what}: I5: {used}");
    fixture.crash();
    fixture.open();
    assert!(found(fixture) == state, "{what}: I4: a kill changed it");
    fixture.close();
    if let Some(name) = state.name {
        let on_origin = std::fs::read(fixture.origin.path().join(name)).unwrap();
        assert!(on_origin == state.bytes, "{what}: I7: the origin has something else");
    }
}

fn race_all(side: Side, effect: Effect) {
    let mut reached = 0;
    for first in FIRST {
        for second in SECOND {
            let mut nth = 0;
            while race(first, second, side, effect, nth) {
                nth += 1;
                reached += 1;
            }
        }
    }
    assert!(reached > 100, "only {reached} places were reached");
}

#[test]
fn i1_i2_i3_requests_held_before_a_call_on_the_cache() {
    race_all(Side::Cache, Effect::Stall);
}

#[test]
fn i1_i2_i3_requests_held_after_a_call_on_the_cache() {
    race_all(Side::Cache, Effect::Linger);
}

#[test]
fn i1_i2_i3_requests_held_before_a_call_on_the_origin() {
    race_all(Side::Origin, Effect::Stall);
}

#[test]
fn i1_i2_i3_requests_held_after_a_call_on_the_origin() {
    race_all(Side::Origin, Effect::Linger);
}
