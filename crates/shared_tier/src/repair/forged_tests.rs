//! Forged numbers and names on the disks: copies made by `cp -a` past the mounts, or made to do harm.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use halocline_model::namespace::Name;
use halocline_os::bounded;
use halocline_vfs::namespace::xattr;
use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::tests::{Node, World, name};
use crate::places::own_xattrs;

/// Copies a directory or file as `cp -a` does, with all attributes.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
    let [from, to] = [from, to].map(|path| File::open(path).unwrap());
    for name in xattr::list_on(&from).unwrap().split(|byte| *byte == 0) {
        let name = std::ffi::OsStr::from_bytes(name);
        if !name.is_empty() {
            xattr::set_on(&to, name, &xattr::get_on(&from, name).unwrap(), 0).unwrap();
        }
    }
}

/// A directory with a file on the shared disk and one on an SSD.
fn with_a_directory() -> World {
    let world = World::new();
    let node = world.node("n1");
    let victim = node.mkdir(1, "victim").unwrap();
    let below = node.mkdir(victim, "below").unwrap();
    node.create_on_shared(victim, "file", "on the disk").unwrap();
    node.create_on_shared(below, "file", "further down").unwrap();
    node.create(victim, "local", "on an SSD").unwrap();
    world
}

/// Everything that was there before is still there, unchanged.
#[track_caller]
fn keeps_all(world: &World, before: &std::collections::BTreeMap<String, String>) {
    let report = world.repair(true);
    assert_eq!(report.lost, [""; 0], "{report:?}");
    let after = world.tree();
    for (path, what) in before {
        assert_eq!(after.get(path), Some(what), "{path}: {after:?}");
    }
    let again = world.repair(false);
    assert!(again.is_clean(), "{again:?}");
}

#[test]
fn a_copy_of_a_directory_takes_nothing_from_the_original() {
    // Names that sort before and after the original.
    for copied in ["a copy", "x copy"] {
        for is_forgotten in [false, true] {
            let world = with_a_directory();
            let before = world.tree();
            copy(&world.at("shared/victim"), &world.at("shared").join(copied));
            if is_forgotten {
                world.forget();
            }
            keeps_all(&world, &before);
            let after = world.tree();
            for (path, what) in [("file", "on the disk"), ("below/file", "further down")] {
                let path = format!("/{copied}/{path}");
                assert_eq!(after.get(&path).map(String::as_str), Some(what), "{after:?}");
            }
        }
    }
}

#[test]
fn a_file_of_somebody_else_with_the_number_of_another_takes_nothing_from_it() {
    for forged in ["a", "x"] {
        let world = with_a_directory();
        let before = world.tree();
        let path = world.at("shared").join(forged);
        copy(&world.at("shared/victim/file"), &path);
        fs::write(&path, "forged").unwrap();
        // If we may not change the owner, it is one more copy of the same owner.
        let _other = std::os::unix::fs::chown(&path, Some(1234), None);
        keeps_all(&world, &before);
        let after = world.tree();
        assert_eq!(after.get(&format!("/{forged}")).map(String::as_str), Some("forged"));
    }
}

#[test]
fn names_that_others_may_have_listed_are_believed_only_where_they_may_make_names() {
    // Modes of one of our files, and of the directory in which it lists a name.
    let cases = [
        (0o644, 0o755, true),
        (0o664, 0o755, false),
        (0o666, 0o755, false),
        (0o664, 0o775, true),
        (0o666, 0o775, false),
        (0o666, 0o777, true),
    ];
    for (file_mode, directory_mode, is_believed) in cases {
        let world = World::new();
        let node = world.node("n1");
        let place = node.mkdir(1, "place").unwrap();
        let other = node.mkdir(1, "other").unwrap();
        node.create_on_shared(place, "file", "text").unwrap();
        node.link((place, "file"), (other, "ls")).unwrap();
        let set = |path: &str, mode: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(world.at(path), mode).unwrap();
        };
        set("shared/place/file", file_mode);
        set("shared/other", directory_mode);
        world.forget();
        world.repair(true);
        let tree = world.tree();
        assert_eq!(tree["/place/file"], "text");
        let case = format!("{file_mode:o} {directory_mode:o}: {tree:?}");
        assert_eq!(tree.contains_key("/other/ls"), is_believed, "{case}");
    }
}

