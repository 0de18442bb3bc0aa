//! The rebuilder's bound (I3): dirty bytes go to the origin at their age, however busy programs keep both
//! sides.

use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_os::clock::Clock;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};

use crate::fixture::{Fixture, still};
use crate::truth::pattern;

#[test]
fn i3_dirty_bytes_reach_the_origin_at_their_age_whatever_programs_do() {
    let config = Config {
        rebuild: true,
        max_dirty_age: Duration::from_millis(300),
        dirty_high: 100.0,
        exclude: vec!["busy".to_owned()],
        ..still(8 << 20, "always")
    };
    let fixture = Fixture::new(config);
    fixture.write("busy", 0, &[1; 4096]);
    fixture.write("old", 0, &pattern(1, 0, 40_000));
    let begun = Instant::now();
    while fixture.engine().status().dirty_bytes > 0 {
        assert!(begun.elapsed() < WAIT_LIMIT, "I3: dirty bytes are older than allowed");
        // The origin is never idle, and nothing presses.
        fixture.write("busy", 0, &[2; 4096]);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fixture.engine().report().flush.bytes, 40_000, "all of them were dirty");
    assert_eq!(std::fs::read(fixture.origin.path().join("old")).unwrap(), pattern(1, 0, 40_000));
}

/// What was noted in a future that never came bars nothing and makes no conflict.
#[test]
fn i3_i9_a_clock_that_leaps_a_year_ahead_and_back_loses_nothing() {
    let config = Config { rebuild: true, ..still(8 << 20, "always") };
    let mut fixture = Fixture::simulated(config, "hdd+ssd");
    fixture.write("a", 0, &pattern(1, 0, 40_000));
    fixture.clock.leap(Duration::from_hours(24 * 365));
    fixture.write("a", 20_000, &pattern(2, 20_000, 40_000));
    fixture.write("b", 0, &pattern(3, 0, 9000));
    let newest = [pattern(1, 0, 20_000), pattern(2, 20_000, 40_000)].concat();
    assert_eq!(fixture.read("a", 0, 60_000), newest);
    fixture.crash();
    fixture.clock = Clock::MACHINE;
    fixture.open();
    fixture.write("b", 9000, &pattern(4, 9000, 5000));
    let is_clean = || fixture.engine().status().dirty_bytes == 0;
    eventually("the flush of dirty bytes of the future, which never comes", is_clean);
    fixture.close();
    let on_origin = |name: &str| std::fs::read(fixture.origin.path().join(name)).unwrap();
    assert_eq!(on_origin("a"), newest);
    assert_eq!(on_origin("b"), [pattern(3, 0, 9000), pattern(4, 9000, 5000)].concat());
}
