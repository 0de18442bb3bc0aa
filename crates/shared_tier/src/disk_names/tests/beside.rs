//! What lies beside its name on the disk, because a directory that another node has renamed still has it there.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use super::*;
use crate::places::tree::candidates;

/// What happens before names are looked at.
struct Case {
    world: World,
    name: String,
    beside: String,
}

impl Case {
    /// Pipe `p` gets a second name, which a directory has on the disk; its node dies.
    fn new(name: &str) -> Self {
        let world = World::new();
        let (one, two) = nodes(&world);
        let directory = one.mkdir(1, name).unwrap();
        drop(begin(&one, directory, (1, name), (1, "e")));
        let (old, new) = (Tier::entry(1, "p"), Tier::entry(1, name));
        let of = pipe(&two, "p");
        let linked = two.names.link_told(&old, &new, Some(of.inode)).unwrap();
        disk(&two).linked((&old, &new), &linked).unwrap();
        let [_, beside] = candidates(&Name::from(name), of.inode.0);
        let beside = String::from_utf8(beside.as_bytes().to_vec()).unwrap();
        let case = Self { world, name: name.to_owned(), beside };
        assert!(case.at(name).is_dir() && case.is_pipe(&case.beside));
        case
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.world.at("shared").join(name)
    }

    fn is_pipe(&self, name: &str) -> bool {
        self.at(name).symlink_metadata().is_ok_and(|of| of.file_type().is_fifo())
    }

    fn directory_leaves(&self) -> Tier {
        let one = self.world.node_until("n1", 3, i64::MAX);
        one.places.finish_renames(&BTreeSet::new()).unwrap();
        assert!(self.at("e").is_dir());
        one
    }

    fn notes(&self) -> usize {
        fs::read_dir(self.at(".halocline/beside")).unwrap().count()
    }

    /// Both names are those of one pipe, in the store and on the disk.
    fn is_right(&self) {
        let at = |name| fs::metadata(self.at(name)).map(|of| of.ino()).ok();
        assert!(self.is_pipe(&self.name) && at(&self.name) == at("p"), "{}", self.name);
        assert!(!self.at(&self.beside).exists());
        assert_eq!(self.notes(), 0);
        let node = self.world.node_until("n1", 4, i64::MAX);
        let number = |name| node.names.lookup(&Tier::entry(1, name)).unwrap().inode;
        assert_eq!(number(&self.name), number("p"));
        assert!(self.world.repair(false).is_clean(), "{:?}", self.world.repair(false));
    }
}

fn cases() -> [Case; 2] {
    [Case::new("d"), Case::new(&"n".repeat(255))]
}

#[test]
fn another_node_puts_it_at_its_name_once_that_is_free() {
    for case in cases() {
        let node = case.world.node_until("n1", 3, i64::MAX);
        disk(&node).put_at_names().unwrap();
        assert!(case.is_pipe(&case.beside) && case.notes() == 1, "not yet");
        disk(&case.directory_leaves()).put_at_names().unwrap();
        case.is_right();
    }
}

#[test]
fn a_check_tells_it_where_the_name_is_free_and_a_repair_puts_it_there() {
    for case in cases() {
        assert_eq!(case.world.repair(false).remade, ["e"]);
        case.directory_leaves();
        assert_eq!(case.world.repair(false).remade, [&*case.name]);
        case.world.repair(true);
        case.is_right();
    }
}

#[test]
fn a_repair_notes_what_an_earlier_version_has_put_beside_its_name() {
    let world = World::new();
    let node = world.node("n1");
    node.create_on_shared(1, "f", "text").unwrap();
    node.names.rename(&Tier::entry(1, "f"), &Tier::entry(1, "g"), Flags::Replace).unwrap();
    let of = pipe(&node, "f");
    let beside = format!("f~{}", of.inode.0);
    assert!(world.at("shared").join(&beside).exists());
    let notes = || fs::read_dir(world.at("shared/.halocline/beside")).unwrap();
    notes().for_each(|note| fs::remove_file(note.unwrap().path()).unwrap());
    assert!(world.repair(false).remade.contains(&"f".to_owned()));
    world.repair(true);
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    let at_name = world.at("shared/f").symlink_metadata().unwrap().file_type().is_fifo();
    assert_eq!(notes().count(), usize::from(!at_name));
}

#[test]
fn names_that_are_built_again_have_it_at_its_name_where_that_is_free() {
    for case in cases() {
        case.directory_leaves();
        case.world.forget();
        case.world.repair(true);
        case.is_right();
    }
}

/// What a program calls by its own number has no note.
#[test]
fn names_that_are_built_again_are_what_programs_called_by_their_own_numbers() {
    let world = World::new();
    let node = world.node("n1");
    let [old, other] = ["p", "q"].map(|name| Tier::entry(1, name));
    let of = pipe(&node, "p");
    let linked = node.names.link_told(&old, &other, Some(of.inode)).unwrap();
    disk(&node).linked((&old, &other), &linked).unwrap();
    let own = format!("p~{}", of.inode.0);
    let new = Tier::entry(1, &own);
    node.names.rename(&old, &new, Flags::Replace).unwrap();
    disk(&node).renamed_other((&old, &new), linked.inode, &linked.attributes).unwrap();
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    world.forget();
    world.repair(true);
    let node = world.node_until("n1", 2, i64::MAX);
    let number = |name| node.names.lookup(&Tier::entry(1, name)).map(|found| found.inode).ok();
    assert!(number(&own).is_some() && number(&own) == number("q") && number("p").is_none());
}

#[test]
fn names_that_are_built_again_while_something_has_its_name_are_told() {
    for case in cases() {
        case.world.forget();
        let report = case.world.repair(true);
        assert!(report.told.iter().any(|line| line.contains(&case.name)), "{report:?}");
        assert!(case.at(&case.name).is_dir() && case.is_pipe(&case.beside));
        assert!(case.world.repair(false).is_clean(), "{:?}", case.world.repair(false));
        let node = case.world.node_until("n1", 4, i64::MAX);
        let number = |name| node.names.lookup(&Tier::entry(1, name)).unwrap().inode;
        assert_eq!(number(&case.beside), number("p"));
    }
}
