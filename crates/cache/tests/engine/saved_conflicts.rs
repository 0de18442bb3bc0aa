//! What is saved of conflicts is part of the cache's size (I5).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use halocline_api::config::CacheSize;
use halocline_api::control::{Controlled, Health};
use halocline_testkit::waiting::eventually;
use halocline_vfs::Engine;

use crate::fixture::{Fixture, ME, still};
use crate::truth::pattern;

const KIB: u64 = 1 << 10;

/// What file systems add to sparse objects.
const INDEX: u64 = 16 * 4096;

/// Any number of conflicts was saved beside the cache's size, until its device was full and it had failed.
#[test]
fn i5_what_is_saved_of_conflicts_is_within_the_size_and_what_does_not_fit_stays() {
    const SIZE: u64 = 4 << 20;
    const FILE: u64 = 700 * KIB;
    let mut fixture = Fixture::new(still(SIZE, "always"));
    fixture.others = true;
    let blocks = |dir: &Path| -> u64 {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        entries.map(|found| found.blocks() * 512).sum()
    };
    let conflicts = fixture.cache.path().join("conflicts");
    for round in 0..6 {
        let name = format!("file{round}");
        fixture.write(&name, 0, &pattern(1, 0, FILE));
        fs::write(fixture.origin.path().join(&name), "theirs").unwrap();
        let report = fixture.flush();
        let fits = round < 2;
        assert_eq!(report.conflicts.len(), usize::from(fits), "{round}: {report:?}");
        assert_eq!(report.skipped.is_empty(), fits, "{round}: {report:?}");
        let saved = blocks(&conflicts);
        assert!(saved <= SIZE / 2, "{saved} bytes are saved");
        let all = saved + fixture.cache_blocks();
        assert!(all <= SIZE + INDEX, "I5: {all} bytes are on disk");
        let opened = fixture.engine().open(&fixture.vnode(&name), libc::O_RDONLY, ME);
        // Of later ones the cache took nothing.
        let stays = round == 2;
        assert!(!fits || opened.is_ok(), "{round}");
        assert!(!stays || opened.is_err_and(|error| error.errno() == libc::EIO), "{round}");
    }
    let left = fixture.engine().status();
    assert!(matches!(left.health, Health::Ok), "{:?}", left.health);
    assert!(left.dirty_bytes >= FILE, "what is not saved stays: {}", left.dirty_bytes);
    // Other files are nobody's hostage.
    fixture.write("other", 0, b"ours");
    assert_eq!(fixture.flush().conflicts.len(), 0);
    assert_eq!(fs::read(fixture.origin.path().join("other")).unwrap(), b"ours");

    // Nor is it a way around it to mount again.
    fixture.close();
    fixture.open();
    assert_eq!(fixture.engine().status().dirty_bytes, left.dirty_bytes);
    remove_all_in(&conflicts);
    let report = fixture.flush();
    assert!(!report.conflicts.is_empty() && blocks(&conflicts) >= FILE, "{report:?}");
    assert_eq!(fixture.read("file2", 0, 64), b"theirs");
}

/// Removes the files in a directory, which were all found before: what goes while the directory is read may hide others.
fn remove_all_in(dir: &Path) {
    let entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in entries {
        fs::remove_file(path).unwrap();
    }
}

/// A cache whose conflicts take all that they may, and `file2` with one that did not fit.
fn refused() -> Fixture {
    let mut fixture = Fixture::new(still(4 << 20, "always"));
    fixture.others = true;
    for round in 0..3 {
        let name = format!("file{round}");
        fixture.write(&name, 0, &pattern(1, 0, 700 * KIB));
        fs::write(fixture.origin.path().join(&name), "theirs").unwrap();
        fixture.flush();
    }
    assert_eq!(fixture.engine().report().conflicts, 2);
    fixture
}

/// It was a conflict in memory only. After a power loss the record said that the change was ours, and the flush
/// overwrote what others had written.
#[test]
fn i9_a_conflict_that_does_not_fit_is_one_for_the_next_session() {
    for boot in ["one", "two"] {
        let mut fixture = refused();
        fixture.boot_id = Some("one".to_owned());
        fixture.crash();
        // One session that knows its boot, and meets the file again.
        fixture.open();
        fixture.flush();
        fixture.crash();
        fixture.boot_id = Some(boot.to_owned());
        fixture.config.size = CacheSize::Bytes(64 << 20);
        fixture.open();
        fixture.flush();
        assert_eq!(fixture.read("file2", 0, 64), b"theirs");
        assert_eq!(fs::read(fixture.origin.path().join("file2")).unwrap(), b"theirs");
        assert_eq!(fixture.engine().status().dirty_bytes, 0);
        assert_eq!(fixture.engine().report().conflicts, 1, "{boot}");
    }
}

/// The rebuilder tried it again and again, fetched nothing meanwhile, and only a command tried it after room was made.
#[test]
fn what_does_not_fit_holds_nothing_up_and_is_saved_once_there_is_room() {
    let mut fixture = refused();
    fixture.close_dirty();
    fixture.config.rebuild = true;
    fixture.config.max_dirty_age = Duration::ZERO;
    // What stays is more than that.
    fixture.config.dirty_high = 10.0;
    fixture.open();
    fs::write(fixture.origin.path().join("wanted"), pattern(1, 0, 64 * KIB)).unwrap();
    assert_eq!(fixture.read("wanted", 0, 4096), pattern(1, 0, 4096));
    let fetched = || fixture.engine().cached(Path::new("wanted")).unwrap().cached_bytes > 0;
    eventually("a fetch", fetched);
    let conflicts = fixture.cache.path().join("conflicts");
    remove_all_in(&conflicts);
    eventually("the conflict is saved", || fixture.engine().status().dirty_bytes == 0);
    assert_eq!(fixture.read("file2", 0, 64), b"theirs");
    assert_eq!(fs::read_dir(&conflicts).unwrap().count(), 2);
}
