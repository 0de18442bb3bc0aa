//! Nodes with disks, and a store that forgets: acknowledged changes are recovered.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Listed, Namespace, WaitLimit};
use halocline_model::namespace::{EntryName, Flags, InodeNumber, Shards};
use halocline_model::token::Session;
use halocline_os::clock::Clock;
use halocline_os::shown_name::shown_name;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::*;
use crate::places::{Directories, DirectoryStep, Places, Watcher};
use crate::store_directories::StoreDirectories;

/// Dies at a step, as a process would.
#[derive(Default)]
pub(crate) struct Death {
    left: AtomicI64,
    /// Is told of each step before the death.
    pub(crate) told: Mutex<Option<Told>>,
}

type Told = Box<dyn FnMut() + Send>;

impl std::fmt::Debug for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Death {:?}", self.left)
    }
}

impl Death {
    /// Dies after so many more steps.
    pub(crate) fn end_after(&self, steps: i64) {
        self.left.store(steps, Ordering::SeqCst);
    }
}

impl Watcher for Death {
    fn before(&self, _: &'static str) -> Result<()> {
        // Taken out: its own calls are no steps.
        let told = self.told.lock().take();
        if let Some(mut told) = told {
            told();
            *self.told.lock() = Some(told);
        }
        // Nothing is done after the death.
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Err(Errno::CANCELED.into());
        }
        Ok(())
    }
}

/// Two nodes on one machine.
pub(crate) struct World {
    scratch: tempfile::TempDir,
    pub(crate) store: MemoryNames,
    split_from: Option<u64>,
}

/// One node: makes the calls of the engine, in the engine's order.
pub(crate) struct Node {
    pub(crate) places: Places,
    pub(crate) names: Arc<Namespace>,
    pub(crate) directories: StoreDirectories,
    pub(crate) death: Arc<Death>,
}

pub(crate) fn name(text: &str) -> Name {
    Name::from(text)
}

impl World {
    pub(crate) fn new() -> Self {
        Self::unformatted().formatted()
    }

    pub(crate) fn formatted(self) -> Self {
        Namespace::format(&self.store, &Attributes::new(Kind::Directory, 0o755, 0)).unwrap();
        self
    }

    /// A world without names.
    pub(crate) fn unformatted() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("shared")).unwrap();
        for node in ["n1", "n2"] {
            fs::create_dir_all(scratch.path().join(node).join("ssd")).unwrap();
            symlink("../shared", scratch.path().join(node).join("hdd")).unwrap();
        }
        Self { scratch, store: MemoryNames::default(), split_from: None }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.scratch.path().join(path)
    }

    pub(crate) fn peers(&self) -> String {
        format!("{}/{{node}}/ssd", self.scratch.path().display())
    }

    /// A node that dies before the step with this number.
    pub(crate) fn node_until(&self, node: &str, session: u64, steps: i64) -> Node {
        let store = self.store.for_another_node().splitting_from(self.split_from);
        let store: Arc<dyn NameStore> = Arc::new(store);
        let names = Namespace::open(store, Session(session), WaitLimit::default()).unwrap();
        let names = Arc::new(names);
        let death = Arc::new(Death { left: AtomicI64::new(i64::MAX), told: Mutex::default() });
        let directories: Arc<dyn Directories> = Arc::new(StoreDirectories(names.clone()));
        let places = Places::open(
            &self.at(node),
            node,
            Some(&self.peers()),
            directories,
            &Clock::MACHINE,
            Some(death.clone()),
        );
        let places = places.unwrap();
        death.left.store(steps, Ordering::SeqCst);
        Node { places, directories: StoreDirectories(names.clone()), names, death }
    }

    pub(crate) fn node(&self, node: &str) -> Node {
        self.node_until(node, 1, i64::MAX)
    }

    /// That no node is mounted.
    pub(crate) fn alone(&self) -> Alone {
        Alone::on(&self.at("n1"), Some(&self.peers())).unwrap()
    }

    /// Without attributes: nodes of these tests give files others in the store than on the disk.
    pub(crate) fn repair(&self, repair: bool) -> Report {
        let alone = repair.then(|| self.alone());
        let peers = self.peers();
        let report = super::run(&self.at("n1"), Some(&peers), &self.store, alone.as_ref()).unwrap();
        let may_be_older = report.may_be_older && report.attributes.is_empty();
        Report { attributes: Vec::new(), may_be_older, ..report }
    }

    /// The store comes back empty.
    pub(crate) fn forget(&self) {
        self.store.restart(Shards(BTreeMap::new()));
    }

    /// Every path with its content: a file's text, or what else it is.
    pub(crate) fn tree(&self) -> BTreeMap<String, String> {
        let node = self.node_until("n1", 999, i64::MAX);
        let mut tree = BTreeMap::new();
        let mut todo = vec![(String::new(), 1)];
        while let Some((path, directory)) = todo.pop() {
            let (mut all, mut page) = (Vec::new(), (Vec::new(), false));
            while !page.1 {
                let cursor = all.last().map_or(0, |last: &Listed| last.cursor);
                page = node.names.list(InodeNumber(directory), cursor, 1000).unwrap();
                all.append(&mut page.0);
            }
            for one in all {
                let path = format!("{path}/{}", shown_name(one.name.as_bytes()));
                if one.is_directory {
                    todo.push((path.clone(), one.inode.0));
                    tree.insert(path, "directory".to_owned());
                    continue;
                }
                let at = EntryName { directory: InodeNumber(directory), name: one.name };
                let found = node.names.lookup(&at).unwrap();
                let what = match &found.attributes.location {
                    None => format!("{:?}", found.attributes.kind),
                    Some(place) => {
                        let opened = node.places.open_file(place, found.inode.0, OFlags::RDONLY);
                        match opened {
                            Ok(fd) => {
                                let mut text = String::new();
                                File::from(fd).read_to_string(&mut text).unwrap();
                                assert_eq!(found.attributes.size, text.len() as u64, "{path}");
                                text
                            }
                            Err(error) => format!("error {}", error.errno()),
                        }
                    }
                };
                tree.insert(path, what);
            }
        }
        tree
    }
}

