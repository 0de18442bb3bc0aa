use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use halocline_model::namespace::InodeNumber;

use crate::places::own_xattrs;
use crate::repair::tests::{Node, World};

/// Copies with all attributes.
fn copy(world: &World, from: &str, to: &str) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(world.at(from)).arg(world.at(to));
    assert!(copy.status().unwrap().success());
}

/// Removes a directory from the store and from the shared disk; the SSDs have missed it, as one that was put back has.
fn forget_directory(world: &World, node: &Node, (above, called, path): (u64, &str, &str)) {
    node.names.remove_directory(&Node::entry(above, called)).unwrap();
    fs::remove_dir(world.at("shared").join(path)).unwrap();
}

/// Removes a file in the same way.
fn forget_file(node: &Node, directory: u64, called: &str) {
    node.names.unlink(&Node::entry(directory, called)).unwrap();
}

fn texts(world: &World) -> BTreeMap<String, String> {
    world.tree().into_iter().filter(|(_, what)| what != "directory").collect()
}

fn text<'a>(texts: &'a BTreeMap<String, String>, path: &str) -> Option<&'a str> {
    texts.get(path).map(String::as_str)
}

/// A world in which private directories `proj` and `d/proj/sub` on the SSDs were removed, and others have their names now.
/// Returns the numbers of the private ones.
fn with_removed_directories(case: &str) -> (World, [u64; 2]) {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let proj = one.mkdir(1, "proj").unwrap();
    let d = one.mkdir(1, "d").unwrap();
    let below = one.mkdir(d, "proj").unwrap();
    let sub = one.mkdir(below, "sub").unwrap();
    let other = one.mkdir(1, "other").unwrap();
    one.create(proj, "key", "secret").unwrap();
    two.create(proj, "of n2", "secret of n2").unwrap();
    one.create(sub, "key", "secret below").unwrap();
    one.create(other, "public", "for all").unwrap();
    for (directory, called) in [(proj, "key"), (proj, "of n2"), (sub, "key")] {
        forget_file(&one, directory, called);
    }
    forget_directory(&world, &one, (1, "proj", "proj"));
    forget_directory(&world, &one, (below, "sub", "d/proj/sub"));
    match case {
        "renamed" => one.rename((1, "other"), (1, "proj")).unwrap(),
        _ => drop(one.mkdir(1, "proj").unwrap()),
    }
    let new = one.mkdir(below, "sub").unwrap();
    two.create(new, "public", "for all below").unwrap();
    if case == "without numbers" {
        for path in ["proj", "d/proj/sub"] {
            let fd = File::open(world.at("shared").join(path)).unwrap();
            rustix::fs::fremovexattr(&fd, "user.halocline.directory").unwrap();
        }
    }
    (world, [proj, sub])
}

/// Regression: files of a private directory that was removed came up in the one that somebody else had made with its name, and
/// nothing was told.
#[test]
fn i15_no_directory_gets_the_files_of_one_that_was_removed() {
    for case in ["made", "renamed", "without numbers"] {
        let (world, [proj, sub]) = with_removed_directories(case);
        world.forget();
        for repairs in [false, true] {
            let report = world.repair(repairs);
            let told = report.conflicts.join("\n");
            for (path, called) in [
                ("n1/ssd/proj", format!("so it is named proj~{proj}")),
                ("n1/ssd/d/proj/sub", format!("so it is named sub~{sub}")),
            ] {
                let lines = report.conflicts.iter();
                let mut lines = lines.filter(|line| line.contains(path) && line.ends_with(&called));
                assert!(lines.next().is_some() && lines.next().is_none(), "{case}: {told}");
            }
        }
        let texts = texts(&world);
        let case = format!("{case}: {texts:?}");
        for (path, what) in [
            (format!("/proj~{proj}/key"), "secret"),
            (format!("/proj~{proj}/of n2"), "secret of n2"),
            (format!("/d/proj/sub~{sub}/key"), "secret below"),
        ] {
            assert_eq!(text(&texts, &path), Some(what), "{case}");
        }
        assert_eq!(texts.len(), 5, "{case}");
        let mode = |path: &str| {
            fs::metadata(world.at("shared").join(path)).unwrap().permissions().mode() & 0o777
        };
        for (number, path) in [(proj, format!("proj~{proj}")), (sub, format!("d/proj/sub~{sub}"))] {
            let of = world.node("n1").names.directory(InodeNumber(number)).unwrap().attributes;
            assert_eq!((of.mode & 0o777, mode(&path)), (0o700, 0o700), "{case}");
        }
        assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
        world.forget();
        let again = world.repair(true);
        assert!(again.conflicts.is_empty() && again.told.is_empty(), "{case}: {again:?}");
        assert_eq!(self::texts(&world), texts, "{case}");
    }
}

