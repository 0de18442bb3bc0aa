//! Two nodes change one name in the store, and follow on the disk in the other order.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use halocline_cluster::names::attributes::Kind;
use halocline_model::namespace::{Flags, Name};
use halocline_vfs::SetAttr;

use super::*;
use crate::repair::tests::{Node as Tier, World};

fn disk(node: &Tier) -> DiskNames<'_> {
    DiskNames { names: &node.names, places: &node.places, directories: &node.directories }
}

fn nodes(world: &World) -> (Tier, Tier) {
    (world.node("n1"), world.node_until("n2", 2, i64::MAX))
}

/// Notes a rename of a directory and makes it in the store, as a rename begins.
fn begin(node: &Tier, directory: u64, from: (u64, &str), to: (u64, &str)) -> RenameNotes {
    let [was, is] = [from, to].map(|(above, name)| (above, Name::from(name)));
    let notes = node.places.begin_rename(directory, (was.0, &was.1), (is.0, &is.1)).unwrap();
    let [from, to] = [from, to].map(|(above, name)| Tier::entry(above, name));
    node.names.rename(&from, &to, Flags::Replace).unwrap();
    notes
}

#[test]
fn a_directory_ends_where_the_store_has_it_whoever_is_last_on_the_disk() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let directory = one.mkdir(1, "a").unwrap();
    let of_one = begin(&one, directory, (1, "a"), (1, "b"));
    let of_two = begin(&two, directory, (1, "b"), (1, "c"));
    disk(&two).renamed(of_two, &Tier::entry(1, "c"), None).unwrap();
    assert!(world.at("shared/c").is_dir());
    disk(&one).renamed(of_one, &Tier::entry(1, "b"), None).unwrap();
    assert!(world.at("shared/c").is_dir() && !world.at("shared/b").exists());
    one.create(directory, "f", "text").unwrap();
    assert!(world.repair(false).is_clean());
}

#[test]
fn a_directory_that_was_removed_before_the_disk_had_its_name_is_gone_from_it() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let directory = one.mkdir(1, "a").unwrap();
    let notes = begin(&one, directory, (1, "a"), (1, "b"));
    two.names.remove_directory(&Tier::entry(1, "b")).unwrap();
    let step = DirectoryStep { number: directory, name: Name::from("b") };
    two.places.remove_directory(&[step]).unwrap();
    disk(&one).renamed(notes, &Tier::entry(1, "b"), None).unwrap();
    assert!(!world.at("shared/a").exists() && !world.at("shared/b").exists());
    world.forget();
    world.repair(true);
    assert!(world.tree().is_empty(), "{:?}", world.tree());
}

fn link(node: &Tier, name: &str, target: &str) -> (InodeNumber, Attributes) {
    let mut attributes = Attributes::new(Kind::Symlink, 0o777, 0);
    attributes.target = target.as_bytes().to_vec();
    (attributes.uid, attributes.gid) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let made = node.names.create(&Tier::entry(1, name), &attributes).unwrap();
    (made.inode, attributes)
}

#[test]
fn a_link_is_not_removed_for_one_that_had_its_name_before() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let (l, m) = (Tier::entry(1, "l"), Tier::entry(1, "m"));
    let (old, of_old) = link(&one, "l", "old");
    disk(&one).made(&l, old, &of_old).unwrap();
    one.names.rename(&l, &m, Flags::Replace).unwrap();
    let (new, of_new) = link(&two, "l", "new");
    disk(&two).made(&l, new, &of_new).unwrap();
    disk(&one).made(&m, old, &of_old).unwrap();
    disk(&one).lost(&l, (old, Some(&of_old))).unwrap();
    let target = |name: &str| std::fs::read_link(world.at("shared").join(name)).unwrap();
    assert_eq!((target("l"), target("m")), ("new".into(), "old".into()));
    // And the reverse: a link that was made late does not outlive its removal.
    let gone = two.names.unlink(&l).unwrap().unwrap();
    disk(&two).lost(&l, (gone.inode, Some(&gone.attributes))).unwrap();
    disk(&one).made(&l, new, &of_new).unwrap();
    assert!(!world.at("shared/l").is_symlink());
}

#[test]
fn a_removed_directory_goes_from_the_ssd_of_the_node_that_removes_it() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let directory = one.mkdir(1, "d").unwrap();
    one.create(directory, "f", "text").unwrap();
    let step = DirectoryStep { number: directory, name: Name::from("d") };
    one.places.remove_directory(std::slice::from_ref(&step)).unwrap();
    assert!(world.at("n1/ssd/d/f").exists(), "nothing is removed that has something in it");
    one.places.make_directory(&[], &Name::from("d"), directory, (0o755, 0, 0)).unwrap();
    one.unlink(directory, "f").unwrap();
    one.names.remove_directory(&Tier::entry(1, "d")).unwrap();
    two.places.remove_directory(std::slice::from_ref(&step)).unwrap();
    assert!(!world.at("shared/d").exists() && world.at("n1/ssd/d").is_dir());
    one.places.remove_directory(&[step]).unwrap();
    assert!(!world.at("n1/ssd/d").exists());
}

