//! Files, directories and disks that refuse what a repair wants of them.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_cluster::names::NameStore;
use halocline_testkit::small_disk::SmallDisk;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use crate::places::own_xattrs::{self, DIRECTORY, INODE};
use crate::repair::report::Report;
use crate::repair::tests::World;

/// A file or directory with a flag (`chattr(1)`), until it is dropped.
pub(crate) struct Flagged(PathBuf, IFlags);

impl Flagged {
    /// `None`, with the reason, where the file system has no such flags.
    pub(crate) fn new(path: PathBuf, flag: IFlags) -> Option<Self> {
        let file = File::open(&path).unwrap();
        let set = ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | flag));
        if let Err(error) = set {
            halocline_testkit::skipping::skip(format!("{}: {error}", path.display()));
            return None;
        }
        Some(Self(path, flag))
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        let Ok(file) = File::open(&self.0) else { return };
        let flags = ioctl_getflags(&file).unwrap();
        ioctl_setflags(&file, flags & !self.1).unwrap();
    }
}

/// What is told of a path of this node's tier.
fn told<'a>(report: &'a Report, path: &str) -> Vec<&'a String> {
    let path = path.replace("shared/", "hdd/");
    let is_about = |line: &&String| line.contains(&format!("{path}: "));
    report.told.iter().filter(is_about).collect()
}

/// A repair changes nothing more, and a check goes on saying it.
fn stays_told(world: &World, path: &str) {
    for is in [true, false, true, false] {
        let report = world.repair(is);
        let said = told(&report, path);
        assert!(
            said.len() == 1 && !report.is_clean() && report.named == [0; 3],
            "{path}: {report:?}"
        );
        let remedy = ["chattr -i -a", "for writing", "free some"];
        assert!(remedy.iter().any(|remedy| said[0].contains(remedy)), "{said:?}");
    }
}

fn write(world: &World, path: &str) {
    fs::create_dir_all(world.at(path).parent().unwrap()).unwrap();
    fs::write(world.at(path), path).unwrap();
}

/// Regression: one such file ended each repair with a bare "Operation not permitted", and all mounts were refused.
#[test]
fn what_cannot_be_numbered_gets_no_name_and_keeps_nothing_else_from_it() {
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        for (fixed, file) in
            [("n1/ssd/r", "n1/ssd/r"), ("shared/r", "shared/r"), ("shared/d", "shared/d/e/r")]
        {
            let world = World::new();
            world.node("n1").create(1, "f", "f").unwrap();
            write(&world, file);
            write(&world, "n1/ssd/other");
            let Some(flagged) = Flagged::new(world.at(fixed), flag) else { return };
            let before = world.repair(false);
            let report = world.repair(true);
            assert_eq!(report.named, [0, 1, 0], "{report:?}");
            assert_eq!(before.named, report.named, "{before:?}");
            let paths: Vec<_> = world.tree().into_keys().collect();
            assert_eq!(paths, ["/f", "/other"]);
            stays_told(&world, fixed);
            drop(flagged);
            world.repair(true);
            assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
            let below = file.split_once('/').unwrap().1.trim_start_matches("ssd/");
            assert_eq!(world.tree()[&format!("/{below}")], file);
        }
    }
}

