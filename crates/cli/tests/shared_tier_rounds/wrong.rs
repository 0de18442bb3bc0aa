//! The canary: the ledger finds what is lost, late, misplaced or doubled.

use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use halocline_testkit::hostile::Random;

use crate::ledger::{FILES, FOLDERS, Ledger};
use crate::mount_contents::MountContents;
use crate::operations::Operations;

/// A plain directory with items, and what is known of them.
fn filled() -> (tempfile::TempDir, Ledger) {
    let (scratch, ledger) = (tempfile::tempdir().unwrap(), Ledger::new());
    let none = Path::new("nobody");
    let operations = Operations { ledger: &ledger, mount: scratch.path(), socket: none };
    operations.prepare().unwrap();
    let mut random = Random(7);
    for _ in 0..500 {
        operations.any(&mut random).unwrap();
    }
    ledger.settle(&MountContents::below(scratch.path()).unwrap());
    (scratch, ledger)
}

/// The files of items with one name, which is that of the item, and one directory.
fn some(root: &Path) -> (Vec<PathBuf>, PathBuf) {
    let (mut files, mut directory, mut todo) = (Vec::new(), None, vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let (path, stat) = (entry.path(), entry.metadata().unwrap());
            if stat.is_dir() {
                if entry.file_name().to_str().unwrap().starts_with('d') {
                    directory = Some(path.clone());
                }
                todo.push(path);
            } else if std::os::unix::fs::MetadataExt::nlink(&stat) == 1 && stat.len() > 0 {
                files.push(path);
            }
        }
    }
    (files, directory.expect("some directory"))
}

/// A wrong done to two files with one name each and a directory.
type Wrong = fn(&Path, &Path, &Path);

#[test]
fn the_ledger_finds_what_is_wrong() {
    let wrongs: [(&str, Wrong); 9] = [
        ("nothing", |_, _, _| {}),
        ("lost", |file, _, _| fs::remove_file(file).unwrap()),
        ("a directory lost", |_, _, directory| fs::remove_dir(directory).unwrap()),
        ("renamed", |file, _, _| fs::rename(file, file.with_file_name("f1.x")).unwrap()),
        ("with one name more", |file, _, _| {
            fs::hard_link(file, file.with_file_name("f1.x")).unwrap();
        }),
        ("doubled", |file, _, _| {
            fs::copy(file, file.with_file_name("f1.x")).unwrap();
        }),
        ("exchanged", |file, other, _| {
            let aside = file.with_file_name("aside");
            fs::rename(file, &aside).unwrap();
            fs::rename(other, file).unwrap();
            fs::rename(aside, other).unwrap();
        }),
        ("cut off", |file, _, _| {
            let length = file.metadata().unwrap().len() - 8;
            fs::File::options().write(true).open(file).unwrap().set_len(length).unwrap();
        }),
        ("of another write", |file, _, _| {
            let file = fs::File::options().read(true).write(true).open(file).unwrap();
            let mut word = [0; 8];
            file.read_exact_at(&mut word, 0).unwrap();
            let older = u64::from_le_bytes(word) ^ 1;
            file.write_all_at(&older.to_le_bytes(), 0).unwrap();
        }),
    ];
    for (what, wrong) in wrongs {
        let (scratch, ledger) = filled();
        let (files, directory) = some(scratch.path());
        wrong(&files[0], &files[1], &directory);
        let is_found = catch_unwind(AssertUnwindSafe(|| {
            ledger.settle(&MountContents::below(scratch.path()).unwrap());
        }));
        assert_eq!(is_found.is_err(), what != "nothing", "{what}");
    }
}

/// Regression: once it was unknown of all folders where they are, the programs of a round looked for something to do until
/// the test gave up.
#[test]
fn one_folder_stays_known_whatever_fails() {
    let (scratch, ledger) = filled();
    let lost = |_: &str, _: &str| Err(std::io::Error::from_raw_os_error(libc::EIO));
    let renamed = |folder| ledger.rename_folder(folder, format!("here/folder{folder}.x"), lost);
    let failed = (0..FOLDERS).filter(|folder| renamed(*folder).is_some_and(|done| done.is_err()));
    assert_eq!(failed.count(), FOLDERS - 1);
    assert!(ledger.known().ends_with("and 1 of 4 folders are known"), "{}", ledger.known());
    let operations =
        Operations { ledger: &ledger, mount: scratch.path(), socket: Path::new("nobody") };
    let mut random = Random(13);
    let done = (0..500).filter(|_| operations.any(&mut random).unwrap());
    assert!(done.count() > 50);
    ledger.settle(&MountContents::below(scratch.path()).unwrap());
    assert!(ledger.known().ends_with("and 4 of 4 folders are known"), "{}", ledger.known());
}

/// A rename over a directory that failed between its two changes leaves two of an item: what changes one of them leaves the
/// other one.
#[test]
fn an_item_with_two_directories_goes_on_with_both() {
    let (scratch, ledger) = filled();
    let (_, directory) = some(scratch.path());
    let name = directory.file_name().unwrap().to_str().unwrap();
    let item: usize = name[1..].split_once('.').unwrap().0.parse().unwrap();
    let held = ledger.hold(item).unwrap();
    let (folder, _) = held.version().names.first().unwrap().clone();
    let both = held.version().with(&(folder, format!("d{item}.x")));
    let half = || {
        fs::create_dir(directory.with_file_name(format!("d{item}.x")))?;
        Err(std::io::Error::from_raw_os_error(libc::EIO))
    };
    let change = (vec![held.version().clone()], vec![vec![both]]);
    ledger.change("renames over directories", vec![held], change, half).unwrap_err();
    ledger.settle(&MountContents::below(scratch.path()).unwrap());
    let operations =
        Operations { ledger: &ledger, mount: scratch.path(), socket: Path::new("nobody") };
    let mut random = Random(11);
    for _ in 0..500 {
        operations.any(&mut random).unwrap();
    }
    ledger.settle(&MountContents::below(scratch.path()).unwrap());
}

/// What was not answered may have been made or not, but not by half, and not late.
#[test]
fn what_was_not_answered_is_one_or_the_other() {
    for case in 0..4 {
        let (scratch, ledger) = filled();
        let (files, _) = some(scratch.path());
        let seen = || MountContents::below(scratch.path()).unwrap();
        let item: usize = {
            let bytes = fs::read(&files[0]).unwrap();
            let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            usize::try_from(word >> 52).unwrap() - 1
        };
        assert!(item < FILES);
        let held = ledger.hold(item).unwrap();
        let mut after = held.version().clone();
        let (folder, old) = after.names.pop_first().unwrap();
        after.names.insert((folder, "f1.x".to_owned()));
        let new = files[0].with_file_name("f1.x");
        assert!(files[0].ends_with(&old));
        let lost = || Err(std::io::Error::from_raw_os_error(libc::EIO));
        ledger.change("renames", vec![held], (vec![after], vec![]), lost).unwrap_err();
        assert!(ledger.hold(item).is_none(), "nobody knows its name");
        let both = |is_wrong: bool| {
            let settled = catch_unwind(AssertUnwindSafe(|| ledger.settle(&seen())));
            assert_eq!(settled.is_err(), is_wrong, "case {case}");
        };
        match case {
            0 => both(false),
            1 => {
                fs::rename(&files[0], &new).unwrap();
                both(false);
            }
            2 => {
                fs::hard_link(&files[0], &new).unwrap();
                both(true);
            }
            _ => {
                both(false);
                fs::rename(&files[0], &new).unwrap();
                both(true);
            }
        }
    }
}
