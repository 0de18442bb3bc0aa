//! Modification times while data moves.

use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use halocline_core::device::fault::{Effect, Operation, When};
use halocline_core::engine::{Engine, SetAttr, SetTime};

use crate::fixture::{Fixture, ME, still};

/// A flush's writes came after the program's change and showed as a later modification: the
/// differential test met it once in some runs.
#[test]
fn a_time_that_a_program_sets_during_a_flush_stays() {
    let mut fixture = Fixture::new(still(4 << 20, "always"));
    fixture.write("file", 0, &[1; 4096]);
    fixture.origin_faults.set(Some(Operation::Write), Effect::Stall, When::Nth(0));
    let chosen = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    thread::scope(|scope| {
        let flush = scope.spawn(|| fixture.flush());
        while fixture.origin_faults.stalled() == 0 {
            thread::yield_now();
        }
        let change = SetAttr { mtime: Some(SetTime::At(chosen)), ..SetAttr::default() };
        let stat = fixture.engine().set_attr(&fixture.node("file"), None, &change, ME).unwrap();
        assert_eq!(stat.raw.st_mtime, 1_000_000_000);
        fixture.origin_faults.clear();
        flush.join().unwrap();
    });
    let stat = fixture.engine().stat(&fixture.node("file"), None).unwrap();
    assert_eq!(stat.raw.st_mtime, 1_000_000_000);
    fixture.close();
    let home = fixture.origin.path().join("file").metadata().unwrap();
    assert_eq!(home.modified().unwrap(), chosen);
}
