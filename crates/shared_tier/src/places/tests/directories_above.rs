//! Another node renames or exchanges the directories above something, between the moment in which that is found and a step.

use halocline_model::namespace::{EntryName, InodeNumber};
use rustix::fs::{RenameFlags, renameat_with};

use super::*;

/// Two directories, `a` and `b`, with a directory `d` each: numbers 5, 6 and 15, 16.
fn directories_alike(disks: &Disks, one: &Places) -> [Vec<DirectoryStep>; 2] {
    [(5, "a"), (6, "b")].map(|(number, called)| {
        let near = disks.table.put(number, 1, called);
        one.make_directory(&[], &name(called), number, owner(0o755)).unwrap();
        one.make_directory(&near, &name("d"), number + 10, owner(0o755)).unwrap();
        disks.table.put(number + 10, number, "d")
    })
}

fn exchange(shared: &Path) {
    let [a, b] = ["a", "b"].map(|name| shared.join(name));
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

fn number_at(path: PathBuf) -> Option<u64> {
    own_xattrs::number(&File::open(path).ok()?, own_xattrs::DIRECTORY)
}

/// Regression: it was removed by its path, which led to the other one by then.
#[test]
fn i15_a_directory_is_removed_where_it_was_found_whatever_becomes_of_those_above() {
    let disks = Disks::new();
    let one = disks.surprised("removing a name", exchange);
    let [a, _] = directories_alike(&disks, &one);
    one.remove_directory(&a).unwrap();
    assert_eq!(number_at(disks.at("shared/a/d")), Some(16), "the other node's");
    assert_eq!(number_at(disks.at("shared/b/d")), None);
}

/// Regression: the other one was renamed, and back; this one was not, and the change ended with EBUSY.
#[test]
fn i15_a_directory_is_renamed_from_where_it_was_found_whatever_becomes_of_those_above() {
    let disks = Disks::new();
    let one = disks.surprised("renaming", exchange);
    directories_alike(&disks, &one);
    disks.table.put(15, 1, "moved");
    one.settle_directory(15).unwrap();
    assert_eq!(number_at(disks.at("shared/moved")), Some(15));
    assert_eq!(number_at(disks.at("shared/a/d")), Some(16));
}

/// Regression: the directory was synced by its path, which led to nothing or to another one by then.
#[test]
fn a_copy_is_durable_where_it_was_named_whatever_becomes_of_the_directories_above() {
    let disks = Disks::new();
    let one = disks.surprised("syncing a copy", |shared| {
        fs::rename(shared.join("a"), shared.join("c")).unwrap();
    });
    let [a, _] = directories_alike(&disks, &one);
    let place = make(&one, &a, "f", 7);
    let moved = FileMove::new(&one, &place, 7);
    let source = moved.begin(70).unwrap();
    let named = EntryName { directory: InodeNumber(15), name: name("f") };
    let arrived = moved.copy(&source, SHARED, (&named, &a), &mut |_| true).unwrap();
    assert_eq!((arrived.place.base, disks.at("shared/c/d/f").is_file()), (15, true));
}
