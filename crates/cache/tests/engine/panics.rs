//! Panics in the engine's own threads: told in `status`, and nothing that was acknowledged is lost (I4, I7).

use std::fs;
use std::path::Path;
use std::time::Duration;

use halocline_api::config::Config;
use halocline_api::control::{Controlled, Health, Side};
use halocline_cache::ExtentEngine;
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_testkit::waiting::eventually;

use crate::fixture::{Fixture, still};
use crate::truth::pattern;

const KIB: u64 = 1 << 10;

/// Whether `status` says that something panicked, and where.
fn tells(engine: &ExtentEngine) -> bool {
    let status = engine.status();
    let says = |text: &String| text.contains("panicked at") && text.contains("fault.rs");
    matches!(&status.health, Health::Degraded { reason } if says(reason))
        && status.notes.iter().any(says)
}

fn dirty_bytes(fixture: &Fixture) -> u64 {
    fixture.engine().status().dirty_bytes
}

/// Flushes what is dirty at once.
fn flushing() -> Config {
    let still = still(1 << 20, "always");
    Config { rebuild: true, max_dirty_age: Duration::ZERO, health_retry: Duration::ZERO, ..still }
}

fn flushes_again(operation: Operation, on: Side) {
    let mut fixture = Fixture::new(flushing());
    let faults = match on {
        Side::Origin => fixture.origin_faults.clone(),
        Side::Cache => fixture.cache_faults.clone(),
    };
    faults.set(Some(operation), Effect::Panic, When::Always);
    fixture.write("file", 0, &pattern(1, 0, 64 * KIB));
    eventually("the panic is told", || tells(fixture.engine()));
    // A program reads what it wrote, and others write.
    assert_eq!(fixture.read("file", 0, 65_536), pattern(1, 0, 64 * KIB));
    fixture.write("other", 0, &pattern(2, 0, 8 * KIB));
    let report = fixture.flush();
    if on == Side::Origin {
        assert!(report.left_bytes > 0, "{report:?}");
        assert!(report.skipped[0].reason.contains("panicked"), "{report:?}");
    }
    faults.clear();
    eventually("the rebuilder's flush", || dirty_bytes(&fixture) == 0);
    assert!(tells(fixture.engine()), "it was met, and is told until the end");
    for (name, seed, len) in [("file", 1, 64 * KIB), ("other", 2, 8 * KIB)] {
        assert_eq!(fs::read(fixture.origin.path().join(name)).unwrap(), pattern(seed, 0, len));
    }
    fixture.close();
}

#[test]
fn i7_a_rebuilder_that_panics_is_told_and_flushes_later() {
    flushes_again(Operation::Write, Side::Origin);
    flushes_again(Operation::Sync, Side::Origin);
}

/// The barrier after a flush is no file's business: the round itself panics.
#[test]
fn i4_a_barrier_that_panics_is_told_and_nothing_is_lost() {
    flushes_again(Operation::Sync, Side::Cache);
}

/// One file met a defect, and no other was flushed any more.
#[test]
fn a_file_that_meets_a_defect_keeps_no_other_from_the_origin() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    for name in ["a", "b", "c"] {
        fixture.write(name, 0, &pattern(3, 0, 16 * KIB));
    }
    fixture.origin_faults.set(Some(Operation::Write), Effect::Panic, When::Nth(0));
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.skipped.len()), (16 * KIB, 1), "{report:?}");
    assert!(tells(fixture.engine()));
    // As a kill would: what was not flushed is on the cache.
    fixture.crash();
    fixture.open();
    assert_eq!(fixture.flush().bytes, 16 * KIB);
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read(fixture.origin.path().join(name)).unwrap(), pattern(3, 0, 16 * KIB));
    }
}

#[test]
fn a_filler_that_panics_is_told_and_fills_later() {
    let config = Config { fill: true, health_retry: Duration::ZERO, ..still(1 << 20, "always") };
    let fixture = Fixture::new(config);
    fs::write(fixture.origin.path().join("file"), pattern(4, 0, 64 * KIB)).unwrap();
    fixture.cache_faults.set(Some(Operation::Write), Effect::Panic, When::Always);
    let cached = || {
        assert_eq!(fixture.read("file", 0, 65_536), pattern(4, 0, 64 * KIB));
        let extents = fixture.engine().locate(Path::new("file"), None).unwrap();
        extents.iter().any(|extent| extent.side == Side::Cache)
    };
    eventually("the panic is told", || {
        assert!(!cached());
        tells(fixture.engine())
    });
    fixture.cache_faults.clear();
    eventually("a fill", cached);
}
