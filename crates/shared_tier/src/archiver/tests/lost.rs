//! SSDs and stores that are lost, and SSDs that come back: which version of a file becomes the file.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::*;
use crate::places::copies::Version;
use crate::places::own_xattrs;
use crate::places::room::Need;

/// A copy became the file when its SSD was lost; then another node changed the file, on its own SSD, and that was copied, too.
/// When the first SSD is back and the store lost, the newest of the two is the file.
#[test]
fn i13_a_rebuild_takes_the_file_that_was_copied_last() {
    for is_written_last in [true, false] {
        let (world, at) = world();
        archive(&world.node("n1"), &at).unwrap();
        lose_ssd(&world);
        let other = world.node_until("n2", 5, i64::MAX);
        assert_eq!(demote(&other, 5, &at, SHARED).unwrap(), Moved::Done(0));
        assert!(matches!(demote(&other, 5, &at, SSD).unwrap(), Moved::Done(_)));
        write(&other, 2, &at).unwrap();
        assert!(matches!(archive(&other, &at).unwrap(), Archived::Done(_)));
        fs::rename(world.at("n1/lost"), world.at("n1/ssd")).unwrap();
        if !is_written_last {
            // Somebody wrote the old one past the mounts, or has put a clock back: nobody can tell.
            let old = File::options().write(true).open(world.at("n1/ssd/a/f")).unwrap();
            old.set_modified(SystemTime::now() + Duration::from_mins(1)).unwrap();
        }
        world.forget();
        let report = world.repair(true);
        let tree = world.tree();
        let newest = tree.iter().find(|(_, text)| *text == WRITTEN).map(|(path, _)| &**path);
        assert!(newest.is_some_and(|path| !is_written_last || path == "/a/f"), "{report:?}");
        let both = tree.values().filter(|text| *text == TEXT).count();
        assert_eq!(both, usize::from(!is_written_last), "{report:?}, {tree:?}");
        assert_eq!(report.told.len(), both, "{report:?}");
    }
}

/// While an SSD is not reached, or has lost a file, nothing that fails takes its copy away, and no copy gives way.
#[test]
fn i13_a_copy_that_may_be_all_that_is_left_stays() {
    for is_emptied in [false, true] {
        let (world, at) = world();
        archive(&world.node("n1"), &at).unwrap();
        let away = if is_emptied { "n1/ssd/a/f" } else { "n1/ssd" };
        fs::rename(world.at(away), world.at("n1/lost")).unwrap();
        let other = world.node_until("n2", 5, i64::MAX);
        let written = write(&other, 5, &at);
        assert!(written.is_err(), "{written:?}");
        let found = other.names.lookup(&at).unwrap();
        assert!(take_away(&other.places, &found.attributes, found.inode).is_err());
        assert!(!Copies::give_way(&other.places, Need::bytes(u64::MAX), None).unwrap());
        assert_eq!(finals(&world).len(), 1, "{is_emptied}");
        // Once it is found again, it does.
        fs::rename(world.at("n1/lost"), world.at(away)).unwrap();
        let other = world.node_until("n2", 6, i64::MAX);
        assert!(Copies::give_way(&other.places, Need::bytes(u64::MAX), None).unwrap());
        assert!(finals(&world).is_empty() && read(&other, &at).as_deref() == Some(TEXT));
    }
}

