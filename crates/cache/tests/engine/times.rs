//! Modification times while data moves.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr, SetTime};

use crate::fixture::{Fixture, ME, still};

/// Regression: a flush's writes came after the program's change and showed as a later modification. The differential
/// test met it in few runs.
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
        let stat = fixture.engine().set_attr(&fixture.vnode("file"), None, &change, ME).unwrap();
        assert_eq!(stat.raw.st_mtime, 1_000_000_000);
        fixture.origin_faults.clear();
        flush.join().unwrap();
    });
    let stat = fixture.engine().stat(&fixture.vnode("file"), None).unwrap();
    assert_eq!(stat.raw.st_mtime, 1_000_000_000);
    fixture.close();
    let on_origin = fixture.origin.path().join("file").metadata().unwrap();
    assert_eq!(on_origin.modified().unwrap(), chosen);
}

/// Regression: the file kept the time of the write before the allocation, while local file systems set a new one
/// whatever is allocated.
#[test]
fn an_allocation_shows_in_the_time() {
    let fixture = Fixture::new(still(4 << 20, "always"));
    let handle = fixture.handle("file");
    let mtime = || {
        let raw = fixture.engine().stat(&fixture.vnode("file"), None).unwrap().raw;
        (raw.st_mtime, raw.st_mtime_nsec)
    };
    for how in [Allocate::Reserve, Allocate::ReserveKeepSize, Allocate::PunchHole] {
        fixture.write("file", 0, &[1; 4096]);
        let written = mtime();
        thread::sleep(Duration::from_millis(20));
        fixture.engine().allocate(&handle, 0, 8192, how).unwrap();
        assert!(mtime() > written, "{how:?}");
    }
}

/// Regression: a write to the origin while the end of a flush gave the file its time is the younger of the two, but the
/// file kept the time of the write before it.
#[test]
fn a_write_to_the_origin_during_the_end_of_a_flush_shows_in_the_time() {
    let mut fixture = Fixture::new(still(64 << 10, "always"));
    let open = fixture.handle("file");
    fixture.write("file", 0, &[1; 4096]);
    fixture.origin_faults.set(Some(Operation::Write), Effect::Linger, When::Nth(0));
    let too_large = vec![2; 128 << 10];
    let mut begun = SystemTime::now();
    thread::scope(|scope| {
        thread::sleep(Duration::from_millis(20));
        begun = SystemTime::now();
        let write = scope.spawn(|| fixture.write("file", 8192, &too_large));
        while fixture.origin_faults.stalled() == 0 {
            thread::yield_now();
        }
        let flush = scope.spawn(|| fixture.flush());
        thread::sleep(Duration::from_millis(50));
        fixture.origin_faults.clear();
        write.join().unwrap();
        flush.join().unwrap();
    });
    drop(open);
    fixture.close();
    let on_origin = fixture.origin.path().join("file").metadata().unwrap();
    let granularity = Duration::from_millis(10);
    assert!(
        on_origin.modified().unwrap() + granularity >= begun,
        "the second write is not to be seen"
    );
}
