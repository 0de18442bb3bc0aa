//! Leases that programs hold of files of the origin, past the mount.

use std::time::{Duration, Instant};

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_testkit::leased::leased;
use halocline_testkit::waiting::eventually;

use crate::fixture::{Fixture, still};
use crate::truth::pattern;

/// Regression: the mount waited for 45 s to open the dirty file, and all flushes with it.
#[test]
fn i4_dirty_bytes_of_a_leased_file_wait_and_others_are_flushed() {
    let mut fixture = Fixture::new(still(8 << 20, "always"));
    fixture.write("leased", 0, &pattern(1, 0, 40_000));
    fixture.crash();
    let on_origin = |fixture: &Fixture, name: &str| fixture.origin.path().join(name);
    let path = on_origin(&fixture, "leased");
    let Some(lease) = leased(&path, libc::F_WRLCK) else { return };
    fixture.config = Config {
        rebuild: true,
        max_dirty_age: Duration::from_millis(100),
        ..fixture.config.clone()
    };
    let begun = Instant::now();
    fixture.open();
    fixture.write("other", 0, &pattern(2, 0, 9000));
    let is_flushed = || fixture.engine().status().dirty_bytes == 40_000;
    eventually("the other file is flushed", is_flushed);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "it waited for the lease: {took:?}");
    assert_eq!(std::fs::read(on_origin(&fixture, "other")).unwrap(), pattern(2, 0, 9000));
    drop(lease);
    eventually("both are flushed", || fixture.engine().status().dirty_bytes == 0);
    assert_eq!(std::fs::read(&path).unwrap(), pattern(1, 0, 40_000));
}
