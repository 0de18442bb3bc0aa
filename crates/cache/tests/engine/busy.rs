//! A flush, an eviction and an unmount of files that programs use at that moment: what was dirty when they
//! began is on the origin when they end, whoever holds it meanwhile, and what stays is told with the reason.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::Controlled;
use halocline_cache::ExtentEngine;
use halocline_meta::lease::{self, Evidence};
use halocline_os::clock::Clock;
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use halocline_vfs::Engine;

use crate::fixture::{Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
const LENGTH: u64 = 64 * KIB;
/// A flush that takes this long waits for somebody.
const WAITS: Duration = Duration::from_millis(50);

/// A cache with dirty bytes of `file`.
fn dirty() -> Fixture {
    let fixture = Fixture::new(still(4 << 20, "always"));
    fixture.write("file", 0, &pattern(1, 0, LENGTH));
    fixture
}

#[test]
fn i7_a_flush_waits_for_the_request_that_holds_what_it_flushes() {
    let fixture = dirty();
    let handle = fixture.handle("file");
    fixture.cache_faults.set(Some(Operation::Write), Effect::Stall, When::Always);
    thread::scope(|scope| {
        let engine = fixture.engine();
        scope.spawn(|| engine.write(&handle, 4 * KIB, &pattern(2, 4 * KIB, KIB), ME).unwrap());
        while fixture.cache_faults.stalled() == 0 {
            thread::yield_now();
        }
        let (done, ended) = channel();
        let fixture = &fixture;
        scope.spawn(move || done.send(fixture.flush()).unwrap());
        let early = ended.recv_timeout(WAITS);
        fixture.cache_faults.clear();
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "a flush that waited for nobody");
        let report = ended.recv().unwrap();
        assert_eq!((report.left_bytes, report.skipped), (0, Vec::new()));
    });
    let on_origin = fs::read(fixture.origin.path().join("file")).unwrap();
    assert!(on_origin[..at(4 * KIB)] == pattern(1, 0, 4 * KIB), "what nobody wrote over");
    assert!(
        on_origin[at(5 * KIB)..] == pattern(1, 5 * KIB, LENGTH - 5 * KIB),
        "what nobody wrote over"
    );
    drop(handle);
}

#[test]
fn i7_a_flush_ends_while_a_program_goes_on_writing() {
    let fixture = dirty();
    let handle = fixture.handle("file");
    let (written, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                // Each one over all bytes: every flush finds what it brings to the origin changed.
                let count = written.load(Ordering::Acquire) + 1;
                let bytes = count.to_le_bytes().repeat(at(LENGTH / 8));
                fixture.engine().write(&handle, 0, &bytes, ME).unwrap();
                written.store(count, Ordering::Release);
            }
        });
        for _ in 0..40 {
            let before = written.load(Ordering::Acquire);
            let report = fixture.flush();
            if report.left_bytes > 0 || !report.skipped.is_empty() {
                ends.store(true, Ordering::Release);
                panic!("left although it could be written: {report:?}");
            }
            let on_origin = fs::read(fixture.origin.path().join("file")).unwrap();
            let count = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let oldest = on_origin.chunks_exact(8).map(count).min().unwrap();
            if oldest < before {
                ends.store(true, Ordering::Release);
                panic!("{oldest} is on the origin, {before} was written before the flush");
            }
        }
        ends.store(true, Ordering::Release);
    });
    drop(handle);
}

#[test]
fn a_flush_that_is_stopped_says_what_stays_and_why() {
    let fixture = dirty();
    let handle = fixture.handle("file");
    fixture.cache_faults.set(Some(Operation::Write), Effect::Stall, When::Always);
    thread::scope(|scope| {
        let engine = fixture.engine();
        scope.spawn(|| engine.write(&handle, 4 * KIB, &pattern(2, 4 * KIB, KIB), ME).unwrap());
        while fixture.cache_faults.stalled() == 0 {
            thread::yield_now();
        }
        let engine: &Arc<ExtentEngine> = engine;
        let report =
            Controlled::flush(&**engine, None, false, &mut |_| ControlFlow::Break(())).unwrap();
        fixture.cache_faults.clear();
        assert!(report.left_bytes > 0, "{report:?}");
        let reason = &report.skipped.first().expect("a reason").reason;
        assert!(reason.contains("stopped"), "{reason}");
    });
    drop(handle);
}

/// A flush that waited for a slow disk between its look at the lease and its write wrote after the lease had ended:
/// after a kill the next mount took that for a change by others, and kept both versions.
#[test]
fn i9_the_lease_lasts_as_long_as_a_change_takes() {
    let fixture = dirty();
    let end = || match lease::evidence(fixture.cache.path()).unwrap() {
        Evidence::Ended(until_ns) => until_ns,
        other => panic!("{other:?}"),
    };
    fixture.origin_faults.set(Some(Operation::Write), Effect::Stall, When::Always);
    thread::scope(|scope| {
        let flush = scope.spawn(|| fixture.flush());
        while fixture.origin_faults.stalled() == 0 {
            thread::yield_now();
        }
        let (first_ns, begun) = (end(), Instant::now());
        while end() < first_ns + 4_000_000_000 && begun.elapsed() < WAIT_LIMIT {
            thread::sleep(WAITS);
        }
        let last_ns = end();
        fixture.origin_faults.clear();
        assert!(last_ns >= first_ns + 4_000_000_000, "{first_ns} {last_ns}");
        assert_eq!(flush.join().unwrap().left_bytes, 0);
    });
    // The thread that renews it may have looked before the change ended.
    eventually("the end of the lease, for nothing is under way", || {
        end() < Clock::MACHINE.now_ns()
    });
}

/// An unmount that leaves dirty data synced the origin's files one after the other: with many of them it took so long
/// that it was given up.
#[test]
fn the_origin_under_dirty_data_is_synced_for_several_files_at_once() {
    let mut fixture = Fixture::new(still(4 << 20, "always"));
    for number in 0..8 {
        fixture.write(&format!("file{number}"), 0, &pattern(1, 0, 4 * KIB));
    }
    let faults = Arc::clone(&fixture.origin_faults);
    faults.set(Some(Operation::Sync), Effect::Stall, When::Always);
    let begun = Instant::now();
    thread::scope(|scope| {
        let closing = scope.spawn(|| fixture.close_dirty());
        while faults.stalled() < 8 && begun.elapsed() < WAIT_LIMIT {
            thread::sleep(Duration::from_millis(5));
        }
        let stalled = faults.stalled();
        faults.clear();
        closing.join().unwrap();
        assert_eq!(stalled, 8);
    });
    fixture.open();
    assert_eq!(fixture.engine().status().dirty_bytes, 8 * 4 * KIB);
}
