use std::fs::{self, File};

use crate::places::own_xattrs;
use crate::repair::tests::World;

/// What users put before a directory's number. Some alone are no names, or ours.
const BEFORE_NUMBERS: [&str; 7] = ["", ".", "..", "d", ".halocline", ".halocline-cluster", "a~1"];

/// A tree in which users have given directories such names, in the root and below.
fn named_by_users() -> World {
    let world = World::new();
    let node = world.node("n1");
    let below = node.mkdir(1, "below").unwrap();
    for directory in [1, below] {
        for before in BEFORE_NUMBERS {
            let number = node.mkdir(directory, "new").unwrap();
            node.rename((directory, "new"), (directory, &format!("{before}~{number}"))).unwrap();
            node.create(number, "file", before).unwrap();
        }
    }
    world
}

/// A sound store's tree is clean, and a rebuild gives the same one.
#[track_caller]
fn is_built_again(world: &World) {
    let before = world.tree();
    for forgets in [false, true] {
        let check = world.repair(false);
        assert!(check.is_clean(), "{forgets}: {check:?}");
        if !forgets {
            world.forget();
            let report = world.repair(true);
            assert!(report.conflicts.is_empty() && report.told.is_empty(), "{report:?}");
            assert_eq!(world.tree(), before);
        }
    }
}

/// Regression: such a directory lost its number in a rebuild, which one without a name then refused.
#[test]
fn directories_whose_users_name_them_by_their_numbers_keep_these_names() {
    is_built_again(&named_by_users());
}

/// Regression: a store that was lost could not be built again.
#[test]
fn names_of_earlier_versions_stop_no_rebuild() {
    let world = named_by_users();
    let before = world.tree();
    for shared in [world.at("shared"), world.at("shared/below")] {
        for entry in fs::read_dir(shared).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() && entry.file_name() != ".halocline" {
                own_xattrs::clear_directory_name(&File::open(entry.path()).unwrap()).unwrap();
            }
        }
    }
    let check = world.repair(false);
    assert!(check.is_clean(), "the store says what they are called: {check:?}");
    // As by an earlier version: nothing is recorded yet, and only names that are none keep their numbers.
    world.forget();
    world.repair(true);
    let after = world.tree();
    for directory in ["/", "/below/"] {
        for kept in ["~", ".~", "..~"] {
            let begin = format!("{directory}{kept}");
            let count = |tree: &std::collections::BTreeMap<String, String>| {
                tree.keys().filter(|path| path.starts_with(&begin)).count()
            };
            assert_eq!(count(&after), count(&before), "{begin} {after:?}");
        }
    }
    assert!(!after.contains_key("/.halocline") && after.contains_key("/below/.halocline"));
    assert_eq!(after.values().filter(|what| *what == "..").count(), 2);
    is_built_again(&world);
}

/// Regression: each repair put it elsewhere, and said so.
#[test]
fn a_directory_by_hand_beside_a_file_is_called_what_the_repair_called_it() {
    let world = World::new();
    world.node("n1").create(1, "e", "file").unwrap();
    fs::create_dir(world.at("shared/e")).unwrap();
    fs::write(world.at("shared/e/x"), "by hand").unwrap();
    world.repair(true);
    let tree = world.tree();
    let numbered: Vec<_> = tree.keys().filter(|path| path.starts_with("/e~")).collect();
    assert_eq!((numbered.len(), tree["/e"].as_str()), (2, "file"), "{tree:?}");
    is_built_again(&world);
    // Its name stays after the file is gone.
    world.node_until("n1", 2, i64::MAX).unlink(1, "e").unwrap();
    is_built_again(&world);
}

/// A directory that lies beside its name is called by that, and a user may give it the other one afterwards.
#[test]
fn what_the_tool_and_what_a_user_named_differ() {
    let world = World::new();
    let node = world.node("n1");
    let file = node.create_on_shared(1, "d", "was here").unwrap();
    node.link((1, "d"), (1, "other")).unwrap();
    node.unlink_name(1, "d", file, "other");
    let number = node.mkdir(1, "d").unwrap();
    let numbered = format!("d~{number}");
    assert!(world.at("shared").join(&numbered).is_dir());
    is_built_again(&world);
    let node = world.node_until("n1", 2, i64::MAX);
    node.rename((1, "d"), (1, &numbered)).unwrap();
    assert!(world.tree().contains_key(&format!("/{numbered}")));
    is_built_again(&world);
    let node = world.node_until("n1", 3, i64::MAX);
    node.rename((1, &numbered), (1, "d")).unwrap();
    is_built_again(&world);
}
