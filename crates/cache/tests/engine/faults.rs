//! Devices that fail under the whole engine: every kind of device call, on either side, once at
//! each place of a story or from there on. Nothing acknowledged is lost, a read is right or an
//! error, and an error only where the one copy cannot be reached (D11, I1, I3, I4, I7).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use halocline_api::config::{Config, Mode};
use halocline_api::control::{Controlled, Side};
use halocline_model::request::ByteRange;
use halocline_storage::device::fault::{Effect, Faults, Operation, When};
use halocline_vfs::Engine;

use crate::fixture::{Fixture, still};
use crate::truth::Truth;

const KIB: u64 = 1 << 10;
const SIDES: [Side; 2] = [Side::Origin, Side::Cache];
const OPERATIONS: [Operation; 5] =
    [Operation::Read, Operation::Write, Operation::Allocate, Operation::Truncate, Operation::Sync];
const EFFECTS: [Effect; 3] = [Effect::Errno(libc::EIO), Effect::Errno(libc::ENOSPC), Effect::Short];

fn faults(truth: &Truth, side: Side) -> Arc<Faults> {
    match side {
        Side::Origin => Arc::clone(&truth.fixture.origin_faults),
        Side::Cache => Arc::clone(&truth.fixture.cache_faults),
    }
}

/// A cache that is too small for the story, and is tried again at once when it failed.
fn config() -> Config {
    Config { health_retry: std::time::Duration::ZERO, ..still(160 * KIB, "always") }
}

/// Reads; an error is right only where the side that fails has the one copy.
fn read(truth: &Truth, failing: Side, name: &str, offset: u64, len: u64) {
    let Err(error) = truth.try_read(name, offset, len) else { return };
    let engine = truth.fixture.engine();
    let parts = engine.locate(Path::new(name), Some(ByteRange::at(offset, len))).unwrap();
    let excused = parts.iter().any(|part| match failing {
        Side::Cache => part.side == Side::Cache && part.dirty,
        Side::Origin => part.side == Side::Origin,
    });
    assert!(excused, "{failing:?} fails, and {name} at {offset} is on the other side: {error}");
}

/// A bit of everything. With only the cache failing, no program sees it but by reading dirty bytes
/// (D11).
fn story(truth: &mut Truth, failing: Side) {
    let flush = |truth: &Truth| {
        let engine = truth.fixture.engine();
        let mut silent = |_| std::ops::ControlFlow::Continue(());
        let _ = Controlled::flush(&**engine, None, false, &mut silent);
    };
    let check = |what: &str, done: halocline_os::error::Result<()>| {
        if failing == Side::Cache {
            done.unwrap_or_else(|error| panic!("D11: {what} with a failing cache: {error}"));
        }
    };
    check("a write", truth.try_write("a", 0, 64 * KIB, 1));
    flush(truth);
    check("a write over clean bytes", truth.try_write("a", 10 * KIB + 7, 9 * KIB, 2));
    read(truth, failing, "a", 0, 64 * KIB);
    check("a write over dirty bytes", truth.try_write("a", 12 * KIB, 3 * KIB, 3));
    read(truth, failing, "a", 8 * KIB, 16 * KIB);
    check("a write over both", truth.try_write("a", 8 * KIB, 8 * KIB, 7));
    check("a write into a hole", truth.try_write("b", 100 * KIB, 20 * KIB, 4));
    read(truth, failing, "b", 90 * KIB, 20 * KIB);
    check("a punch", truth.try_punch("a", 11 * KIB, 6 * KIB));
    check("a truncate", truth.try_truncate("a", 50 * KIB));
    check("a spilling write", truth.try_write("c", 0, 120 * KIB, 5));
    flush(truth);
    let _ = truth
        .fixture
        .engine()
        .evict(Path::new("b"), false, &mut |_| std::ops::ControlFlow::Continue(()));
    read(truth, failing, "b", 100 * KIB, 20 * KIB);
    let _ = truth.fixture.engine().fetch_wanted();
    read(truth, failing, "b", 100 * KIB, 20 * KIB);
    check("growing", truth.try_truncate("b", 130 * KIB));
    check("a last write", truth.try_write("b", 125 * KIB, 2 * KIB, 6));
    let _ = truth.fixture.engine().fsync(&truth.fixture.handle("b"), false);
    read(truth, failing, "a", 0, 50 * KIB);
}