impl Node {
    fn near(&self, directory: u64) -> Vec<DirectoryStep> {
        self.directories.steps(directory).unwrap()
    }

    pub(crate) fn entry(directory: u64, called: &str) -> EntryName {
        EntryName { directory: InodeNumber(directory), name: name(called) }
    }

    fn owner() -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    pub(crate) fn create(&self, directory: u64, called: &str, text: &str) -> Result<u64> {
        self.create_on(crate::places::SSD, (directory, called), text)
    }

    pub(crate) fn create_on_shared(&self, directory: u64, called: &str, text: &str) -> Result<u64> {
        self.create_on(crate::places::SHARED, (directory, called), text)
    }

    fn create_on(&self, tier: u8, (directory, called): (u64, &str), text: &str) -> Result<u64> {
        let inode = self.names.number().unwrap();
        let (uid, gid) = Self::owner();
        let near = self.near(directory);
        let owner = crate::places::tree::Owner { mode: 0o644, uid, gid };
        let (place, fd) = self.places.make_file_on(tier, &near, &name(called), inode.0, owner)?;
        File::from(fd).write_all(text.as_bytes())?;
        let mut attributes = Attributes::new(Kind::File, 0o644, 0);
        (attributes.uid, attributes.gid, attributes.size) = (uid, gid, text.len() as u64);
        attributes.location = Some(place);
        self.step()?;
        self.names.create_as(inode, &Self::entry(directory, called), &attributes).unwrap();
        Ok(inode.0)
    }

    /// A request to the store is a step, too.
    fn step(&self) -> Result<()> {
        self.death.before("asking the store")
    }

    pub(crate) fn mkdir(&self, directory: u64, called: &str) -> Result<u64> {
        let inode = self.names.number().unwrap();
        let (uid, gid) = Self::owner();
        let near = self.near(directory);
        self.places.make_directory(&near, &name(called), inode.0, (0o755, uid, gid))?;
        self.step()?;
        let attributes = Attributes::new(Kind::Directory, 0o755, 0);
        self.names.make_directory_as(inode, &Self::entry(directory, called), &attributes).unwrap();
        Ok(inode.0)
    }

    pub(crate) fn rename(&self, from: (u64, &str), to: (u64, &str)) -> Result<()> {
        let [from_entry, to_entry] =
            [from, to].map(|(directory, called)| Self::entry(directory, called));
        let found = self.names.lookup(&from_entry).unwrap();
        let near = self.near(to.0);
        if found.attributes.kind == Kind::Directory {
            let number = found.inode.0;
            let [was, is] = [from, to].map(|(directory, called)| (directory, name(called)));
            let notes = self.places.begin_rename(number, (was.0, &was.1), (is.0, &is.1))?;
            self.step()?;
            self.names.rename(&from_entry, &to_entry, Flags::Replace).unwrap();
            self.places.rename_directory(number, &near, &name(to.1), None)?;
            return self.places.end_rename(&notes);
        }
        let place = found.attributes.location.unwrap();
        let new = self.places.link(&place, found.inode.0, &near, &name(to.1))?;
        self.step()?;
        self.names.attributes().set_location(&from_entry, Some(&place), Some(&new)).unwrap();
        self.step()?;
        let replaced = self.names.rename(&from_entry, &to_entry, Flags::Replace).unwrap();
        self.places.listed_names().set(&new, found.inode.0, &[(to.0, name(to.1))])?;
        self.places.remove(&place, found.inode.0)?;
        match replaced {
            Some(gone) => self.places.remove(&gone.attributes.location.unwrap(), gone.inode.0),
            None => Ok(()),
        }
    }

