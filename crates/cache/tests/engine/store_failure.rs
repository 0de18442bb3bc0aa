//! A metadata store whose disk refuses writes while programs go on (D11): nothing fails that would
//! not fail on the origin, nothing old is ever served, and all of it survives a kill (I1, I4, I7).

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use halocline_api::control::{Controlled, Health};
use halocline_cache::ExtentEngine;
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_testkit::copying::copy;
use halocline_vfs::Engine;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fixture::{Fixture, still};
use crate::truth::Truth;

const KIB: u64 = 1 << 10;

/// No file of this process may grow beyond `bytes` any more: the store's journal does.
fn limit_files(bytes: Option<u64>) {
    // SAFETY: ignoring a signal installs no handler that could run.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

/// Runs a test of this program in a process of its own: the limit is the process's.
fn alone(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{test} did not run");
}

/// Handles that stay open: their files are marked as being written, so that after a kill no
/// stamp tells that the origin has newer bytes.
type OpenHandles = Vec<<ExtentEngine as Engine>::Handle>;

/// Files in every state, and a store that has just refused its first write.
fn sick() -> (Truth, OpenHandles) {
    loop {
        let (mut truth, held) = sicken();
        // Refused in the midst of a flush, which then brings all on the origin: that is for other tests.
        if truth.dirty_bytes() > 0 {
            return (truth, held);
        }
        drop(held);
        truth.fixture.crash();
        limit_files(None);
    }
}

fn sicken() -> (Truth, OpenHandles) {
    let mut truth = Truth::new(Fixture::new(still(4 << 20, "always")));
    for name in ["clean", "rest", "half", "closed", "gone", "a", "b"] {
        truth.write(name, 0, 32 * KIB, 1);
    }
    let held = ["clean", "rest", "half"].map(|name| truth.fixture.handle(name));
    for name in ["clean", "rest", "half"] {
        truth.write(name, 0, KIB, 1);
    }
    truth.fixture.flush();
    for name in ["dirty", "half", "gone dirty", "b"] {
        truth.write(name, 8 * KIB, 16 * KIB, 2);
    }
    let handle = truth.fixture.handle("filler");
    // A file of the log has 64 KiB, and is allocated as a whole; no other has more than 60.
    limit_files(Some(60 * KIB));
    for number in 0.. {
        // Every other KiB, so that each write is an extent of its own.
        let offset = number % 30 * 2 * KIB;
        truth.write("filler", offset, KIB, 3);
        if matches!(truth.fixture.engine().status().health, Health::Degraded { .. }) {
            break;
        }
        assert!(number < 10_000, "the store never failed");
        if number % 30 == 29 {
            // Also where it is the first that the store refuses something.
            let report = truth.fixture.flush();
            assert_eq!((report.left_bytes, report.skipped.len()), (0, 0), "{report:?}");
        }
    }
    drop(handle);
    (truth, held.into())
}

/// What programs may do, all of it successfully.
fn go_on(truth: &mut Truth) {
    truth.compare("when the store had failed");
    truth.write("clean", 4 * KIB, 9 * KIB, 10);
    truth.write("dirty", 10 * KIB, KIB, 11);
    truth.write("dirty", 0, 4 * KIB, 12);
    truth.write("half", 0, 32 * KIB, 13);
    truth.write("new", 100, 5 * KIB, 14);
    truth.write("closed", 31 * KIB, 4 * KIB, 15);
    truth.compare("after writes");
    truth.punch("rest", 4 * KIB, 8 * KIB);
    truth.punch("b", 4 * KIB, 8 * KIB);
    truth.truncate("b", 20 * KIB);
    truth.truncate("b", 40 * KIB);
    truth.truncate("clean", 10 * KIB);
    truth.write("clean", 20 * KIB, KIB, 16);
    truth.compare("after changes of size");
    truth.unlink("gone");
    truth.unlink("gone dirty");
    truth.rename("a", "renamed", 0);
    truth.rename("b", "closed", libc::RENAME_EXCHANGE);
    truth.fsync("new");
    truth.compare("after changes of names");
    let Health::Degraded { reason } = truth.fixture.engine().status().health else {
        panic!("a sick store is no secret")
    };
    assert!(reason.contains("metadata store"), "{reason}");
}

/// Writes into a lease that it is not a copy: its own inode number and birth time.
fn pass_for_the_original(lease: &Path) {
    let found = std::fs::metadata(lease).unwrap();
    let born = found.created().map_or(0, |at| at.duration_since(UNIX_EPOCH).unwrap().as_nanos());
    let text = std::fs::read_to_string(lease).unwrap();
    let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    let after = |word| words.iter().position(|at| at == word).unwrap() + 1;
    let (inode, birth) = (after("inode"), after("born"));
    words[inode] = found.ino().to_string();
    words[birth] = born.to_string();
    std::fs::write(lease, words.join(" ")).unwrap();
}

/// Kills the engine and goes on with a copy of the cache: this process keeps the store's lock.
fn kill(truth: &mut Truth, held: OpenHandles) {
    drop(held);
    truth.fixture.crash();
    limit_files(None);
    let image = tempfile::tempdir().unwrap();
    copy(truth.fixture.cache.path(), image.path());
    pass_for_the_original(&image.path().join("halocline-lease"));
    truth.fixture.with_cache(image);
    truth.fixture.open();
}

#[test]
fn i1_programs_go_on_and_a_kill_brings_nothing_old_back() {
    alone("store_failure::go_on_and_kill");
}

#[test]
#[ignore = "run by i1_programs_go_on_and_a_kill_brings_nothing_old_back"]
fn go_on_and_kill() {
    let (mut truth, held) = sick();
    go_on(&mut truth);
    assert!(truth.dirty_bytes() > 0, "some bytes were only on the cache");
    kill(&mut truth, held);
    truth.compare("after the kill");
    assert!(matches!(truth.fixture.engine().status().health, Health::Ok), "the disk works again");
    truth.write("clean", 0, 4 * KIB, 20);
    truth.fixture.close();
    truth.compare_origin("after an unmount");
}

#[test]
fn i7_dirty_bytes_reach_the_origin_and_an_unmount_succeeds() {
    alone("store_failure::go_on_and_flush");
}

#[test]
#[ignore = "run by i7_dirty_bytes_reach_the_origin_and_an_unmount_succeeds"]
fn go_on_and_flush() {
    let (mut truth, held) = sick();
    go_on(&mut truth);
    truth.fixture.flush();
    assert_eq!(truth.dirty_bytes(), 0);
    truth.compare_origin("after a flush");
    truth.write("dirty", 0, 30 * KIB, 21);
    truth.compare("after a flush");
    truth.compare_origin("with nothing on the cache");
    kill(&mut truth, held);
    truth.compare("after the kill");
    truth.fixture.close();
}

#[test]
fn i4_an_fsync_flushes_what_the_store_cannot_promise() {
    alone("store_failure::fsync_alone");
}

#[test]
#[ignore = "run by i4_an_fsync_flushes_what_the_store_cannot_promise"]
fn fsync_alone() {
    let (mut truth, held) = sick();
    truth.write("dirty", 10 * KIB, KIB, 30);
    truth.fsync("dirty");
    let on_origin = std::fs::read(truth.fixture.origin.path().join("dirty")).unwrap();
    assert_eq!(
        on_origin,
        truth.fixture.read("dirty", 0, on_origin.len()),
        "fsynced bytes are on the origin"
    );
    truth.write("dirty", 10 * KIB, KIB, 31);
    kill(&mut truth, held);
    truth.compare("after the kill");
}

#[test]
fn i1_a_flush_that_began_before_the_store_failed_writes_over_nothing() {
    alone("store_failure::fsync_beside_a_flush");
}

#[test]
#[ignore = "run by i1_a_flush_that_began_before_the_store_failed_writes_over_nothing"]
fn fsync_beside_a_flush() {
    let mut truth = Truth::new(Fixture::new(still(4 << 20, "always")));
    truth.write("file", 0, 32 * KIB, 1);
    let engine = Arc::clone(truth.fixture.engine());
    let faults = Arc::clone(&truth.fixture.origin_faults);
    faults.set(Some(Operation::Write), Effect::Stall, When::Nth(0));
    let flush = thread::spawn(move || {
        drop(Controlled::flush(&*engine, None, false, &mut |_| ControlFlow::Continue(())));
    });
    while faults.stalled() == 0 {
        thread::yield_now();
    }
    // Enough for "file", and reached by the records before the cache is full.
    limit_files(Some(40 * KIB));
    for number in 0.. {
        truth.write(&format!("filler {}", number / 15), number % 15 * 2 * KIB, KIB, 3);
        if matches!(truth.fixture.engine().status().health, Health::Degraded { .. }) {
            break;
        }
        assert!(number < 10_000, "the store never failed");
    }
    truth.write("file", 8 * KIB, 8 * KIB, 2);
    thread::scope(|scope| {
        let fsync = scope.spawn(|| truth.fsync("file"));
        for _ in 0..50 {
            if fsync.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        faults.clear();
    });
    flush.join().unwrap();
    truth.compare("after a flush and an fsync beside it");
    truth.fixture.close_dirty();
    truth.compare_origin("after an unmount");
}

#[test]
fn i7_an_unmount_without_a_flush_brings_all_to_the_origin_too() {
    alone("store_failure::close_at_once");
}

#[test]
#[ignore = "run by i7_an_unmount_without_a_flush_brings_all_to_the_origin_too"]
fn close_at_once() {
    let (mut truth, held) = sick();
    go_on(&mut truth);
    drop(held);
    truth.fixture.close_dirty();
    truth.compare_origin("after an unmount");
}

/// What a program stores to a page of the log that the device cannot give raises `SIGBUS`.
#[test]
fn i1_i4_programs_go_on_where_the_log_cannot_be_written() {
    let mut truth = Truth::new(Fixture::new(still(4 << 20, "always")));
    for name in ["dirty", "clean"] {
        truth.write(name, 0, 32 * KIB, 1);
    }
    truth.fixture.flush();
    truth.write("dirty", 0, 16 * KIB, 2);
    for entry in std::fs::read_dir(truth.fixture.cache.path().join("meta")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().as_encoded_bytes().starts_with(b"log-") {
            File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        }
    }
    truth.write("new", 0, 8 * KIB, 3);
    assert!(matches!(truth.fixture.engine().status().health, Health::Degraded { .. }));
    truth.write("dirty", 8 * KIB, 16 * KIB, 4);
    truth.write("clean", 4 * KIB, 8 * KIB, 5);
    truth.compare("with a log that is gone");
    truth.fsync("dirty");
    truth.fixture.close_dirty();
    truth.compare_origin("after an unmount");
}

/// Each overwrite was noted by itself, and the notes had one block: 293 of 400 writes failed, and so
/// did every flush and unmount after that.
#[test]
fn i1_i7_any_number_of_overwrites_reach_the_origin() {
    alone("store_failure::overwrite_many");
}

#[test]
#[ignore = "run by i1_i7_any_number_of_overwrites_reach_the_origin"]
fn overwrite_many() {
    let (mut truth, held) = sick();
    // The device takes nothing any more, so every write over dirty bytes goes to the origin alone.
    truth.fixture.cache_faults.set(
        Some(Operation::Write),
        Effect::Errno(libc::EROFS),
        When::Always,
    );
    for name in ["dirty", "half", "gone dirty", "b"] {
        for number in 0..200 {
            truth.write(name, 8 * KIB + 80 * number, 40, 40);
        }
    }
    truth.unlink("gone dirty");
    truth.truncate("b", 9 * KIB);
    truth.compare("after overwrites");
    kill(&mut truth, held);
    truth.fixture.cache_faults.clear();
    truth.compare("after the kill");
    truth.fixture.close();
    truth.compare_origin("after an unmount");
}

#[test]
fn i7_an_unmount_after_any_number_of_overwrites_succeeds() {
    alone("store_failure::overwrite_many_and_close");
}

#[test]
#[ignore = "run by i7_an_unmount_after_any_number_of_overwrites_succeeds"]
fn overwrite_many_and_close() {
    let (mut truth, held) = sick();
    truth.fixture.cache_faults.set(
        Some(Operation::Write),
        Effect::Errno(libc::EROFS),
        When::Always,
    );
    for number in 0..200 {
        truth.write("filler", 2 * KIB * (number % 30) + 5 * number, 3, 41);
        truth.write("dirty", 8 * KIB + 80 * number, 40, 42);
    }
    truth.fixture.flush();
    assert_eq!(truth.dirty_bytes(), 0);
    truth.compare_origin("after a flush");
    drop(held);
    truth.fixture.close_dirty();
    truth.compare_origin("after an unmount");
}
