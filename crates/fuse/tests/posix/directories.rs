//! Large directories, and directories that change while they are read.

use std::collections::BTreeSet;
use std::fs::{self, File};

use crate::harness::{in_both_modes, mounted};

/// More entries than the process may have descriptors.
const MANY: usize = 100_000;

#[test]
fn a_directory_of_100_000_entries_is_listed_and_looked_at() {
    let Some(mounted) = mounted(false) else { return };
    fs::create_dir(mounted.origin("many")).unwrap();
    for i in 0..MANY {
        File::create(mounted.origin(&format!("many/entry-{i}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(mounted.path("many")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().is_file());
        seen += 1;
    }
    assert_eq!(seen, MANY);
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 20_000, "{open} descriptors are open");
    // Each is usable, those long out of the descriptor cache included.
    for i in (0..MANY).step_by(997) {
        fs::write(mounted.path(&format!("many/entry-{i}")), "x").unwrap();
    }
    assert_eq!(fs::read(mounted.origin("many/entry-997")).unwrap(), b"x");
}

#[test]
fn reading_while_deleting_misses_nothing() {
    in_both_modes(|mounted| {
        fs::create_dir(mounted.path("d")).unwrap();
        for i in 0..3000 {
            File::create(mounted.path(&format!("d/{i}"))).unwrap();
        }
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(mounted.path("d")).unwrap() {
            let entry = entry.unwrap();
            fs::remove_file(entry.path()).unwrap();
            assert!(seen.insert(entry.file_name()), "{entry:?} came twice");
        }
        assert_eq!(seen.len(), 3000);
        fs::remove_dir(mounted.path("d")).unwrap();
        assert!(!mounted.origin("d").exists());
    });
}

#[test]
fn an_open_directory_sees_what_was_made_after_a_rewind() {
    let Some(mounted) = mounted(false) else { return };
    let names = || {
        let entries = fs::read_dir(mounted.path("")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect::<BTreeSet<_>>()
    };
    assert!(names().is_empty());
    File::create(mounted.path("a")).unwrap();
    File::create(mounted.origin("behind")).unwrap();
    assert_eq!(names(), BTreeSet::from(["a".into(), "behind".into()]));
    fs::remove_file(mounted.path("a")).unwrap();
    assert_eq!(names(), BTreeSet::from(["behind".into()]));
}
