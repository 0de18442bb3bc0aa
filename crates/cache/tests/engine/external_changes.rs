//! An origin that was changed behind the mount (I9): clean bytes are dropped; dirty ones are a
//! conflict that is reported, and neither version is lost.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use halocline_api::control::Controlled;
use halocline_vfs::{Caller, Engine};

use crate::fixture::{Fixture, ME, still};
use crate::truth::pattern;

const KIB: u64 = 1 << 10;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.others = true;
    fixture.write("file", 0, &pattern(1, 0, 32 * KIB));
    fixture
}

/// Writes to the origin's file while nothing is mounted.
fn change(fixture: &Fixture, offset: u64, byte: u8) {
    let file = File::options().write(true).open(fixture.origin.path().join("file")).unwrap();
    file.write_all_at(&[byte], offset).unwrap();
}

#[test]
fn i9_clean_bytes_of_a_changed_file_are_dropped() {
    let mut fixture = fixture();
    fixture.close();
    change(&fixture, 5 * KIB, 0xAB);
    fixture.open();
    let mut want = pattern(1, 0, 32 * KIB);
    want[5 << 10] = 0xAB;
    assert_eq!(fixture.read("file", 0, 40 << 10), want);
    fixture.close();
}

/// A file that nobody wrote through the mount had no stamp at all: what `warm`, or a fetch after its
/// last close, had brought was served for ever, whatever became of the origin's file.
#[test]
fn i9_bytes_that_were_only_read_are_dropped_too() {
    let fetched_after_a_read = |fixture: &Fixture| {
        fixture.read("file", 0, 40 << 10);
        fixture.engine().fetch_wanted().unwrap();
    };
    let warmed = |fixture: &Fixture| drop(fixture.warm("file"));
    for bring in [&fetched_after_a_read as &dyn Fn(&Fixture), &warmed] {
        let mut fixture = Fixture::new(still(1 << 20, "always"));
        let mut want = pattern(1, 0, 32 * KIB);
        fs::write(fixture.origin.path().join("file"), &want).unwrap();
        bring(&fixture);
        assert_eq!(fixture.engine().status().mapped_bytes, 32 * KIB);
        fixture.close();
        change(&fixture, 5 * KIB, 0xAB);
        want[5 << 10] = 0xAB;
        fixture.open();
        assert_eq!(fixture.read("file", 0, 40 << 10), want);
        fixture.close();
    }
}

/// A flushed file stayed known after its last close, and what is known was not looked at again.
#[test]
fn i9_a_file_that_changed_while_it_was_closed_is_read_anew() {
    let mut fixture = fixture();
    fixture.flush();
    let theirs = vec![0xAB; 50 << 10];
    fs::write(fixture.origin.path().join("file"), &theirs).unwrap();
    assert_eq!(fixture.read("file", 0, 60 << 10), theirs, "the mount goes on");
    fixture.close();
    assert_eq!(fs::read(fixture.origin.path().join("file")).unwrap(), theirs);
}

/// The stamp at the last close called what had been read before a change the file's newest bytes.
#[test]
fn i9_a_file_that_changed_while_it_was_read_is_read_anew() {
    for open_at_the_same_time in [false, true] {
        let mut fixture = Fixture::new(still(1 << 20, "always"));
        let path = fixture.origin.path().join("file");
        fs::write(&path, pattern(1, 0, 32 * KIB)).unwrap();
        let reader = fixture.handle("file");
        fixture.read("file", 0, 40 << 10);
        fixture.engine().fetch_wanted().unwrap();
        assert_eq!(fixture.engine().status().mapped_bytes, 32 * KIB);
        let theirs = pattern(2, 0, 50 * KIB);
        fs::write(&path, &theirs).unwrap();
        let reader = open_at_the_same_time.then_some(reader);
        assert!(fixture.read("file", 0, 60 << 10) == theirs, "{open_at_the_same_time}");
        fixture.write("file", 50 * KIB, &[3; 100]);
        drop(reader);
        fixture.close();
        let on_origin = fs::read(&path).unwrap();
        assert!(on_origin == [theirs, vec![3; 100]].concat(), "{open_at_the_same_time}");
    }
}

#[test]
fn i9_a_change_that_hides_in_size_and_mtime_is_seen() {
    let mut fixture = fixture();
    fixture.close();
    let path = fixture.origin.path().join("file");
    let before: SystemTime = fs::metadata(&path).unwrap().modified().unwrap();
    change(&fixture, 5 * KIB, 0xAB);
    File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    fixture.open();
    assert_eq!(fixture.read("file", 5 * KIB, 1), [0xAB], "its ctime tells");
}

#[test]
fn i9_what_was_left_alone_stays_cached() {
    let mut fixture = fixture();
    fixture.close();
    fixture.open();
    fixture.read("file", 0, 1);
    assert_eq!(fixture.engine().status().mapped_bytes, 32 * KIB);
}

/// The one file in the directory of conflicts that is not its description.
fn saved(fixture: &Fixture) -> Vec<u8> {
    let dir = fs::read_dir(fixture.cache.path().join("conflicts")).unwrap();
    let mut files: Vec<_> = dir.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_none());
    assert_eq!(files.len(), 1, "{files:?}");
    fs::read(&files[0]).unwrap()
}