#[test]
fn a_directory_is_found_while_those_that_it_leaves_and_comes_to_are_renamed() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let [here, there] = ["here", "there"].map(|name| one.mkdir(1, name).unwrap());
    let directory = one.mkdir(here, "a").unwrap();
    let notes = begin(&one, directory, (here, "a"), (there, "b"));
    two.rename((1, "here"), (there, "elsewhere")).unwrap();
    two.rename((1, "there"), (1, "moved")).unwrap();
    // None of them knows its path.
    for node in [&world.node_until("n1", 2, i64::MAX), &two, &one] {
        node.places.set_directory_attributes(directory, &SetAttr::default()).unwrap();
    }
    disk(&one).renamed(notes, &Tier::entry(there, "b"), None).unwrap();
    assert!(world.at("shared/moved/b").is_dir() && world.at("shared/moved/elsewhere").is_dir());
    assert!(world.repair(false).is_clean());
}

#[test]
fn directories_that_change_places_above_each_other_follow() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let above = one.mkdir(1, "above").unwrap();
    let below = one.mkdir(above, "below").unwrap();
    let first = begin(&one, below, (above, "below"), (1, "below"));
    // On the disk this would put the directory below itself until the first rename is done.
    let second = begin(&two, above, (1, "above"), (below, "above"));
    disk(&two).renamed(second, &Tier::entry(below, "above"), None).unwrap();
    disk(&one).renamed(first, &Tier::entry(1, "below"), None).unwrap();
    assert!(world.at("shared/below/above").is_dir());
    assert!(world.repair(false).is_clean());
}

#[test]
fn a_removed_directory_goes_though_another_was_still_to_leave_it() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let above = one.mkdir(1, "above").unwrap();
    let directory = one.mkdir(above, "a").unwrap();
    let notes = begin(&one, directory, (above, "a"), (1, "a"));
    two.names.remove_directory(&Tier::entry(1, "above")).unwrap();
    let step = DirectoryStep { number: above, name: Name::from("above") };
    two.places.remove_directory(&[step]).unwrap();
    assert!(!world.at("shared/above").exists() && world.at("shared/a").is_dir());
    disk(&one).renamed(notes, &Tier::entry(1, "a"), None).unwrap();
    assert!(world.repair(false).is_clean());
}

fn pipe(node: &Tier, name: &str) -> StoredInode {
    let mut attributes = Attributes::new(Kind::Fifo, 0o644, 0);
    (attributes.uid, attributes.gid) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let name = Tier::entry(1, name);
    let made = node.names.create(&name, &attributes).unwrap();
    disk(node).made(&name, made.inode, &attributes).unwrap();
    made
}

/// Makes a change in the store, and then on the disk, unless the node dies there.
type Change = fn(&Tier, [(&EntryName, &StoredInode); 2]) -> Result<()>;

const CHANGES: [(&str, Change); 4] = [
    ("exchange with one of two", |node, [(one, of_one), (two, of_two)]| {
        node.names.rename(one, two, Flags::Exchange).unwrap();
        disk(node).renamed_other((one, two), of_one.inode, &of_one.attributes)?;
        disk(node).exchanged_other((two, one), of_two.inode, &of_two.attributes)
    }),
    ("exchange of one of two", |node, [(one, of_one), (two, of_two)]| {
        node.names.rename(two, one, Flags::Exchange).unwrap();
        disk(node).renamed_other((two, one), of_two.inode, &of_two.attributes)?;
        disk(node).exchanged_other((one, two), of_one.inode, &of_one.attributes)
    }),
    ("unlink of one of two", |node, [_, (two, of_two)]| {
        node.names.unlink(two).unwrap();
        disk(node).lost(two, (of_two.inode, Some(&of_two.attributes)))
    }),
    ("link", |node, [(one, of_one), _]| {
        let new = Tier::entry(1, "new");
        let linked = node.names.link_told(one, &new, Some(of_one.inode)).unwrap();
        disk(node).linked((one, &new), &linked)
    }),
];

/// Which of the pipes are the same: the numbers, or the inodes, in the order of the names, without what is not there.
fn grouped(of: impl Fn(&str) -> Option<u64>) -> Vec<Option<usize>> {
    let all = ["again", "new", "one", "two"].map(of);
    all.iter().map(|one| one.and_then(|_| all.iter().position(|other| other == one))).collect()
}

