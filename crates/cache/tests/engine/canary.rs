//! Canaries: devices that lie, under the tests that must catch them. If one of these passes
//! unnoticed, the test that it is put under tests nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use halocline_storage::device::fault::{Effect, Faults, Operation, When};

use crate::fixture::{Fixture, still};
use crate::power::fsync_and_lose;
use crate::reference::{Op, run_on};

fn story() -> Vec<Op> {
    vec![
        Op::Write { name: 0, offset: 0, len: 40_000, seed: 1 },
        Op::Flush,
        Op::Write { name: 0, offset: 10_000, len: 8192, seed: 2 },
        Op::Read { name: 0, offset: 0, len: 40_000 },
        Op::Evict { name: 0 },
        Op::Warm { name: 0 },
        Op::Close,
    ]
}

/// Whether the reference test notices what `lie` does to the devices of one side.
fn noticed(lie: impl Fn(&Fixture) -> Arc<Faults>, operation: Operation) -> bool {
    let fixture = Fixture::in_memory(still(160 << 10, "always"));
    let faults = lie(&fixture);
    faults.set(Some(operation), Effect::Lie, When::Nth(1));
    let passed = catch_unwind(AssertUnwindSafe(|| run_on(fixture, &story())));
    assert_eq!(faults.hits(), 1, "the story reaches the lie");
    passed.is_err()
}

#[test]
fn the_reference_test_passes_on_honest_devices() {
    run_on(Fixture::in_memory(still(160 << 10, "always")), &story());
}

#[test]
fn the_reference_test_notices_a_cache_that_forgets_a_write() {
    assert!(noticed(|fixture| Arc::clone(&fixture.cache_faults), Operation::Write));
}

#[test]
fn the_reference_test_notices_an_origin_that_forgets_a_write() {
    assert!(noticed(|fixture| Arc::clone(&fixture.origin_faults), Operation::Write));
}

#[test]
fn the_reference_test_notices_a_read_that_brings_nothing() {
    assert!(noticed(|fixture| Arc::clone(&fixture.cache_faults), Operation::Read));
}

#[test]
fn the_power_test_notices_a_sync_that_is_none() {
    fsync_and_lose(|_| {});
    let lying = || {
        fsync_and_lose(|fixture| {
            fixture.cache_faults.set(Some(Operation::Sync), Effect::Lie, When::Always);
        });
    };
    assert!(catch_unwind(lying).is_err(), "fsynced bytes were lost and nobody noticed");
}