/// Regression: a further name that a user gives to a file that others may write to, in a directory of that user, made each
/// check end with 1 for good; and a rebuild that did not give it back said so no better.
#[test]
fn a_name_that_a_rebuild_would_not_give_back_is_no_difference() {
    let world = World::new();
    let node = world.node("n1");
    let (place, mine) = (node.mkdir(1, "place").unwrap(), node.mkdir(1, "mine").unwrap());
    node.create_on_shared(place, "f", "text").unwrap();
    node.link((place, "f"), (mine, "g")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(world.at("shared/place/f"), mode).unwrap();
    let (at, names) = (Node::entry(place, "f"), &node.names);
    let opened = |of: &mut halocline_cluster::names::attributes::Attributes| {
        of.mode = 0o666;
        Ok(())
    };
    names.attributes().update_of((&at, names.lookup(&at).unwrap().inode), opened).unwrap();
    for repair in [false, true, false] {
        let report = world.repair(repair);
        assert!(report.is_clean() && report.told.is_empty(), "{report:?}");
        assert!(report.not_rebuilt.len() == 1 && report.not_rebuilt[0].starts_with("mine/g: "));
    }
    assert_eq!(world.tree()["/mine/g"], "text");
    world.forget();
    let report = world.repair(true);
    let is_told = report.not_rebuilt.len() == 1 && report.not_rebuilt[0].contains(" name g back");
    assert!(is_told, "{report:?}");
    assert!(!world.tree().contains_key("/mine/g"));
    let again = world.repair(false);
    assert!(again.is_clean() && again.not_rebuilt.is_empty(), "{again:?}");
}

/// Regression: root had moved it into a private directory, and it came back under its former name, which everybody reaches; only the
/// names that it had lost were told.
#[test]
fn a_name_that_a_file_no_longer_had_is_told() {
    let world = World::new();
    let node = world.node("n1");
    let private = node.mkdir(1, "private").unwrap();
    let file = node.create(1, "x", "a user's").unwrap();
    let place = node.names.lookup(&Node::entry(1, "x")).unwrap().attributes.location.unwrap();
    let names = ["y", "z"].map(|called| (private, name(called)));
    node.places.listed_names().set(&place, file, &names).unwrap();
    if std::os::unix::fs::chown(world.at("n1/ssd/x"), Some(1234), None).is_err() {
        return;
    }
    world.forget();
    for repair in [false, true] {
        let told = world.repair(repair).not_rebuilt;
        let is_told = told.iter().any(|line| line.contains("/ssd/x: it gets the name x, by which"));
        assert!(is_told && told.len() == 3, "{told:?}");
    }
    assert_eq!(world.tree()["/x"], "a user's");
}

/// Regression: who may write a file, for example because it is open to everybody, listed another file's name with it, and
/// had that after a rebuild. The name of the forged file comes before and after that of the other one.
#[test]
fn a_list_takes_no_name_from_a_file_that_lies_there() {
    for (forged, uid) in [("a", None), ("z", None), ("a", Some(1234)), ("z", Some(1234))] {
        let world = World::new();
        let node = world.node("n1");
        let place = node.mkdir(1, "place").unwrap();
        node.create_on_shared(place, "config", "of its owner").unwrap();
        node.create_on_shared(place, forged, "forged").unwrap();
        let path = world.at("shared/place").join(forged);
        let list = File::open(&path).unwrap();
        own_xattrs::add_name(&list, place, &Name::from(b"config".as_slice())).unwrap();
        // If we may not change the owner, it is one more file of the same owner.
        let _other = std::os::unix::fs::chown(&path, uid, None);
        world.forget();
        world.repair(true);
        let tree = world.tree();
        assert_eq!(tree["/place/config"], "of its owner", "{tree:?}");
        assert!(tree.values().any(|text| text == "forged"), "{tree:?}");
    }
}

/// Whoever may make directories makes such a path by moving one into another. Regression: nothing was rebuilt.
#[test]
fn a_path_longer_than_programs_can_give_is_rebuilt_and_told_by_its_ends() {
    let world = with_a_directory();
    let step = "x".repeat(250);
    let mut above = File::open(world.at("shared/victim")).unwrap();
    for _ in 0..17 {
        mkdirat(&above, &step, Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        above = openat(&above, &step, flags, Mode::empty()).unwrap().into();
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let forged = openat(&above, "forged", flags, Mode::RUSR).unwrap();
    own_xattrs::set_number(&forged, own_xattrs::INODE, 1 << 40).unwrap();
    world.forget();
    let report = {
        let (peers, alone) = (world.peers(), world.alone());
        super::run(&world.at("n1"), Some(&peers), &world.store, Some(&alone)).unwrap()
    };
    let told = report.told.join("\n");
    let is_told = ["/victim/xxx", " ... ", "xxx/forged (4280 bytes): it says that it is a file"];
    assert!(is_told.iter().all(|part| told.contains(part)) && told.len() < 1000, "{told}");
    let tree = world.tree();
    assert_eq!(tree["/victim/file"], "on the disk");
    assert_eq!(tree[&format!("/victim/{}/forged", vec![step.as_str(); 17].join("/"))], "");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

#[test]
fn names_listed_at_the_root_of_an_open_ssd_are_no_better_than_others() {
    for (root_mode, is_believed) in [(0o700, true), (0o755, false)] {
        let world = World::new();
        let node = world.node("n1");
        let other = node.mkdir(1, "other").unwrap();
        node.create(1, "file", "text").unwrap();
        node.link((1, "file"), (other, "ls")).unwrap();
        let set = |path: &str, mode: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(world.at(path), mode).unwrap();
        };
        set("n1/ssd/file", 0o666);
        set("n1/ssd", root_mode);
        world.forget();
        world.repair(true);
        let tree = world.tree();
        assert_eq!(tree["/file"], "text");
        assert_eq!(tree.contains_key("/other/ls"), is_believed, "{root_mode:o}: {tree:?}");
    }
}

#[test]
fn claims_of_others_give_them_nothing() {
    let world = World::new();
    let node = world.node("n1");
    let a = node.mkdir(1, "a").unwrap();
    let f = node.create(a, "f", "true").unwrap();
    let before = world.tree();
    // Copies of existing files, as `cp -a` makes them past the mount, with numbers and names.
    let put = |path: &str, number: u64, names: &[(u64, Name)]| {
        fs::write(world.at(path), "forged").unwrap();
        let file = File::open(world.at(path)).unwrap();
        own_xattrs::set_number(&file, own_xattrs::INODE, number).unwrap();
        if !names.is_empty() {
            own_xattrs::set_names(&file, names).unwrap();
        }
        file
    };
    put("shared/forged", f, &[(a, name("planted"))]);
    put("shared/future", 1 << 63, &[(a, name("planted too"))]);
    fs::create_dir(world.at("shared/other")).unwrap();
    let other = File::open(world.at("shared/other")).unwrap();
    own_xattrs::set_number(&other, own_xattrs::DIRECTORY, 1).unwrap();
    std::os::unix::fs::chown(world.at("shared/other"), Some(1234), None).unwrap_or(());
    fs::write(world.at("shared/x\u{1}\n"), "odd").unwrap();
    let long = std::ffi::OsStr::from_bytes(&[0xff; 255]);
    fs::write(world.at("shared").join(long), "bytes").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, world.at("shared/fifo"), rustix::fs::Mode::RUSR).unwrap();
    symlink("/etc", world.at("shared/etc")).unwrap();
    symlink("/etc", world.at("n1/ssd/etc")).unwrap();
    for forgets in [false, true] {
        if forgets {
            world.forget();
        }
        world.repair(true);
        let after = world.tree();
        for (path, what) in &before {
            assert_eq!(after.get(path), Some(what), "{path}: {after:?}");
        }
        assert_eq!(after.values().filter(|what| *what == "true").count(), 1);
        assert!(!after.keys().any(|path| path.starts_with("/etc/")), "no link is followed");
        let lookup = node.names.lookup(&Node::entry(a, "f"));
        drop(lookup);
    }
    assert!(world.at("n1/ssd/etc").is_symlink(), "left alone");
}

/// It may as well be what an SSD that was put back has of a file that has left it. Its bytes are kept in any case.
#[test]
fn a_copy_on_another_ssd_is_set_aside_and_becomes_a_file_in_a_rebuild() {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node("n2"));
    let d = one.mkdir(1, "d").unwrap();
    one.create(d, "f", "f").unwrap();
    two.create(d, "g", "g").unwrap();
    drop((one, two));
    let before = world.tree();
    let copy = || {
        let mut copy = std::process::Command::new("cp");
        copy.arg("-a").args([world.at("n1/ssd/d/f"), world.at("n2/ssd/d/copy")]);
        assert!(copy.status().unwrap().success());
    };
    copy();
    let report = world.repair(true);
    assert!(report.set_aside.len() == 1 && report.named == [0; 3], "{report:?}");
    assert_eq!(world.tree(), before);
    let left = fs::read_dir(world.at("n2/ssd/.halocline/leftovers")).unwrap();
    let left: Vec<_> = left.map(|one| bounded::read(&one.unwrap().path(), 9).unwrap()).collect();
    assert_eq!(left, [b"f"]);
    copy();
    world.forget();
    world.repair(true);
    assert_eq!(world.tree()["/d/copy"], "f");
    assert_eq!(world.tree().len(), before.len() + 1);
}