#[test]
fn whoever_dies_in_a_change_of_pipes_that_look_alike_makes_no_two_of_them_one() {
    for ((what, change), forgets) in CHANGES.into_iter().flat_map(|one| [(one, false), (one, true)])
    {
        for steps in 0.. {
            let world = World::new();
            let node = world.node("n1");
            let (of_one, of_two) = (pipe(&node, "one"), pipe(&node, "two"));
            let [one, two, again] = ["one", "two", "again"].map(|name| Tier::entry(1, name));
            let linked = node.names.link_told(&two, &again, Some(of_two.inode)).unwrap();
            disk(&node).linked((&two, &again), &linked).unwrap();
            let dying = world.node_until("n1", 2, steps);
            let done = change(&dying, [(&one, &of_one), (&two, &linked)]);
            let in_store = |name: &str| {
                let found = node.names.lookup(&Tier::entry(1, name));
                found.ok().map(|found| found.inode.0)
            };
            let wanted = grouped(in_store);
            if forgets {
                world.forget();
            }
            world.repair(true);
            let at = format!("{what}, {forgets}, step {steps}: {done:?}");
            assert!(world.repair(false).is_clean(), "{at}: {:?}", world.repair(false));
            let node = world.node_until("n1", 3, i64::MAX);
            let in_store = grouped(|name| {
                let found = node.names.lookup(&Tier::entry(1, name));
                found.ok().map(|found| found.inode.0)
            });
            let on_disk = grouped(|name| {
                let found = world.at("shared").join(name).symlink_metadata();
                found.ok().map(|found| found.ino())
            });
            assert_eq!(on_disk, in_store, "{at}");
            // What was not made on the disk before the store forgot it may not have been made.
            if !forgets || done.is_ok() {
                assert_eq!(in_store, wanted, "{at}");
            }
            let [again, _, one, two] = in_store[..] else { panic!("{at}") };
            assert!(again.is_some() && one.is_some() && (one != two || two.is_none()), "{at}");
            if done.is_ok() {
                break;
            }
        }
    }
}

/// Regression: a rename that nobody had followed on the disk was undone when the names were built again: the
/// directory had its old name, and the empty directory that it had replaced was back.
#[test]
fn what_a_node_left_half_done_it_does_after_its_next_mount() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let directory = one.mkdir(1, "a").unwrap();
    let replaced = one.mkdir(1, "b").unwrap();
    let (a, b) = (Name::from("a"), Name::from("b"));
    let of_replaced = one.places.begin_rename(replaced, (1, &b), (1, &a)).unwrap();
    drop((begin(&one, directory, (1, "a"), (1, "b")), of_replaced));
    let none = BTreeSet::new();
    assert_eq!(two.places.finish_renames(&none).unwrap(), none, "it is not the other's");
    assert!(world.at("shared/a").is_dir());
    let again = world.node("n1");
    let left = again.places.finish_renames(&none).unwrap();
    assert!(!world.at("shared/a").exists());
    assert_eq!(left.len(), 2, "the store may still do what it was asked");
    assert_eq!(again.places.finish_renames(&left).unwrap(), none);
    assert_eq!(std::fs::read_dir(world.at("shared/.halocline/renaming")).unwrap().count(), 0);
    world.forget();
    world.repair(true);
    let tree: Vec<String> = world.tree().into_keys().collect();
    assert_eq!(tree, ["/b"]);
}

/// Regression: it stayed on the disk if another node had renamed a directory above it, and was back after a rebuild.
#[test]
fn what_is_removed_or_replaced_goes_from_the_disk_though_its_way_is_out_of_date() {
    let world = World::new();
    let (one, two) = nodes(&world);
    let [folder, from] = ["here", "from"].map(|name| one.mkdir(1, name).unwrap());
    let [removed, replaced] = ["a", "b"].map(|name| one.mkdir(folder, name).unwrap());
    let one = world.node_until("n1", 2, i64::MAX);
    two.rename((1, "here"), (1, "there")).unwrap();
    let here = DirectoryStep { number: folder, name: Name::from("here") };
    one.names.remove_directory(&Tier::entry(folder, "a")).unwrap();
    let step = DirectoryStep { number: removed, name: Name::from("a") };
    one.places.remove_directory(&[here.clone(), step]).unwrap();
    begin(&one, from, (1, "from"), (folder, "b"));
    one.places.rename_directory(from, &[here], &Name::from("b"), Some(replaced)).unwrap();
    let left = std::fs::read_dir(world.at("shared/there")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["b"]);
}

mod beside;