    pub(crate) fn unlink(&self, directory: u64, called: &str) -> Result<()> {
        self.step()?;
        let gone = self.names.unlink(&Self::entry(directory, called)).unwrap();
        match gone {
            Some(gone) => self.places.remove_all(&gone.attributes.location.unwrap(), gone.inode.0),
            None => Ok(()),
        }
    }

    /// A file of several names loses one, and lies there still.
    pub(crate) fn unlink_name(&self, directory: u64, called: &str, file: u64, left: &str) {
        let at = Self::entry(directory, called);
        let place = self.names.lookup(&at).unwrap().attributes.location.unwrap();
        self.names.unlink(&at).unwrap();
        self.places.listed_names().set(&place, file, &[(directory, name(left))]).unwrap();
    }

    pub(crate) fn link(&self, from: (u64, &str), to: (u64, &str)) -> Result<()> {
        let [from_entry, to_entry] =
            [from, to].map(|(directory, called)| Self::entry(directory, called));
        let found = self.names.lookup(&from_entry).unwrap();
        let place = found.attributes.location.unwrap();
        let all = [from, to].map(|(directory, called)| (directory, name(called)));
        self.places.listed_names().set(&place, found.inode.0, &all)?;
        self.step()?;
        self.names.link(&from_entry, &to_entry).unwrap();
        Ok(())
    }
}

/// A tree of both nodes, with renamed directories and files.
fn filled() -> World {
    filled_in(World::new())
}

fn filled_in(world: World) -> World {
    let (one, two) = (world.node("n1"), world.node_until("n2", 2, i64::MAX));
    let a = one.mkdir(1, "a").unwrap();
    let below = two.mkdir(a, "below").unwrap();
    one.create(a, "f", "of n1").unwrap();
    two.create(below, "g", "of n2").unwrap();
    two.create(1, "odd\u{1}\u{e9}~7", "odd").unwrap();
    one.rename((1, "a"), (1, "b")).unwrap();
    let a = two.mkdir(1, "a").unwrap();
    one.create(a, "f", "of the new directory").unwrap();
    two.create(a, "h", "moved").unwrap();
    two.rename((a, "h"), (1, "h")).unwrap();
    one.link((a, "f"), (1, "second")).unwrap();
    fs::write(world.at("n1/ssd/by hand"), "put there").unwrap();
    fs::create_dir(world.at("shared/hand")).unwrap();
    fs::write(world.at("shared/hand/file"), "there").unwrap();
    symlink("../x", world.at("shared/hand/link")).unwrap();
    world
}

#[test]
fn a_store_that_forgot_everything_is_built_again() {
    is_built_again(&filled());
    // Where directories of two entries are split, names that a sound store gets go to buckets, and so do attributes.
    is_built_again(&filled_in(World { split_from: Some(2), ..World::new() }));
}

fn is_built_again(world: &World) {
    let by_hand = world.repair(true);
    assert_eq!(by_hand.named, [1, 2, 1], "{by_hand:?}");
    let before = world.tree();
    assert_eq!(before.len(), 13, "{before:?}");
    assert!(world.repair(false).is_clean(), "{:?}", world.repair(false));
    world.forget();
    let dry = world.repair(false);
    assert!(
        dry.is_rebuilt && world.store.refresh().unwrap() == State::Empty,
        "nothing was changed"
    );
    let report = world.repair(true);
    assert_eq!(report.named, dry.named);
    assert_eq!(report.told, Vec::<String>::new());
    assert_eq!(world.tree(), before);
    let again = world.repair(false);
    assert!(again.is_clean(), "{again:?}");
    // Numbers are as before, so the nodes' descriptors stay valid.
    let node = world.node_until("n2", 3, i64::MAX);
    let second = node.names.lookup(&Node::entry(1, "second")).unwrap();
    assert_eq!(second.links, 2);
    // A store with stale names is no better.
    let saved = world.store.saved();
    node.create(1, "newer", "than what was saved").unwrap();
    world.store.restart(saved);
    assert!(world.repair(true).is_rebuilt);
    assert_eq!(world.tree().get("/newer").map(String::as_str), Some("than what was saved"));
}

