//! The rebuilder's bound (I3): dirty bytes go home at their age, however busy programs keep both
//! sides.

use std::thread;
use std::time::{Duration, Instant};

use halocline_core::config::Config;
use halocline_core::control::Controlled;

use crate::fixture::{Fixture, still};
use crate::truth::pattern;

/// A rebuilder that has not done it by then never will.
const PATIENCE: Duration = Duration::from_mins(1);

#[test]
fn i3_dirty_bytes_go_home_at_their_age_whatever_programs_do() {
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
    assert_eq!(fixture.engine().status().dirty_bytes, 40_000);
    let begun = Instant::now();
    while fixture.engine().status().dirty_bytes > 0 {
        assert!(begun.elapsed() < PATIENCE, "I3: dirty bytes are older than allowed");
        // The origin is never idle, and nothing presses.
        fixture.write("busy", 0, &[2; 4096]);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(std::fs::read(fixture.origin.path().join("old")).unwrap(), pattern(1, 0, 40_000));
}