/// One story with one fault; `false` when the fault was never due.
fn attack(mode: Mode, side: Side, operation: Operation, effect: Effect, when: When) -> bool {
    let mut truth = Truth::new(Fixture::in_memory(Config { mode, ..config() }));
    let faults = faults(&truth, side);
    faults.set(Some(operation), effect, when);
    story(&mut truth, side);
    let hit = faults.hits() > 0;
    faults.clear();
    let what = format!("after {side:?} {operation:?} {effect:?} {when:?} in {mode:?}");
    truth.compare(&what);
    truth.fixture.crash();
    truth.fixture.open();
    truth.compare(&format!("{what} and a kill"));
    truth.fixture.close();
    truth.compare_origin(&what);
    hit
}

/// Attacks every `step`th call of each kind.
fn attack_everywhere(mode: Mode, step: usize) {
    let mut hit = BTreeSet::new();
    for side in SIDES {
        for operation in OPERATIONS {
            for effect in EFFECTS {
                // Short reads are a file's end, not a fault: a device goes on by itself.
                if (operation, effect) == (Operation::Read, Effect::Short) {
                    continue;
                }
                let lasting = attack(mode, side, operation, effect, When::Always);
                for nth in (0..40).step_by(step) {
                    if !attack(mode, side, operation, effect, When::Nth(nth)) {
                        break;
                    }
                }
                if lasting {
                    hit.insert((side == Side::Cache, operation as u8));
                }
            }
        }
    }
    assert!(hit.len() >= 7, "the story reaches the devices: {hit:?}");
}

#[test]
fn i1_i3_i4_nothing_acknowledged_is_lost_whatever_fails() {
    attack_everywhere(Mode::WriteBack, 1);
}

#[test]
fn i1_write_through_loses_nothing_whatever_fails() {
    attack_everywhere(Mode::WriteThrough, 3);
}

#[test]
fn i1_read_only_loses_nothing_whatever_fails() {
    attack_everywhere(Mode::ReadOnly, 3);
}

/// The system tells a failed sync once and calls the next one a success, with the bytes gone. A
/// second fsync must not believe it: the bytes go to the origin, and the object is made anew.
#[test]
fn i4_a_sync_that_failed_once_is_never_believed() {
    let mut truth = Truth::new(Fixture::new(still(1 << 20, "always")));
    for name in ["a", "b"] {
        truth.write(name, 0, 40 * KIB, 1);
    }
    truth.fixture.flush();
    for name in ["a", "b"] {
        truth.write(name, 4 * KIB, 20 * KIB, 2);
    }
    let faults = Arc::clone(&truth.fixture.cache_faults);
    faults.set(Some(Operation::Sync), Effect::Errno(libc::EIO), When::Nth(0));
    truth.fsync("a");
    assert_eq!(faults.hits(), 1);
    let engine = truth.fixture.engine();
    let on_cache = |name: &str| {
        let parts = engine.locate(Path::new(name), None).unwrap();
        parts.iter().any(|part| part.side == Side::Cache)
    };
    let on_origin = |name: &str| std::fs::read(truth.fixture.origin.path().join(name)).unwrap();
    let moved: Vec<_> = ["a", "b"].into_iter().filter(|name| !on_cache(name)).collect();
    assert_eq!(moved.len(), 1, "the object that could not be synced is not used any more");
    assert_eq!(
        on_origin(moved[0]),
        truth.fixture.read(moved[0], 0, 40 << 10),
        "its bytes are on the origin"
    );
    truth.write(moved[0], 0, 9 * KIB, 3);
    truth.fsync(moved[0]);
    truth.compare("after the failure");
    truth.fixture.crash();
    truth.fixture.open();
    truth.compare("after a kill");
    truth.fixture.close();
    truth.compare_origin("after all");
}

/// Two flush workers write through one descriptor; the failed sync is told to one of them.
#[test]
fn i3_a_failed_sync_of_the_origin_cleans_nothing_that_was_written_before() {
    let config = Config { flush_workers: 4, ..still(64 << 20, "always") };
    let mut truth = Truth::new(Fixture::new(config));
    // Four regions, so that each worker has one.
    for region in 0..4 {
        truth.write("a", region * (8 << 20), 8 * KIB, 1);
    }
    let before = truth.dirty_bytes();
    truth.fixture.origin_faults.set(Some(Operation::Write), Effect::Stall, When::Always);
    let faults = Arc::clone(&truth.fixture.origin_faults);
    std::thread::scope(|scope| {
        scope.spawn(|| truth.fixture.flush());
        while faults.stalled() < 4 {
            std::thread::yield_now();
        }
        faults.clear_to(Some(Operation::Sync), Effect::Errno(libc::EIO), When::Nth(0));
    });
    assert_eq!(truth.dirty_bytes(), before, "I3: all of it was written before the failure");
    truth.fixture.close();
    truth.compare_origin("after a flush that worked");
}
