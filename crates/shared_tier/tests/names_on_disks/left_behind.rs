//! What nodes leave on the disks: files that the store has removed, because a node died before it took them away, and
//! files with several names whose bytes are in a directory that is removed.

use std::fs;

use crate::disks::{self, Disks, NODES, tree};
use crate::mounted::{Act, Mounted};

/// A node; another one has died after the store removed the file `a/f`, and before it took the file away.
fn left_at_a_name(disks: &Disks) -> Mounted {
    let mounted = Mounted::new(disks, false);
    mounted.mkdir("a").unwrap();
    mounted.create("a/f", "removed").unwrap();
    let [file, kept] = ["shared/a/f", "kept"].map(|path| disks.at(path));
    fs::hard_link(&file, &kept).unwrap();
    mounted.unlink("a/f").unwrap();
    fs::rename(&kept, &file).unwrap();
    mounted
}

/// Regression: the name led to the file that was left, and a number was put behind that of the new one.
#[test]
fn a_new_file_keeps_its_name_beside_one_that_was_left_there_though_the_store_forgot_everything() {
    let disks = Disks::new();
    let mounted = left_at_a_name(&disks);
    mounted.create("a/f", "new").unwrap();
    mounted.tier.close().unwrap();
    drop(mounted);
    disks.forget();
    disks.repair();
    let found = disks::tree(&Mounted::new(&disks, false).tier);
    assert_eq!(found.get("/a/f").map(String::as_str), Some("new"), "{found:?}");
    assert!(found.values().any(|text| text == "removed"), "nothing is lost: {found:?}");
}

/// Regression: a repair tried to give a directory its name, which the file had, then the place that it had already, and
/// ended with "file exists". No node could mount the tier then.
#[test]
fn a_directory_stays_beside_a_file_that_was_left_at_its_name() {
    let disks = Disks::new();
    let mounted = left_at_a_name(&disks);
    mounted.mkdir("a/f").unwrap();
    mounted.create("a/f/below", "new").unwrap();
    let wanted = disks::tree(&mounted.tier);
    mounted.tier.close().unwrap();
    drop(mounted);
    disks.repair();
    disks.are_as_in_store("a file left at a directory's name");
    assert_eq!(disks::tree(&Mounted::new(&disks, false).tier), wanted);
}

/// Each takes the name `a/linked`, where the bytes are on the shared disk, from the file with several names.
const LOSSES: [(&str, Act); 9] = [
    ("unlink", |on| on.unlink("a/linked")),
    ("rename", |on| on.rename("a/linked", "b/new", 0)),
    ("rename of a file over it", |on| on.rename("a/f", "a/linked", 0)),
    ("rename of another file over it", |on| on.rename("b/g", "a/linked", 0)),
    ("rename of one of two names over it", |on| on.rename("b/twice", "a/linked", 0)),
    ("rename of a link over it", |on| on.rename("a/symlink", "a/linked", 0)),
    ("rename of another link over it", |on| on.rename("b/symlink", "a/linked", 0)),
    ("exchange with a link", |on| on.rename("b/symlink", "a/linked", libc::RENAME_EXCHANGE)),
    ("exchange with a file", |on| on.rename("b/g", "a/linked", libc::RENAME_EXCHANGE)),
];

/// Regression, of the losses to a link: the bytes stayed in the directory, which the store no longer had, and the file
/// could not be read.
#[test]
fn bytes_of_a_file_with_several_names_leave_a_directory_before_it_is_removed() {
    for (what, lose) in LOSSES {
        let disks = Disks::new();
        let mounted = Mounted::new(&disks, false);
        mounted.fill();
        mounted.create("b/once", "twice").unwrap();
        mounted.link("b/once", "b/twice").unwrap();
        lose(&mounted).unwrap();
        for name in ["below/h", "f", "linked", "symlink"] {
            match mounted.unlink(&format!("a/{name}")) {
                Err(error) if error.errno() == libc::ENOENT => {}
                done => done.unwrap(),
            }
        }
        mounted.rmdir("a/below").unwrap();
        mounted.rmdir("a").unwrap();
        let wanted = disks::tree(&mounted.tier);
        assert_eq!(wanted.get("/b/linked").map(String::as_str), Some("a/linked"), "{what}");
        mounted.tier.close().unwrap();
        drop(mounted);
        disks.are_as_in_store(what);
        disks.forget();
        disks.repair();
        assert_eq!(disks::tree(&Mounted::new(&disks, false).tier), wanted, "{what}");
    }
}

/// Regression: the bytes of a file with another name stay on the SSD in the directory of the one that it has lost, for which
/// a check wanted that directory back, and a repair made it.
#[test]
fn i15_a_removed_directory_whose_file_has_another_name_stays_removed() {
    for remover in NODES {
        let disks = Disks::new();
        let one = Mounted::new(&disks, true);
        for directory in ["d", "d/below", "e"] {
            one.mkdir(directory).unwrap();
        }
        for (file, link) in [("d/f", "e/f"), ("d/below/g", "e/g")] {
            one.create(file, file).unwrap();
            one.link(file, link).unwrap();
        }
        let two = Mounted::of_node(&disks, NODES[1], true);
        let by = if remover == NODES[0] { &one } else { &two };
        for file in ["d/f", "d/below/g"] {
            by.unlink(file).unwrap();
        }
        for directory in ["d/below", "d"] {
            by.rmdir(directory).unwrap();
        }
        let wanted = tree(&one.tier);
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["/e", "/e/f", "/e/g"]);
        for node in [one, two] {
            node.tier.close().unwrap();
        }
        disks.are_as_in_store(&format!("removed by {remover}"));
        disks.repair();
        assert_eq!(tree(&Mounted::new(&disks, true).tier), wanted, "removed by {remover}");
    }
}