/// While the store is sound, they are files without a name, and of the directories nothing is told.
#[test]
fn i15_a_sound_store_sets_files_of_removed_directories_aside() {
    for case in ["made", "renamed"] {
        let (world, _) = with_removed_directories(case);
        for repairs in [false, true] {
            let report = world.repair(repairs);
            assert_eq!((report.named, report.set_aside.len()), ([0; 3], 3), "{case}: {report:?}");
            let is_silent = report.told.is_empty() && report.conflicts.is_empty();
            assert!(is_silent, "{case}: {report:?}");
        }
        assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
        assert_eq!(texts(&world).len(), 2);
    }
}

/// Regression: a check and a repair told that the file which the store has got another name.
#[test]
fn only_what_gets_a_name_gets_another_one() {
    for (old, new) in [("n1", "n2"), ("n2", "n1")] {
        let world = World::new();
        let (one, two) = (world.node(old), world.node_until(new, 2, i64::MAX));
        one.create(1, "x", "old").unwrap();
        copy(&world, &format!("{old}/ssd/x"), "kept");
        one.unlink(1, "x").unwrap();
        two.create(1, "x", "new").unwrap();
        copy(&world, "kept", &format!("{old}/ssd/x"));
        for repairs in [false, true] {
            let report = world.repair(repairs);
            assert!(report.conflicts.is_empty(), "{old}: {report:?}");
            assert_eq!((report.named, report.set_aside.len()), ([0; 3], 1), "{old}: {report:?}");
        }
        assert!(world.repair(false).is_clean());
        assert_eq!(text(&world.tree(), "/x"), Some("new"));
    }
}

/// Regression: a repair gave a file that somebody put on a disk the name of one that the store has, told of both, and the next
/// check differed.
#[test]
fn a_name_of_the_store_is_not_given_again() {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let d = two.mkdir(1, "d").unwrap();
    for directory in [1, d] {
        two.create(directory, "x", "of the store").unwrap();
    }
    one.create(d, "y", "makes the directory").unwrap();
    two.create(1, "taken", "by a file").unwrap();
    drop((one, two));
    for path in ["n1/ssd/x", "n1/ssd/d/x"] {
        fs::write(world.at(path), "by hand").unwrap();
    }
    fs::create_dir(world.at("shared/taken")).unwrap();
    for repairs in [false, true] {
        let report = world.repair(repairs);
        assert_eq!(report.conflicts.len(), 3, "{report:?}");
        let is_honest = |line: &String| line.contains("~NUMBER") != repairs;
        assert!(report.conflicts.iter().all(is_honest), "{report:?}");
    }
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    let before = world.tree();
    for path in ["/x", "/d/x"] {
        assert_eq!(text(&before, path), Some("of the store"));
        let beside = before.iter().find(|(other, _)| other.starts_with(&format!("{path}~")));
        assert_eq!(beside.unwrap().1, "by hand");
    }
    world.forget();
    world.repair(true);
    assert_eq!(world.tree(), before);
}

