//! A cache device that is gone (I6): what only it had is an error to read and listed file by file,
//! never zeros and never old bytes; everything else goes on. In write-through mode nothing is lost.

use std::fs;
use std::path::Path;

use halocline_api::config::{Config, Mode, VolumeKind};
use halocline_api::control::{Controlled, Health};
use halocline_cache::ExtentEngine;
use halocline_storage::device::fault::{Effect, When};

use crate::fixture::{Fixture, still};
use crate::truth::{Truth, pattern};

const KIB: u64 = 1 << 10;

fn striped() -> Config {
    let mut config = still(8 << 20, "always");
    config.cache.kind = VolumeKind::Striped;
    config.cache.servers = 3;
    config
}

fn empty(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
    fs::create_dir(dir).unwrap();
}

#[test]
fn i6_a_dead_device_costs_what_only_it_had_and_says_so() {
    let mut truth = Truth::new(Fixture::new(still(8 << 20, "always")));
    truth.write("clean", 0, 64 * KIB, 1);
    truth.fixture.flush();
    truth.write("dirty", 0, 64 * KIB, 2);
    truth.fixture.cache_faults.set(None, Effect::Errno(libc::EIO), When::Always);
    let error = truth.fixture.try_read("dirty", 10 * KIB, 1).unwrap_err();
    assert_eq!(error.errno(), libc::EIO, "neither zeros nor the origin's hole");
    truth.try_read("clean", 0, 64 * KIB).unwrap();
    truth.write("clean", 3 * KIB, 9 * KIB, 3);
    truth.write("dirty", 20 * KIB, 8 * KIB, 4);
    truth.write("new", 0, 100 * KIB, 5);
    truth.try_read("new", 0, 100 * KIB).unwrap();
    truth.try_read("dirty", 20 * KIB, 8 * KIB).unwrap();
    let status = truth.fixture.engine().status();
    assert!(matches!(status.health, Health::Degraded { .. }));
    let lost = truth.fixture.engine().locate(Path::new("dirty"), None).unwrap();
    let lost: Vec<_> =
        lost.iter().filter(|part| part.dirty).map(|part| (part.offset, part.length)).collect();
    assert_eq!(lost, [(0, 20 * KIB), (28 * KIB, 36 * KIB)], "what is at stake is listed");
    let report = truth.fixture.flush();
    assert_eq!((report.left_bytes, report.skipped.len()), (56 * KIB, 1), "{report:?}");
    assert_eq!(report.skipped[0].path, Path::new("dirty"));

    truth.fixture.cache_faults.clear();
    truth.compare("when the device is back");
    truth.fixture.close();
    truth.compare_origin("after all");
}

#[test]
fn i6_a_server_that_is_not_mounted_is_missed_before_it_reads_as_zeros() {
    let mut truth = Truth::new(Fixture::new(striped()));
    truth.write("file", 0, 700 * KIB, 1);
    truth.fixture.close_dirty();
    let server = truth.fixture.cache.path().join("server-1");
    let aside = truth.fixture.cache.path().join("aside");
    fs::rename(&server, &aside).unwrap();
    fs::create_dir(&server).unwrap();
    let fixture = &truth.fixture;
    let open = || ExtentEngine::open(fixture.origin.path(), fixture.cache.path(), &fixture.config);
    let message = open().unwrap_err().to_string();
    assert!(message.contains("server-1 holds nothing of the cache"), "{message}");
    assert!(message.contains("fsck --repair"), "{message}");

    // Somebody else's server in its place is no better.
    fs::write(server.join("halocline-server"), "cache another server 1\n").unwrap();
    let message = open().unwrap_err().to_string();
    assert!(message.contains("another server's"), "{message}");

    fs::remove_dir_all(&server).unwrap();
    fs::rename(&aside, &server).unwrap();
    truth.fixture.open();
    truth.compare("with the server back");
    truth.fixture.close();
    truth.compare_origin("after all");
}

#[test]
fn i6_write_through_loses_nothing_with_the_whole_cache() {
    let config = Config { mode: Mode::WriteThrough, ..striped() };
    let mut truth = Truth::new(Fixture::new(config));
    truth.write("a", 0, 300 * KIB, 1);
    truth.write("b", 7 * KIB, 90 * KIB, 2);
    truth.write("a", 100 * KIB, 50 * KIB, 3);
    truth.punch("a", 20 * KIB, 10 * KIB);
    assert!(truth.fixture.engine().status().mapped_bytes > 0, "the cache is used");
    truth.fixture.crash();
    empty(truth.fixture.cache.path());
    truth.compare_origin("with the cache gone");
    truth.fixture.open();
    truth.compare("with a new cache");
}

/// What a session that wrote back had left dirty was written over on the cache alone.
#[test]
fn i6_write_through_reaches_the_origin_over_dirty_bytes_too() {
    let mut truth = Truth::new(Fixture::new(striped()));
    truth.write("file", 0, 300 * KIB, 1);
    truth.fixture.flush();
    truth.write("file", 50 * KIB, 100 * KIB, 2);
    truth.fixture.close_dirty();
    for mode in [Mode::WriteThrough, Mode::ReadOnly] {
        truth.fixture.config.mode = mode;
        truth.fixture.open();
        truth.write("file", 40 * KIB, 30 * KIB, 3);
        let on_origin = fs::read(truth.fixture.origin.path().join("file")).unwrap();
        let written = &on_origin[40 << 10..70 << 10];
        assert!(written == pattern(3, 40 * KIB, 30 * KIB), "{mode:?}");
        truth.compare("over dirty bytes");
        truth.fixture.close_dirty();
    }
    truth.fixture.open();
    truth.compare("after all");
    truth.fixture.close();
    truth.compare_origin("after all");
}

#[test]
fn i6_missing_objects_are_errors_to_read() {
    let mut fixture = Fixture::new(still(8 << 20, "always"));
    fixture.write("file", 0, &pattern(1, 0, 64 * KIB));
    fixture.crash();
    empty(&fixture.cache.path().join("objects"));
    fixture.open();
    assert_eq!(fixture.try_read("file", 0, 100).unwrap_err().errno(), libc::EIO);
    let report = fixture.flush();
    assert_eq!(report.skipped.len(), 1, "{report:?}");
}