/// The names are lost, and an SSD is reached that has lost a file, or has an older one: the copy is not removed.
#[test]
fn i13_a_rebuild_gives_files_that_their_ssd_has_lost_the_names_of_their_copies() {
    let (world, at) = world();
    archive(&world.node("n1"), &at).unwrap();
    fs::remove_file(world.at("n1/ssd/a/f")).unwrap();
    world.forget();
    let report = world.repair(true);
    assert!(report.told.iter().any(|line| line.contains("drain n1")), "{report:?}");
    assert_eq!((report.named, finals(&world).len()), ([1, 1, 0], 1), "{report:?}");
    // A check later lists it as lost, and takes nothing away.
    let report = world.repair(true);
    assert_eq!((report.lost.len(), finals(&world).len()), (1, 1), "{report:?}");
    let other = world.node_until("n2", 5, i64::MAX);
    assert_eq!(demote(&other, 5, &at, SHARED).unwrap(), Moved::Done(0));
    assert_eq!(read(&other, &at).as_deref(), Some(TEXT));
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

#[test]
fn a_rebuild_sets_a_copy_aside_whose_file_on_the_ssd_is_older() {
    let (world, at) = world();
    archive(&world.node("n1"), &at).unwrap();
    let old = File::options().write(true).open(world.at("n1/ssd/a/f")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    old.write_all_at(b"OLD", 0).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    world.forget();
    let report = world.repair(true);
    assert!(report.set_aside.len() == 1 && finals(&world).is_empty(), "{report:?}");
    let left = fs::read_dir(world.at("shared/.halocline/leftovers")).unwrap();
    let left: Vec<_> = left.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert_eq!(left, [TEXT.as_bytes()]);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// A store that has forgotten the mark is confirmed while the SSD is lost, or is reached.
#[test]
fn i13_to_confirm_an_older_store_removes_no_copy_whose_file_is_not_found() {
    for is_lost in [true, false] {
        let (world, at) = world();
        let saved = world.store.saved();
        archive(&world.node("n1"), &at).unwrap();
        if is_lost {
            lose_ssd(&world);
        }
        world.store.restart(saved);
        let (peers, alone) = (world.peers(), world.alone());
        crate::repair::confirm(&world.at("n2"), Some(&peers), &world.store, &alone).unwrap();
        drop(alone);
        assert_eq!(finals(&world).len(), usize::from(is_lost));
        let report = repair_by_n2(&world, true);
        assert_eq!(report.told.len(), usize::from(is_lost), "{report:?}");
        assert_eq!(finals(&world).len(), usize::from(is_lost), "{report:?}");
        if is_lost {
            fs::rename(world.at("n1/lost"), world.at("n1/ssd")).unwrap();
            let node = world.node("n1");
            Archiver { names: &node.names, places: &node.places }.sweep().unwrap();
        }
        assert!(finals(&world).is_empty());
        assert_eq!(read(&world.node("n2"), &at).as_deref(), Some(TEXT));
    }
}

/// Sets the time of a file's content.
fn set_time(path: PathBuf, seconds: u64, ns: u32) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(seconds, ns)).unwrap();
}

/// Old bytes of `n1` that were given up, and a newer copy of the file, of `n2`. Its SSD is lost, and the store.
fn older_bytes_and_a_newer_copy(of_old: (u64, u32), of_new: (u64, u32)) -> (World, EntryName) {
    let (world, at) = world();
    let other = world.node_until("n2", 5, i64::MAX);
    // Its numbers are from before those of the other node, but for those of copies.
    other.names.number().unwrap();
    set_time(world.at("n1/ssd/a/f"), of_old.0, of_old.1);
    archive(&world.node("n1"), &at).unwrap();
    lose_ssd(&world);
    assert_eq!(demote(&other, 5, &at, SHARED).unwrap(), Moved::Done(0));
    assert!(matches!(demote(&other, 5, &at, SSD).unwrap(), Moved::Done(_)));
    write(&other, 2, &at).unwrap();
    set_time(world.at("n2/ssd/a/f"), of_new.0, of_new.1);
    assert!(matches!(archive(&other, &at).unwrap(), Archived::Done(_)));
    drop(other);
    fs::rename(world.at("n2/ssd"), world.at("n2/lost")).unwrap();
    fs::rename(world.at("n1/lost"), world.at("n1/ssd")).unwrap();
    world.forget();
    (world, at)
}

/// Files that a check has set aside on the SSD of `n1` and on the shared disk.
fn set_aside(world: &World) -> Vec<String> {
    let all = ["n1/ssd", "shared"].map(|disk| world.at(disk).join(".halocline/leftovers"));
    let all = all.iter().filter_map(|at| fs::read_dir(at).ok()).flatten();
    all.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

/// The copy stands for the file, whatever the times, unless they contradict the order in which the copies were made: then both
/// are kept, too.
#[test]
fn i13_a_rebuild_takes_a_newer_copy_than_the_bytes_that_an_ssd_brings_back() {
    for (of_new, is_taken) in
        [((1000, 7), true), ((900, 0), true), ((900, 5), true), ((800, 0), false)]
    {
        let of_old = (900, u32::from(of_new == (900, 5)) * 5);
        let (world, at) = older_bytes_and_a_newer_copy(of_old, of_new);
        let report = world.repair(true);
        let case = format!("{of_new:?}: {report:?}");
        assert_eq!(
            (report.set_aside.len(), report.told.is_empty()),
            (usize::from(is_taken), is_taken),
            "{case}"
        );
        let node = world.node_until("n1", 7, i64::MAX);
        if is_taken {
            assert_eq!(read(&node, &at), None, "{case}");
            assert_eq!(demote(&node, 7, &at, SHARED).unwrap(), Moved::Done(0), "{case}");
        }
        let [now, aside] = if is_taken { [WRITTEN, TEXT] } else { [TEXT, WRITTEN] };
        assert_eq!(read(&node, &at).as_deref(), Some(now), "{case}");
        // The SSD of the other node brings its file back, which nobody has changed since.
        fs::rename(world.at("n2/lost"), world.at("n2/ssd")).unwrap();
        drop(node);
        world.repair(true);
        assert_eq!(world.tree()["/a/f"], now, "{case}");
        assert_eq!(set_aside(&world), [aside], "{case}");
    }
}

/// The newer version has no copy, and is lost with its SSD: nobody can know that, but it is told.
#[test]
fn i13_an_old_version_of_a_file_whose_copy_is_gone_is_told_of() {
    let (world, at) = older_bytes_and_a_newer_copy((900, 0), (1000, 0));
    let copies = fs::read_dir(world.at("shared/.halocline/copies/n2")).unwrap();
    copies.for_each(|copy| fs::remove_file(copy.unwrap().path()).unwrap());
    let report = world.repair(true);
    assert!(report.told.iter().any(|line| line.contains("an old version")), "{report:?}");
    assert_eq!(read(&world.node_until("n1", 7, i64::MAX), &at).as_deref(), Some(TEXT));
    // Where every SSD is reached, there is no doubt.
    let (world, _) = self::world();
    archive(&world.node("n1"), &at).unwrap();
    let copies = fs::read_dir(world.at("shared/.halocline/copies/n1")).unwrap();
    copies.for_each(|copy| fs::remove_file(copy.unwrap().path()).unwrap());
    world.forget();
    assert!(world.repair(true).told.is_empty());
}

/// The same bytes are better where they are reached.
#[test]
fn a_rebuild_takes_the_bytes_of_an_ssd_that_are_those_of_a_newer_copy() {
    let (world, at) = older_bytes_and_a_newer_copy((900, 0), (900, 0));
    let copies = world.at("shared/.halocline/copies/n2");
    let copy = fs::read_dir(copies).unwrap().next().unwrap().unwrap().path();
    fs::write(&copy, TEXT).unwrap();
    set_time(copy, 900, 0);
    let report = world.repair(true);
    assert_eq!(
        read(&world.node_until("n1", 7, i64::MAX), &at).as_deref(),
        Some(TEXT),
        "{report:?}"
    );
}

/// An SSD comes back as it was before its file was changed, and copied: nobody changes the old bytes.
#[test]
fn i13_no_copy_goes_for_older_bytes() {
    let (world, at) = world();
    let (node, path) = (world.node("n1"), world.at("n1/ssd/a/f"));
    archive(&node, &at).unwrap();
    let old = own_xattrs::number(&File::open(&path).unwrap(), own_xattrs::COPIED).unwrap();
    write(&node, 2, &at).unwrap();
    archive(&node, &at).unwrap();
    fs::write(&path, TEXT).unwrap();
    own_xattrs::set_number(&File::open(&path).unwrap(), own_xattrs::COPIED, old).unwrap();
    set_time(path.clone(), 900, 0);
    assert!(write(&node, 3, &at).is_err());
    assert!(!Copies::give_way(&node.places, Need::bytes(u64::MAX), None).unwrap());
    world.forget();
    let report = world.repair(true);
    assert_eq!((finals(&world).len(), report.set_aside.len()), (1, 1), "{report:?}");
    assert_eq!(set_aside(&world), [TEXT], "{report:?}");
}

const SECOND: i64 = 1_000_000_000;

/// Of whole seconds nobody knows what was changed in the same one, unless the numbers tell.
#[test]
fn a_version_of_a_file_has_what_a_copy_has_if_nothing_is_lost_with_the_copy() {
    let version = |size, mtime_ns, copied| Version { size, mtime_ns, copied };
    let copy = version(5, SECOND, Some(7));
    let exact = version(5, SECOND + 1, Some(7));
    for (file, copy, has) in [
        (version(5, SECOND, Some(7)), copy, true),
        (version(5, 0, Some(7)), copy, false),
        (version(6, 0, Some(7)), copy, false),
        (version(6, SECOND + 1, Some(7)), copy, true),
        (version(5, SECOND, Some(8)), copy, true),
        (version(5, 0, Some(8)), copy, false),
        (version(5, SECOND, Some(6)), copy, false),
        (version(5, 2 * SECOND, Some(6)), copy, false),
        (version(5, SECOND, None), copy, false),
        (version(5, SECOND + 1, None), copy, true),
        (version(5, SECOND + 1, Some(6)), exact, true),
        (version(5, SECOND + 1, None), exact, true),
        (version(4, SECOND + 1, None), exact, false),
    ] {
        assert_eq!(file.has(copy), has, "{file:?} {copy:?}");
    }
}