/// Regression: its files came up in the original, with other names.
#[test]
fn a_copy_by_hand_on_an_ssd_becomes_a_directory_of_its_own() {
    for copied in ["a copy", "x copy"] {
        for (case, is_forgotten) in
            [("plain", false), ("plain", true), ("renamed", false), ("emptied", false)]
        {
            let world = World::new();
            let node = world.node("n1");
            let there = node.mkdir(1, "there").unwrap();
            let sub = node.mkdir(there, "sub").unwrap();
            node.create(there, "t", "original").unwrap();
            node.create(sub, "u", "original below").unwrap();
            if case == "renamed" {
                // Two directories of the SSD have its number from now on.
                node.rename((1, "there"), (1, "renamed")).unwrap();
                node.create(there, "later", "original, too").unwrap();
            }
            drop(node);
            let before = world.tree();
            let to = format!("n1/ssd/{copied}");
            copy(&world, "n1/ssd/there", &to);
            if case == "emptied" {
                fs::remove_dir_all(world.at(&to).join("sub")).unwrap();
                fs::remove_file(world.at(&to).join("t")).unwrap();
            } else {
                fs::write(world.at(&to).join("t"), "copy").unwrap();
            }
            fs::write(world.at(&to).join("n"), "new").unwrap();
            if is_forgotten {
                world.forget();
            }
            let case = format!("{copied}, {case}, {is_forgotten}");
            for repairs in [false, true] {
                let report = world.repair(repairs);
                assert!(report.conflicts.is_empty(), "{case}: {report:?}");
                let of_their_own = report.told.iter().filter(|line| line.contains("another dir"));
                assert!(of_their_own.count() >= 1, "{case}: {report:?}");
            }
            assert!(world.repair(false).is_clean(), "{case}: {:?}", world.repair(false));
            let after = world.tree();
            assert!(before.iter().all(|(path, what)| after.get(path) == Some(what)), "{after:?}");
            assert_eq!(text(&after, &format!("/{copied}/n")), Some("new"), "{case}: {after:?}");
            if !case.contains("emptied") {
                for (path, what) in [("t", "copy"), ("sub/u", "original below")] {
                    let path = format!("/{copied}/{path}");
                    assert_eq!(text(&after, &path), Some(what), "{case}: {after:?}");
                }
            }
            world.forget();
            let again = world.repair(true);
            assert!(again.conflicts.is_empty() && again.told.is_empty(), "{case}: {again:?}");
            assert_eq!(world.tree(), after, "{case}");
        }
    }
}

/// Regression: it was removed as if a move had left it.
#[test]
fn a_copy_by_hand_of_a_file_with_a_clean_copy_stays() {
    let world = World::new();
    world.node("n1").create(1, "f", "original").unwrap();
    let fd = File::open(world.at("n1/ssd/f")).unwrap();
    own_xattrs::set_number(&fd, own_xattrs::COPIED, 7).unwrap();
    copy(&world, "n1/ssd/f", "n1/ssd/g");
    fs::write(world.at("n1/ssd/g"), "changed").unwrap();
    let report = world.repair(true);
    assert!(report.left_copies.is_empty() && report.conflicts.is_empty(), "{report:?}");
    let tree = world.tree();
    assert_eq!((text(&tree, "/f"), text(&tree, "/g")), (Some("original"), Some("changed")));
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}

/// Regression: a sound store gave them to the directory that has the name now.
#[test]
fn i15_an_ssd_that_was_away_brings_its_directories_back_as_their_own() {
    let world = World::new();
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let proj = one.mkdir(1, "proj").unwrap();
    two.create(proj, "key", "secret").unwrap();
    drop((one, two));
    fs::rename(world.at("n2"), world.at("away")).unwrap();
    world.forget();
    world.repair(true);
    let one = world.node("n1");
    forget_directory(&world, &one, (1, "proj", "proj"));
    one.mkdir(1, "proj").unwrap();
    drop(one);
    fs::rename(world.at("away"), world.at("n2")).unwrap();
    let report = world.repair(true);
    assert_eq!((report.named, report.conflicts.len()), ([1, 1, 0], 1), "{report:?}");
    let texts = texts(&world);
    assert_eq!(texts.len(), 1);
    assert_eq!(text(&texts, &format!("/proj~{proj}/key")), Some("secret"), "{texts:?}");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
}