#[test]
fn a_node_that_is_away_is_named_and_its_files_come_back_with_it() {
    let world = filled();
    world.repair(true);
    let before = world.tree();
    fs::rename(world.at("n2"), world.at("away")).unwrap();
    let report = world.repair(true);
    assert_eq!(report.missing[0].0, "n2");
    assert!(
        !report.is_rebuilt && report.unreached_files == 3 && report.lost.is_empty(),
        "{report:?}"
    );
    // The names stay, and only the files on that node fail.
    let failed: Vec<_> = world.tree().into_values().filter(|what| what == "error 5").collect();
    assert_eq!(failed.len(), 3);
    world.forget();
    let report = world.repair(true);
    assert!(report.is_rebuilt && report.missing.len() == 1);
    assert_eq!(world.tree().len(), before.len() - 3);
    world.node("n1").create(1, "h", "another one").unwrap();
    fs::rename(world.at("away"), world.at("n2")).unwrap();
    let report = world.repair(true);
    assert_eq!((report.named, report.set_aside.len()), ([0, 3, 0], 0), "{report:?}");
    let mut after = world.tree();
    let renamed = after.keys().find(|path| path.starts_with("/h~")).unwrap().clone();
    assert_eq!(after.remove(&renamed).as_deref(), Some("moved"), "its name was taken");
    assert_eq!(after.insert("/h".to_owned(), "moved".to_owned()).as_deref(), Some("another one"));
    assert_eq!(after, before);
    assert!(world.repair(false).is_clean());
}

/// Acknowledged changes are there, changes in flight were made or not, and a check finds nothing afterwards.
#[test]
fn whoever_dies_at_any_step_loses_nothing_and_a_repair_puts_everything_in_order() {
    type Act = fn(&Node, u64) -> Result<()>;
    let acts: [(&str, Act); 6] = [
        ("create", |node, a| node.create(a, "new", "new").map(drop)),
        ("mkdir", |node, a| node.mkdir(a, "new").map(drop)),
        ("rename", |node, a| node.rename((a, "f"), (1, "f"))),
        ("replace", |node, a| node.rename((a, "f"), (1, "h"))),
        ("rename a directory", |node, a| node.rename((1, "a"), (1, if a > 0 { "c" } else { "d" }))),
        ("unlink", |node, a| node.unlink(a, "f")),
    ];
    for (what, act) in acts {
        for forgets in [false, true] {
            for steps in 0.. {
                let world = World::new();
                let node = world.node("n1");
                let a = node.mkdir(1, "a").unwrap();
                let text = "kept";
                node.create(a, "f", text).unwrap();
                node.create(1, "h", "old").unwrap();
                node.create(a, "other", text).unwrap();
                let before = world.tree();
                let dying = world.node_until("n1", 2, steps);
                let done = act(&dying, a);
                let acknowledged = done.is_ok().then(|| world.tree());
                if forgets {
                    world.forget();
                }
                let report = world.repair(true);
                let at = format!("{what}, step {steps}, {forgets}, {report:?}");
                assert!(report.lost.is_empty(), "{at}");
                let after = world.tree();
                assert!(after.values().all(|what| !what.starts_with("error")), "{at}: {after:?}");
                if let Some(acknowledged) = &acknowledged {
                    assert_eq!(after, *acknowledged, "{at}");
                }
                assert!(after.values().filter(|what| *what == text).count() >= 1, "{at}");
                let moved = |tree: &BTreeMap<String, String>| {
                    tree.values().filter(|what| *what == text).count()
                };
                if what != "unlink" {
                    assert_eq!(moved(&after), moved(&before), "{at}: {after:?}");
                }
                assert!(world.repair(false).is_clean(), "{at}: {:?}", world.repair(false));
                let left = fs::read_dir(world.at("shared/.halocline/renaming")).unwrap().count();
                assert_eq!(left, 0, "{at}");
                if done.is_ok() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_rebuild_that_died_is_done_again() {
    let world = filled();
    world.repair(true);
    let before = world.tree();
    world.forget();
    // A rebuild that was begun and has written only the root.
    let disks = Disks::read(&world.at("n1"), Some(&world.peers())).unwrap();
    disks.set_rebuilding(true).unwrap();
    world.store.begin_epoch(true).unwrap();
    Build::new(&world.store).root(&Attributes::new(Kind::Directory, 0o755, 0)).unwrap();
    let confirm = || super::confirm(&world.at("n1"), None, &world.store, &world.alone());
    assert!(confirm().is_err(), "a part is not all");
    assert!(world.repair(true).is_rebuilt);
    assert_eq!(world.tree(), before);
    assert_eq!(confirm().unwrap().contradictions, 0);
}