/// What says on its disk already what it is needs nothing of it.
#[test]
fn a_rebuild_takes_what_cannot_be_changed_and_has_its_number() {
    let world = World::new();
    let node = world.node("n1");
    let d = node.mkdir(1, "d").unwrap();
    node.create(d, "f", "f").unwrap();
    node.create_on_shared(d, "g", "g").unwrap();
    node.link((d, "g"), (1, "h")).unwrap();
    drop(node);
    let all = ["n1/ssd/d/f", "shared/d/g", "shared/d"];
    let flagged: Vec<_> =
        all.iter().filter_map(|path| Flagged::new(world.at(path), IFlags::IMMUTABLE)).collect();
    if flagged.len() < all.len() {
        return;
    }
    let before = world.tree();
    world.forget();
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
    assert_eq!(world.tree(), before);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// A directory without a number, in which files have theirs: without it they would be files that have lost their names.
#[test]
fn a_rebuild_that_would_lose_names_is_refused_before_it_changes_anything() {
    let world = World::new();
    let node = world.node("n1");
    let d = node.mkdir(1, "d").unwrap();
    node.create(d, "f", "f").unwrap();
    drop(node);
    let path = world.at("shared/d");
    own_xattrs::clear(&File::open(&path).unwrap(), DIRECTORY).unwrap();
    own_xattrs::clear(&File::open(world.at("n1/ssd/d")).unwrap(), DIRECTORY).unwrap();
    let Some(flagged) = Flagged::new(path, IFlags::IMMUTABLE) else { return };
    world.forget();
    let alone = world.alone();
    for _ in 0..2 {
        let state = world.store.refresh().unwrap();
        let peers = world.peers();
        let refused = crate::repair::run(&world.at("n1"), Some(&peers), &world.store, Some(&alone));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("n1/ssd/d/f: its names would be lost")
                && refused.contains("hdd/d: ")
                && refused.contains("chattr -i -a"),
            "{refused}"
        );
        assert_eq!(world.store.refresh().unwrap(), state);
        assert!(!world.at("shared/.halocline/check/rebuilding").exists());
    }
    drop((flagged, alone));
    world.repair(true);
    assert_eq!(world.tree()["/d/f"], "f");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// The SSD of n1 on a file system of its own.
fn on_small_disk(world: &World) -> Option<SmallDisk> {
    SmallDisk::over(world.at("n1/ssd"), 4 << 20)
}

fn remount(disk: &Path, how: &str) {
    let options = format!("remount,{how}");
    let done = Command::new("mount").args(["-o", &options]).arg(disk).status().unwrap();
    assert!(done.success());
}

/// Regression: an SSD that is read only ended each repair, and each rebuild.
#[test]
fn an_ssd_that_is_read_only_keeps_no_other_names_from_being_built() {
    let world = World::unformatted();
    let Some(small) = on_small_disk(&world) else { return };
    let world = world.formatted();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let d = one.mkdir(1, "d").unwrap();
    one.create(d, "f", "f").unwrap();
    one.create(d, "g", "g").unwrap();
    one.link((d, "g"), (1, "h")).unwrap();
    two.create(d, "of n2", "of n2").unwrap();
    drop((one, two));
    write(&world, "n1/ssd/hand");
    write(&world, "n2/ssd/hand too");
    remount(small.path(), "ro");
    let report = world.repair(true);
    assert_eq!(report.named, [0, 1, 0], "{report:?}");
    stays_told(&world, "n1/ssd/hand");
    remount(small.path(), "rw");
    let before = world.tree();
    assert_eq!(before.len(), 6);
    remount(small.path(), "ro");
    world.forget();
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.len() == 1, "{report:?}");
    remount(small.path(), "rw");
    assert_eq!(world.tree(), before);
    world.repair(true);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// A copy that is left by a move stays as long as the file says that it arrives: else the file would be one that was removed.
#[test]
fn a_copy_stays_while_its_file_says_that_it_is_moved() {
    let world = World::new();
    let node = world.node("n1");
    let number = node.create(1, "f", "f").unwrap();
    drop(node);
    // As if the move back had ended, and the file's disk had become read only.
    fs::copy(world.at("n1/ssd/f"), world.at("shared/f")).unwrap();
    for (path, what) in [("n1/ssd/f", own_xattrs::ARRIVING), ("shared/f", own_xattrs::LEAVING)] {
        let file = File::open(world.at(path)).unwrap();
        own_xattrs::set_number(&file, INODE, number).unwrap();
        own_xattrs::set_number(&file, what, 9).unwrap();
    }
    let Some(flagged) = Flagged::new(world.at("n1/ssd/f"), IFlags::IMMUTABLE) else { return };
    let report = world.repair(true);
    assert_eq!(told(&report, "n1/ssd/f").len(), 1, "{report:?}");
    assert!(report.left_copies.is_empty() && world.at("shared/f").exists(), "{report:?}");
    world.forget();
    world.repair(true);
    assert_eq!(world.tree()["/f"], "f");
    drop(flagged);
    world.repair(true);
    let copies = ["n1/ssd/f", "shared/f"].into_iter().filter(|path| world.at(path).exists());
    assert_eq!(copies.count(), 1);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    world.forget();
    world.repair(true);
    assert_eq!(world.tree()["/f"], "f");
}

/// Each step after the names: what is refused there stops nothing either, and a repair does not say that it did it.
#[test]
fn what_cannot_be_put_right_is_told_and_the_rest_is() {
    let world = World::new();
    let node = world.node("n1");
    let [d, e] = ["d", "e"].map(|name| node.mkdir(1, name).unwrap());
    node.create(d, "f", "f").unwrap();
    node.create(e, "g", "g").unwrap();
    drop(node);
    for (directory, name) in [("d", "x"), ("e", "y")] {
        symlink("nowhere", world.at("shared").join(directory).join(name)).unwrap();
    }
    let Some(flagged) = Flagged::new(world.at("shared/d"), IFlags::IMMUTABLE) else { return };
    let report = world.repair(true);
    assert_eq!(told(&report, "shared/d/x").len(), 1, "{report:?}");
    assert!(report.set_aside.iter().all(|line| line.ends_with("hdd/e/y")), "{report:?}");
    assert!(!world.at("shared/e/y").is_symlink() && report.set_aside.len() == 1, "{report:?}");
    assert!(!world.repair(false).is_clean());
    drop(flagged);
    world.repair(true);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// Regression: "see that the store answers, and that no other check runs" was all that a check said of it.
#[test]
fn a_repair_that_fails_in_a_sound_store_leaves_it_to_the_mounts() {
    let world = World::new();
    world.node("n1").create(1, "f", "f").unwrap();
    // What is no note of a node that is missing cannot be removed as one.
    let missing = world.at("shared/.halocline/check/missing");
    fs::create_dir_all(missing.join("n7")).unwrap();
    let alone = world.alone();
    let failed = crate::repair::run(&world.at("n1"), None, &world.store, Some(&alone));
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("check/missing/n7"), "{failed}");
    drop(alone);
    assert_eq!(world.tree()["/f"], "f");
    fs::remove_dir(missing.join("n7")).unwrap();
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// Regression: a check said only "see that the store answers, and that no other check runs", though neither was at fault, and a
/// repair was all that was needed.
#[test]
fn a_check_says_that_a_repair_was_killed_or_who_repairs() {
    let world = World::new();
    world.node("n1").create(1, "f", "f").unwrap();
    world.repair(true);
    let check = || crate::repair::run(&world.at("n1"), None, &world.store, None);
    // As a repair leaves it that was killed.
    world.store.begin_epoch(true).unwrap();
    let alone = world.alone();
    let told = check().unwrap_err().to_string();
    let own = format!("being put in order, by process {}", std::process::id());
    assert!(told.contains(&own) && told.contains("wait until"), "{told}");
    drop(alone);
    let told = check().unwrap_err().to_string();
    assert!(told.contains("ended before it was done") && told.contains("--repair"), "{told}");
    world.repair(true);
    assert!(check().unwrap().is_clean());
}

/// Regression: a check said that `--repair` gives it its number.
#[test]
fn an_ssd_directory_that_can_be_given_no_number_is_told_with_the_remedy() {
    let world = World::new();
    let node = world.node("n1");
    let d = node.mkdir(1, "d").unwrap();
    node.create(d, "f", "f").unwrap();
    drop(node);
    let path = world.at("n1/ssd/d");
    own_xattrs::clear(&File::open(&path).unwrap(), DIRECTORY).unwrap();
    assert_eq!(world.repair(false).relisted.len(), 1);
    let Some(flagged) = Flagged::new(path, IFlags::IMMUTABLE) else { return };
    for is in [false, true, false] {
        let report = world.repair(is);
        let said = told(&report, "n1/ssd/d");
        assert!(report.relisted.is_empty() && report.told.len() == 1, "{report:?}");
        assert!(said[0].contains("gets no number") && said[0].contains("chattr -i -a"), "{said:?}");
    }
    drop(flagged);
    world.repair(true);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// Regression: only the number of its directory was told.
#[test]
fn a_lost_file_of_the_shared_disk_is_told_with_its_path() {
    let world = World::new();
    let node = world.node("n1");
    let d = node.mkdir(1, "d").unwrap();
    node.create_on_shared(d, "g", "g").unwrap();
    node.create_on_shared(1, "h", "h").unwrap();
    drop(node);
    for path in ["shared/d/g", "shared/h"] {
        fs::remove_file(world.at(path)).unwrap();
    }
    let lost = world.repair(false).lost;
    assert_eq!(
        lost,
        ["d/g (should be on the shared disk at d/g)", "h (should be on the shared disk at h)"]
    );
}
