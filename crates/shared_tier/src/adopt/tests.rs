//! Tiers of one node, as decision 0001 has them, become shared ones; also by runs that die.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use halocline_api::file_tier::LABEL;
use halocline_cluster::names::namespace::StoredInode;
use halocline_model::namespace::{InodeNumber, ROOT};
use halocline_os::beneath::TreeCursor;
use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, Timespec, Timestamps, linkat, mknodat, openat, utimensat,
};

use super::*;
use crate::acl::DEFAULT;
use crate::repair::tests::{Node, World};

mod interrupted;
mod settings;

/// Where the disk below was at an earlier mount.
const FORMER: &str = "/was/mounted/here/hdd";
/// A default ACL that gives user 2000 everything.
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xd0\x07\0\0\x04\0\0\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
/// The time of links and pipes.
const TIME: Timespec = Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 };

/// The labels of a tier whose disk below was at these directories.
fn labels(world: &World, roots: &str) {
    for (disk, tier, roots) in [("n1/ssd", 0, roots), ("shared", 1, "")] {
        let label = format!(r#"{{"set": "s", "tier": {tier}, "roots": [{roots}]}}"#);
        fs::create_dir_all(world.at(disk).join(".halocline/intents")).unwrap();
        fs::write(world.at(disk).join(".halocline").join(LABEL), label).unwrap();
    }
}

fn made_then(path: impl AsRef<Path>) {
    let times = Timestamps { last_access: TIME, last_modification: TIME };
    utimensat(CWD, path.as_ref(), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tier that was one node's.
fn old() -> World {
    let world = World::unformatted();
    let (ssd, hdd) = (world.at("n1/ssd"), world.at("shared"));
    let below = |path: &str| hdd.join(path);
    labels(&world, &format!(r#"["{FORMER}", 1]"#));
    fs::create_dir_all(ssd.join("new/deep")).unwrap();
    fs::create_dir(ssd.join("empty")).unwrap();
    fs::create_dir_all(below("was/deep")).unwrap();
    fs::create_dir_all(below(".halocline/files")).unwrap();
    fs::write(ssd.join("hot"), "hot").unwrap();
    fs::hard_link(ssd.join("hot"), ssd.join("new/hot too")).unwrap();
    fs::write(below("cold"), "cold").unwrap();
    own_xattrs::set_number(&File::open(below("cold")).unwrap(), own_xattrs::INODE, 3).unwrap();
    symlink(below("cold"), ssd.join("cold")).unwrap();
    // A directory above it was renamed, before the whole tier was moved.
    fs::write(below("was/deep/moved"), "moved").unwrap();
    symlink(format!("{FORMER}/was/deep/moved"), ssd.join("new/deep/moved")).unwrap();
    fs::write(below(".halocline/files/7"), "path was taken").unwrap();
    symlink(below(".halocline/files/7"), ssd.join("new/taken")).unwrap();
    // Two names of one file below.
    fs::write(below("twice"), "twice").unwrap();
    symlink(format!("{}/./twice", hdd.display()), ssd.join("twice")).unwrap();
    fs::hard_link(ssd.join("twice"), ssd.join("empty too")).unwrap();
    symlink("anywhere", ssd.join("users")).unwrap();
    made_then(ssd.join("users"));
    symlink(format!("{}/.//cold", hdd.display()), ssd.join("users too")).unwrap();
    fs::set_permissions(ssd.join("new"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::write(below("by hand"), "by hand").unwrap();
    names_of_others(&world);
    settings::set_by_commands(&world);
    world
}

/// Names that files below, or directories made for them, had before.
fn names_of_others(world: &World) {
    let (ssd, hdd) = (world.at("n1/ssd"), world.at("shared"));
    // Two directories have changed their names, and a link has the name of a third one.
    for [of, text] in [["one", "other"], ["other", "one"]] {
        fs::create_dir(ssd.join(of)).unwrap();
        fs::create_dir(hdd.join(of)).unwrap();
        fs::write(hdd.join(of).join("f"), text).unwrap();
    }
    for [of, place] in [["one", "other"], ["other", "one"]] {
        symlink(hdd.join(place).join("f"), ssd.join(of).join("f")).unwrap();
    }
    symlink("new/deep", ssd.join("was")).unwrap();
    // A directory has the name of a file, whose directory was renamed.
    fs::create_dir_all(ssd.join("p/x")).unwrap();
    fs::create_dir(ssd.join("q")).unwrap();
    fs::create_dir(hdd.join("p")).unwrap();
    fs::write(hdd.join("p/x"), "of q").unwrap();
    symlink(hdd.join("p/x"), ssd.join("q/x")).unwrap();
    // The directory of that name was another one, whose owner had given it an ACL.
    fs::create_dir(hdd.join("new")).unwrap();
    let left = File::open(hdd.join("new")).unwrap();
    own_xattrs::set_users(&left, b"user.left", b"by another").unwrap();
    own_xattrs::set_users(&left, DEFAULT, ACL).unwrap();
    let kept = File::open(ssd.join("new")).unwrap();
    own_xattrs::set_users(&kept, b"user.kept", b"is its own").unwrap();
    own_xattrs::set_number(&kept, own_xattrs::DIRECTORY, 77).unwrap();
    // Links and pipes have several names, too.
    linkat(CWD, ssd.join("users"), CWD, ssd.join("p/users"), AtFlags::empty()).unwrap();
    mknodat(CWD, ssd.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WOTH, 0).unwrap();
    fs::set_permissions(ssd.join("pipe"), fs::Permissions::from_mode(0o622)).unwrap();
    linkat(CWD, ssd.join("pipe"), CWD, ssd.join("q/pipe"), AtFlags::empty()).unwrap();
    made_then(ssd.join("pipe"));
    made_then(ssd.join("q"));
}

/// How many names it has.
const NAMES: usize = 25;

fn check(world: &World) {
    let tree = world.tree();
    let text = |path: &str| tree.get(path).map(String::as_str);
    for (path, expected) in [
        ("/hot", "hot"),
        ("/new/hot too", "hot"),
        ("/cold", "cold"),
        ("/new/deep/moved", "moved"),
        ("/new/taken", "path was taken"),
        ("/twice", "twice"),
        ("/empty too", "twice"),
        ("/users", "Symlink"),
        ("/p/users", "Symlink"),
        ("/users too", "Symlink"),
        ("/pipe", "Fifo"),
        ("/q/pipe", "Fifo"),
        ("/by hand", "by hand"),
        ("/empty", "directory"),
        ("/one/f", "one"),
        ("/other/f", "other"),
        ("/was", "Symlink"),
        ("/p/x", "directory"),
        ("/q/x", "of q"),
    ] {
        assert_eq!(text(path), Some(expected), "{path}: {tree:?}");
    }
    assert_eq!(tree.len(), NAMES, "{tree:?}");
    settings::check(world);
    let node = world.node_until("n1", 900, i64::MAX);
    let lookup = |name: &str| node.names.lookup(&Node::entry(1, name)).unwrap();
    for name in ["hot", "twice", "users", "pipe"] {
        assert_eq!(lookup(name).links, 2, "{name}");
    }
    for name in ["users", "pipe"] {
        assert_eq!(lookup(name).attributes.mtime_ns, 1_000_000_000_000_000_007, "{name}");
    }
    assert_eq!(lookup("pipe").attributes.mode, 0o622);
    let StoredInode { inode, attributes, .. } = lookup("new");
    assert_eq!(attributes.mode, 0o751);
    let xattrs: Vec<_> = attributes.xattrs.into_iter().collect();
    assert_eq!(xattrs, [(b"user.kept".to_vec(), b"is its own".to_vec())]);
    let target = lookup("users too").attributes.target;
    assert!(target.ends_with(b"shared/cold"), "{target:?}");
    assert!(node.names.parent(InodeNumber(inode.0)).unwrap() == ROOT);
    // As the shared tier has them: a file has one path.
    for path in ["n1/ssd/hot", "shared/cold"] {
        assert_eq!(fs::metadata(world.at(path)).unwrap().nlink(), 1, "{path}");
    }
    let twice = ["shared/twice", "shared/empty too"].map(|path| fs::metadata(world.at(path)));
    let links: Vec<_> = twice.iter().flatten().map(MetadataExt::nlink).collect();
    assert_eq!(links, [1]);
}

#[test]
fn a_tier_of_one_node_is_adopted_and_no_byte_is_copied() {
    let world = old();
    let inode = |path: &str| fs::metadata(world.at(path)).unwrap().ino();
    let [hot, cold, moved] = ["n1/ssd/hot", "shared/cold", "shared/was/deep/moved"].map(inode);
    let dry = run(&world.at("n1"), "n1", None).unwrap();
    assert!(world.at("n1/ssd/cold").is_symlink(), "nothing was changed");
    let adopted = run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
    assert_eq!(adopted, dry);
    assert_eq!((adopted.directories, adopted.ssd_files, adopted.disk_files), (8, 2, 8));
    let new = File::open(world.at("n1/ssd/new")).unwrap();
    assert_eq!(own_xattrs::number(&new, own_xattrs::DIRECTORY), None, "nobody gave it one");
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
    check(&world);
    let q = world.node_until("n1", 901, i64::MAX).names.lookup(&Node::entry(1, "q")).unwrap();
    assert_eq!(q.attributes.mtime_ns, 1_000_000_000_000_000_007, "no program has changed it");
    let now = ["n1/ssd/hot", "shared/cold", "shared/new/deep/moved"].map(inode);
    assert_eq!(now, [hot, cold, moved]);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    // It is shared by now.
    assert!(run(&world.at("n1"), "n1", Some(&world.alone())).unwrap().is_done);
    assert!(run(&world.at("n1"), "n1", None).unwrap().is_done);
    let other = run(&world.at("n1"), "n2", Some(&world.alone())).unwrap_err().to_string();
    assert!(other.contains("give --adopt n1"), "{other}");
    // All of it is recorded on the disks.
    world.forget();
    world.repair(true);
    check(&world);
}

/// The number of a directory on a disk.
fn number(world: &World, path: &str) -> Option<u64> {
    own_xattrs::number(&File::open(world.at(path)).unwrap(), own_xattrs::DIRECTORY)
}

/// A tier with `d/f` and `d/s/g`, adopted, whose names are in the store.
fn adopted(world: &World) {
    labels(world, "");
    fs::create_dir_all(world.at("n1/ssd/d/s")).unwrap();
    fs::write(world.at("n1/ssd/d/f"), "f").unwrap();
    fs::write(world.at("n1/ssd/d/s/g"), "g").unwrap();
    run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
    world.repair(true);
}

/// What `adopted` has below a directory, and the directory.
fn below(directory: &str) -> Vec<(String, String)> {
    [("", "directory"), ("/f", "f"), ("/s", "directory"), ("/s/g", "g")]
        .map(|(path, text)| (format!("/{directory}{path}"), text.to_owned()))
        .to_vec()
}

fn has(world: &World, directory: &str) {
    let tree: Vec<_> = world.tree().into_iter().collect();
    assert_eq!(tree, below(directory));
}

/// Regression: directories on the SSD had no numbers. Once one was renamed, a check told of differences, its repair made a
/// second directory of the former name, and a rebuild gave the files their former names.
#[test]
fn a_directory_of_an_adopted_tier_may_be_renamed() {
    let world = World::unformatted();
    adopted(&world);
    for path in ["d", "d/s"] {
        let on = |disk: &str| number(&world, &format!("{disk}/{path}"));
        assert!(on("n1/ssd").is_some() && on("n1/ssd") == on("shared"), "{path}");
    }
    let node = world.node_until("n1", 902, i64::MAX);
    node.rename((1, "d"), (1, "e")).unwrap();
    drop(node);
    has(&world, "e");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    world.forget();
    let report = world.repair(true);
    assert!(report.told.is_empty(), "{report:?}");
    has(&world, "e");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// Takes the numbers away that an earlier version did not give.
fn forget_numbers(world: &World) {
    for path in ["n1/ssd/d", "n1/ssd/d/s"] {
        let fd = File::open(world.at(path)).unwrap();
        own_xattrs::clear(&fd, own_xattrs::DIRECTORY).unwrap();
    }
}

/// Where an earlier version has adopted a tier, a repair gives the numbers that the store says, also after a rename.
#[test]
fn a_repair_numbers_directories_that_an_earlier_version_adopted() {
    for is_renamed in [false, true] {
        let world = World::unformatted();
        adopted(&world);
        forget_numbers(&world);
        // Before the repair it is not closed, and its owner gave it a number of another.
        fs::set_permissions(world.at("n1/ssd/d/s"), fs::Permissions::from_mode(0o777)).unwrap();
        let mut now = "d";
        if is_renamed {
            let node = world.node_until("n1", 903, i64::MAX);
            node.rename((1, "d"), (1, "e")).unwrap();
            // Another one has the former name.
            node.mkdir(1, "d").unwrap();
            node.rename((1, "d"), (1, "z")).unwrap();
            now = "e";
        }
        let report = world.repair(false);
        assert_eq!(
            (report.relisted.len(), report.named, report.told.len()),
            (2, [0; 3], 0),
            "{report:?}"
        );
        assert_eq!(number(&world, "n1/ssd/d"), None, "nothing was changed");
        world.repair(true);
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
        assert_eq!(number(&world, "n1/ssd/d"), number(&world, &format!("shared/{now}")));
        let mode = fs::metadata(world.at("n1/ssd/d/s")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        let node = world.node_until("n1", 904, i64::MAX);
        node.rename((1, now), (1, "last")).unwrap();
        drop(node);
        world.forget();
        world.repair(true);
        let tree: Vec<_> = world.tree().into_iter().filter(|(path, _)| path != "/z").collect();
        assert_eq!(tree, below("last"));
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    }
}

/// Regression: further paths of a file stayed. Its bytes then outlived its last name, and came back with it in a rebuild.
#[test]
fn a_check_finds_further_paths_of_a_file_and_a_repair_removes_them() {
    let world = old();
    run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
    world.repair(true);
    // As an earlier version left them.
    fs::hard_link(world.at("n1/ssd/hot"), world.at("n1/ssd/new/hot too")).unwrap();
    let report = world.repair(false);
    assert!(report.left_copies.len() == 1 && !report.is_clean(), "{report:?}");
    world.repair(true);
    check(&world);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

#[test]
fn a_tier_that_is_not_in_order_is_refused_with_the_remedy() {
    let world = old();
    symlink("ssd/x", world.at("n1/ssd/.halocline/intents/1")).unwrap();
    let error = run(&world.at("n1"), "n1", Some(&world.alone())).unwrap_err().to_string();
    assert!(error.contains("not completed") && error.contains("mount it once"), "{error}");
    let fresh = World::unformatted();
    let error = run(&fresh.at("n1"), "n1", Some(&fresh.alone())).unwrap_err().to_string();
    assert!(error.contains("never mounted as a tier"), "{error}");
}

/// Regression: it got an empty tree, and could be neither adopted nor mounted alone any more: the mount's message named
/// the repair without `--adopt`.
#[test]
fn a_tier_of_one_node_is_not_rebuilt_without_its_ssd() {
    let world = old();
    let repair = |is: bool| {
        let alone = is.then(|| world.alone());
        let refused = crate::repair::run(&world.at("n1"), None, &world.store, alone.as_ref());
        refused.unwrap_err().to_string()
    };
    for is in [false, true] {
        let refused = repair(is);
        assert!(refused.contains("--adopt NODE --repair"), "{refused}");
    }
    assert!(!world.at("n1/ssd/.halocline/node").exists(), "nothing was begun");
    run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
    world.repair(true);
    check(&world);
    // What is on the SSD of nobody is not forgotten, either.
    let ssd = world.at("n1/ssd");
    fs::rename(ssd.join(".halocline/node"), world.at("kept")).unwrap();
    fs::rename(ssd.join(".halocline").join(LABEL), world.at("label")).unwrap();
    assert!(repair(true).contains("on the SSD of no node"));
    fs::write(ssd.join(".halocline/node"), "n1\nanother\n").unwrap();
    assert!(repair(true).contains("another tier's node"));
    fs::rename(world.at("kept"), ssd.join(".halocline/node")).unwrap();
    world.repair(true);
    check(&world);
}

/// Regression: it was refused. The store has no room for the paths of such files on an SSD.
#[test]
fn directories_deeper_than_paths_are_long_are_adopted() {
    let world = old();
    let step = "x".repeat(250);
    let mut cursor = TreeCursor::new(File::open(world.at("n1/ssd")).unwrap()).unwrap();
    for _ in 0..20 {
        mkdirat(cursor.directory(), step.as_str(), Mode::RWXU).unwrap();
        cursor.enter(step.as_ref()).unwrap();
    }
    let at = cursor.directory();
    for name in ["f", "g"] {
        let made = openat(at, name, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
        rustix::io::write(made, name.as_bytes()).unwrap();
    }
    linkat(at, "g", at, "h", AtFlags::empty()).unwrap();
    run(&world.at("n1"), "n1", Some(&world.alone())).unwrap();
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.told.is_empty(), "{report:?}");
    for _ in 0..2 {
        let tree = world.tree();
        let deep = vec![format!("/{step}"); 20].concat();
        for (name, text) in [("f", "f"), ("g", "g"), ("h", "g")] {
            assert_eq!(tree[&format!("{deep}/{name}")], text);
        }
        assert_eq!(tree.len(), NAMES + 23);
        assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
        world.forget();
        world.repair(true);
    }
}

/// Regression: files whose links named a directory that was renamed, or that had gone, lost their names.
#[test]
fn names_whose_files_are_not_known_are_refused_before_anything_is_changed() {
    type Spoil = fn(&World);
    let spoils: [(&str, Spoil, &str); 8] = [
        ("new/deep/moved", |world| labels(world, ""), "does not know"),
        (
            "by hand too",
            |world| {
                symlink("/gone/hdd/by hand", world.at("n1/ssd/by hand too")).unwrap();
            },
            "does not know",
        ),
        ("cold", |world| fs::remove_file(world.at("shared/cold")).unwrap(), "are not on the disk"),
        (
            "second",
            |world| symlink(world.at("shared/cold"), world.at("n1/ssd/second")).unwrap(),
            "another name's file",
        ),
        (
            "q/x",
            |world| fs::hard_link(world.at("n1/ssd/q/x"), world.at("n1/ssd/q/y")).unwrap(),
            "did not give them",
        ),
        (
            "users",
            |world| fs::write(world.at("shared/users"), "by hand").unwrap(),
            "something else has these names",
        ),
        (
            "new",
            |world| {
                fs::remove_dir(world.at("shared/new")).unwrap();
                fs::write(world.at("shared/new"), "by hand").unwrap();
            },
            "something else has these names",
        ),
        (
            "was",
            |world| fs::write(world.at("shared/was/by hand"), "by hand").unwrap(),
            "something else has these names",
        ),
    ];
    for (name, spoil, why) in spoils {
        let world = old();
        made_with_number(&world, "n1/ssd/new/deep/moved");
        spoil(&world);
        for repair in [false, true] {
            let error = run(&world.at("n1"), "n1", repair.then(|| world.alone()).as_ref())
                .unwrap_err()
                .to_string();
            assert!(error.contains(why) && error.contains(name), "{name}: {error}");
        }
        assert!(world.at("n1/ssd/users").is_symlink(), "nothing was changed");
        assert!(!world.at("shared/one/f").is_symlink() && !world.at("shared/q").exists());
    }
}

/// As the tier of one node makes its links.
fn made_with_number(world: &World, path: &str) {
    let number = Timespec { tv_sec: 0, tv_nsec: 1234 };
    let times = Timestamps { last_access: number, last_modification: number };
    utimensat(CWD, world.at(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn a_disk_below_of_another_tier_is_refused() {
    let label = |world: &World| world.at("shared/.halocline").join(LABEL);
    let refused =
        |world: &World| run(&world.at("n1"), "n1", Some(&world.alone())).unwrap_err().to_string();
    let world = old();
    fs::write(label(&world), r#"{"set": "another", "tier": 1}"#).unwrap();
    assert!(refused(&world).contains("not the disk below"), "{}", refused(&world));
    fs::remove_file(label(&world)).unwrap();
    assert!(refused(&world).contains("mount its device there first"), "{}", refused(&world));
    labels(&world, r#"["/b", 1], ["/c", 2]"#);
    assert!(refused(&world).contains("ssd and hdd alone"), "{}", refused(&world));
}