#[test]
fn i9_a_conflict_is_reported_and_neither_version_is_lost() {
    let mut fixture = fixture();
    fixture.flush();
    fixture.write("file", 8 * KIB, &pattern(2, 8 * KIB, 4 * KIB));
    fixture.close_dirty();
    change(&fixture, 5 * KIB, 0xAB);
    fixture.open();
    let mut theirs = pattern(1, 0, 32 * KIB);
    theirs[5 << 10] = 0xAB;
    assert_eq!(fixture.read("file", 0, 40 << 10), theirs, "the origin's version is the file");
    let ours = &saved(&fixture)[8 << 10..12 << 10];
    assert_eq!(ours, pattern(2, 8 * KIB, 4 * KIB), "the cache's version is saved");
    let status = fixture.engine().status();
    assert_eq!(status.dirty_bytes, 0);
    let note = status.notes.iter().find(|note| note.contains("file")).expect("it is reported");
    assert!(note.contains("changed behind the mount") && note.contains("4096 bytes"), "{note}");
    fixture.close();
    assert_eq!(fs::read(fixture.origin.path().join("file")).unwrap(), theirs);
}

/// What is saved may be a file that only its owner may read; versions before let all read it.
#[test]
fn what_is_saved_is_for_nobody_else() {
    let mut fixture = fixture();
    fixture.close_dirty();
    fs::remove_file(fixture.origin.path().join("file")).unwrap();
    fixture.open();
    let dir = fixture.cache.path().join("conflicts");
    let closed = |dir: &Path| {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let open = |path: &PathBuf| path.metadata().unwrap().mode() & 0o077 != 0;
        assert_eq!(files.chain([dir.to_owned()]).filter(open).count(), 0);
    };
    closed(&dir);
    fixture.close();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(&dir).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fixture.open();
    closed(&dir);
    fixture.close();
}

#[test]
fn i9_dirty_bytes_of_a_file_that_was_removed_are_saved() {
    let mut fixture = fixture();
    fixture.close_dirty();
    fs::remove_file(fixture.origin.path().join("file")).unwrap();
    fixture.open();
    assert_eq!(saved(&fixture), pattern(1, 0, 32 * KIB));
    assert!(fixture.engine().status().notes.iter().any(|note| note.contains("is gone")));
    fixture.close();
}

#[test]
fn i9_dirty_bytes_follow_a_file_that_was_renamed_behind_the_mount() {
    let mut fixture = fixture();
    fixture.close_dirty();
    fs::create_dir(fixture.origin.path().join("d")).unwrap();
    fs::rename(fixture.origin.path().join("file"), fixture.origin.path().join("d/moved")).unwrap();
    fixture.open();
    fixture.close();
    let on_origin = fs::read(fixture.origin.path().join("d/moved")).unwrap();
    assert_eq!(on_origin, pattern(1, 0, 32 * KIB));
}

/// Regression: the kernel had compared the owner, and the mount process of root removed whatever had the name by then.
#[test]
fn a_user_takes_no_name_from_what_another_user_put_there_in_a_sticky_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fixture = fixture();
    let at = |name: &str| fixture.origin.path().join("sticky").join(name);
    fs::create_dir(at("")).unwrap();
    fs::set_permissions(at(""), Permissions::from_mode(0o1777)).unwrap();
    for (name, uid) in [("roots", 0), ("mine", 65534)] {
        fs::write(at(name), name).unwrap();
        chown(at(name), Some(uid), None).unwrap();
    }
    fs::create_dir(at("directory")).unwrap();
    let (engine, nobody) = (fixture.engine(), Caller { uid: 65534, gid: 65534, pid: 0 });
    let (sticky, _) = engine.lookup(&engine.root(), "sticky".as_ref()).unwrap();
    let refused = [
        engine.unlink(&sticky, "roots".as_ref(), nobody),
        engine.remove_dir(&sticky, "directory".as_ref(), nobody),
        engine.rename((&sticky, "mine".as_ref()), (&sticky, "roots".as_ref()), 0, nobody),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().errno(), libc::EPERM);
    }
    assert_eq!(fs::read_to_string(at("roots")).unwrap(), "roots");
    engine.unlink(&sticky, "mine".as_ref(), nobody).unwrap();
    engine.unlink(&sticky, "roots".as_ref(), ME).unwrap();
}

/// Our own changes are nobody else's: flushes, times, modes and names leave no conflict.
#[test]
fn i9_our_own_changes_are_no_conflict() {
    let mut fixture = fixture();
    fixture.flush();
    fixture.write("file", 4 * KIB, &[3; 100]);
    fixture.close_dirty();
    fixture.open();
    fixture.write("file", 20 * KIB, &[4; 100]);
    fixture.crash();
    fixture.open();
    let mut want = pattern(1, 0, 32 * KIB);
    want[4 << 10..(4 << 10) + 100].fill(3);
    want[20 << 10..(20 << 10) + 100].fill(4);
    assert_eq!(fixture.read("file", 0, 40 << 10), want);
    assert!(fixture.engine().status().notes.is_empty());
    fixture.close();
    let mut file = File::options().append(true).open(fixture.origin.path().join("file")).unwrap();
    file.write_all(b"more").unwrap();
    fixture.open();
    want.extend(b"more");
    assert_eq!(fixture.read("file", 0, 40 << 10), want);
}
