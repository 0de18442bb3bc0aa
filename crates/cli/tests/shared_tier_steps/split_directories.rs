//! Directories whose names come to lie in buckets on several masters (decision 0048) while two mounts use them. Mounts split
//! them at few entries here (`HALOCLINE_SPLIT_FROM`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_testkit::program;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster, STEADY};
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{fsck, make, peers, unmount};
use halocline_testkit::waiting::{SetOnDrop, eventually};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::held::Held;

const NODES: [&str; 2] = ["one", "two"];
/// From how many entries on a directory is split.
const SPLIT_FROM: usize = 24;
/// How many files each node makes in it.
const FILES: usize = 60;
/// Where a mount is killed while it splits a directory.
const POINTS: [&str; 4] = [
    "before the store's fill",
    "after the store's fill",
    "before the store's change",
    "after the store's change",
];

struct Nodes {
    scratch: Scratch,
    store: RedisCluster,
}

impl Nodes {
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        let store = RedisCluster::start(STEADY)?;
        make(&scratch, &NODES);
        let nodes = Self { scratch, store };
        nodes.mount_all();
        Some(nodes)
    }

    fn mount_all(&self) {
        for node in NODES {
            self.mount(node);
        }
    }

    fn mount(&self, node: &str) {
        let (root, peers, urls) =
            (format!("{node}-tiers"), peers(&self.scratch), self.store.urls());
        let cluster = ["--cluster", &urls, "--node", node, "--peers", &peers];
        let args = [&["mount", "--tier", &root, node][..], &cluster].concat();
        let mut command = self.scratch.command(&args);
        command.env("HALOCLINE_SPLIT_FROM", SPLIT_FROM.to_string());
        if node == NODES[0] {
            command.env("HALOCLINE_HELD_STEPS", self.scratch.path("steps"));
        }
        let mounted = command.output().unwrap();
        assert!(mounted.status.success(), "{}", said(&mounted));
    }

    fn unmount_all(&self) {
        for node in NODES {
            unmount(&self.scratch, node);
        }
    }

    fn at(&self, node: &str, name: &str) -> PathBuf {
        self.scratch.path(node).join(name)
    }

    fn fsck(&self, more: &[&str]) -> Output {
        fsck(&self.scratch, &self.store.urls(), more)
    }

    #[track_caller]
    fn agree(&self) {
        let done = self.fsck(&[]);
        let told = [written(&done), said(&done)].concat();
        assert!(done.status.success() && told.contains("the names and the disks agree"), "{told}");
    }

    /// Whether a directory has buckets: what the store marks it with then.
    fn is_split(&self, directory: &Path) -> bool {
        let mark = format!("{:x}:finished", fs::metadata(directory).unwrap().ino());
        let keys = |master| self.store.command(master, &["KEYS", &format!("*:{mark}")]);
        (0..MASTERS).any(|master| keys(master).contains(&mark))
    }

    /// The store forgets everything, and the names are built again from the disks.
    #[track_caller]
    fn build_again(&self) {
        self.unmount_all();
        self.agree();
        for master in 0..MASTERS {
            self.store.command(master, &["FLUSHALL"]);
        }
        let repaired = self.fsck(&["--repair"]);
        assert!(repaired.status.success(), "{}{}", written(&repaired), said(&repaired));
        self.agree();
        self.mount_all();
    }
}

/// What is below a directory: the text of files, the targets of links, and directories.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut tree, mut todo) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        for name in list(&directory) {
            let path = directory.join(name);
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let what = if kind.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if kind.is_symlink() {
                format!("to {}", fs::read_link(&path).unwrap().display())
            } else {
                fs::read_to_string(&path).unwrap()
            };
            tree.insert(path.strip_prefix(root).unwrap().to_owned(), what);
        }
    }
    tree
}

/// Both nodes have this below their directories.
#[track_caller]
fn show(dirs: &[PathBuf], expected: &BTreeMap<PathBuf, String>) {
    for dir in dirs {
        assert_eq!(&tree(dir), expected, "{}", dir.display());
    }
}

/// The names in a directory, of which none may come twice.
#[track_caller]
fn list(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.insert(name.clone()), "{name} is listed twice");
    }
    names
}

/// Makes files in a directory, of which some are renamed, linked and removed again at once; and expects the rest.
fn work(directory: &Path, node: &str) -> BTreeMap<PathBuf, String> {
    let mut expected = BTreeMap::new();
    for number in 0..FILES {
        let name = format!("{node}{number}");
        let path = directory.join(&name);
        fs::write(&path, &name).unwrap();
        match number % 6 {
            0 => {
                fs::rename(&path, directory.join(format!("{name}.new"))).unwrap();
                expected.insert(format!("{name}.new").into(), name);
            }
            1 => {
                fs::hard_link(&path, directory.join(format!("{name}.too"))).unwrap();
                expected.insert(format!("{name}.too").into(), name.clone());
                expected.insert(name.clone().into(), name);
            }
            2 => fs::remove_file(&path).unwrap(),
            3 => {
                symlink(&name, directory.join(format!("{name}.link"))).unwrap();
                expected.insert(format!("{name}.link").into(), format!("to {name}"));
                expected.insert(name.clone().into(), name);
            }
            4 => {
                let below = directory.join(format!("{name}.dir"));
                fs::create_dir(&below).unwrap();
                fs::rename(&path, below.join("in")).unwrap();
                expected.insert(format!("{name}.dir").into(), "directory".to_owned());
                expected.insert(format!("{name}.dir/in").into(), name);
            }
            _ => {
                expected.insert(name.clone().into(), name);
            }
        }
    }
    expected
}

/// Changes across the buckets of a split directory, each seen by the other node at once.
fn change(nodes: &Nodes, expected: &mut BTreeMap<PathBuf, String>) {
    let [one, two] = NODES.map(|node| nodes.at(node, "d"));
    for number in (5..FILES).step_by(6) {
        let [mine, theirs] = NODES.map(|node| format!("{node}{number}"));
        if number % 4 == 1 {
            // Over the other's file.
            fs::rename(one.join(&mine), one.join(&theirs)).unwrap();
            let text = expected.remove(Path::new(&mine)).unwrap();
            assert_eq!(fs::read_to_string(two.join(&theirs)).unwrap(), text);
            expected.insert(theirs.into(), text);
        } else {
            let names = (two.join(&mine), two.join(&theirs));
            renameat_with(CWD, &names.0, CWD, &names.1, RenameFlags::EXCHANGE).unwrap();
            assert_eq!(fs::read_to_string(one.join(&mine)).unwrap(), theirs);
            expected.insert(mine.clone().into(), theirs.clone());
            expected.insert(theirs.into(), mine);
        }
    }
    // Out of it, and into it.
    fs::create_dir(nodes.at("two", "aside")).unwrap();
    fs::rename(two.join("two4.dir"), nodes.at("two", "aside/two4.dir")).unwrap();
    assert!(!one.join("two4.dir").exists());
    fs::rename(nodes.at("one", "aside/two4.dir"), one.join("two4.back")).unwrap();
    let moved = [("two4.dir", "two4.back"), ("two4.dir/in", "two4.back/in")];
    for (from, to) in moved {
        let what = expected.remove(Path::new(from)).unwrap();
        expected.insert(to.into(), what);
    }
    assert_eq!(fs::remove_dir(&two).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    for (what, name) in [("u:4711:rw", "one11"), ("d:u:4711:rwx", "")] {
        let set = Command::new("setfacl").args(["-m", what]).arg(one.join(name)).output();
        let Ok(set) = set else { return };
        assert!(set.status.success(), "{}", said(&set));
        let got = Command::new("getfacl").arg("-cn").arg(two.join(name)).output().unwrap();
        assert!(written(&got).contains("user:4711:rw"), "{}", written(&got));
    }
}

#[test]
fn i15_a_directory_that_is_split_while_two_mounts_change_it_has_each_name_once() {
    let Some(nodes) = Nodes::new() else { return };
    let dirs = NODES.map(|node| nodes.at(node, "d"));
    fs::create_dir(&dirs[0]).unwrap();
    let stay: BTreeSet<String> = (0..8).map(|number| format!("stays{number}")).collect();
    for name in &stay {
        fs::write(dirs[0].join(name), name).unwrap();
    }
    assert!(!nodes.is_split(&dirs[0]));
    let is_over = AtomicBool::new(false);
    let mut expected: BTreeMap<PathBuf, String> =
        stay.iter().map(|name| (name.into(), name.clone())).collect();
    thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        let readers = dirs.each_ref().map(|dir| {
            let (stay, is_over) = (&stay, &is_over);
            scope.spawn(move || {
                let mut listings = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let missing: Vec<_> = stay.difference(&list(dir)).cloned().collect();
                    assert!(missing.is_empty(), "{missing:?} of {}", dir.display());
                    listings += 1;
                }
                listings
            })
        });
        let workers = [0, 1].map(|at: usize| {
            scope.spawn({
                let dir = &dirs[at];
                move || work(dir, NODES[at])
            })
        });
        for worker in workers {
            expected.extend(worker.join().unwrap());
        }
        drop(over);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
    });
    assert!(nodes.is_split(&dirs[0]), "it has buckets");
    change(&nodes, &mut expected);
    show(&dirs, &expected);
    nodes.agree();
    nodes.build_again();
    show(&dirs, &expected);
    // The next name splits what was built again, which is whole; then it goes.
    fs::write(dirs[1].join("next"), "next").unwrap();
    assert!(nodes.is_split(&dirs[1]));
    for (at, name) in list(&dirs[0]).iter().enumerate() {
        let path = dirs[at % 2].join(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    assert!(list(&dirs[1]).is_empty());
    fs::remove_dir(&dirs[1]).unwrap();
    assert!(!dirs[0].exists());
    nodes.agree();
}

#[test]
fn i15_who_is_killed_while_it_splits_a_directory_loses_no_name() {
    let Some(nodes) = Nodes::new() else { return };
    for (round, point) in POINTS.into_iter().enumerate() {
        let name = format!("d{round}");
        let [one, two] = NODES.map(|node| nodes.at(node, &name));
        fs::create_dir(&one).unwrap();
        let mut expected = BTreeSet::new();
        let mut make = |dir: &Path, file: String| {
            fs::write(dir.join(&file), &file).unwrap();
            expected.insert(file);
        };
        for file in 0..SPLIT_FROM {
            make(&one, format!("f{file}"));
        }
        let has_filled = AtomicBool::new(false);
        let is_it = move |_, what: &str| {
            has_filled.fetch_or(what.contains("fill"), Ordering::SeqCst);
            has_filled.load(Ordering::SeqCst) && what == point
        };
        let held = Held::first(&nodes.scratch.path("steps"), is_it);
        thread::scope(|scope| {
            let last = scope.spawn(|| fs::write(one.join("last"), "last"));
            let step = held.wait(|| last.is_finished());
            assert_eq!(step.as_deref(), Some(point), "it did not split the directory");
            nodes.scratch.kill("one");
            held.release();
            last.join().unwrap().unwrap_err();
        });
        drop(held);
        // The other one goes on, and splits it itself if need be.
        for file in 0..8 {
            make(&two, format!("g{file}"));
        }
        assert!(nodes.is_split(&two), "{point}");
        let mut found = list(&two);
        // The file that was being made may be there.
        found.remove("last");
        assert_eq!(found, expected, "{point}");
        nodes.mount("one");
        let mut found = list(&one);
        found.remove("last");
        assert_eq!(found, expected, "{point}");
    }
    let before = NODES.map(|node| tree(&nodes.at(node, "")));
    assert_eq!(before[0], before[1]);
    // What the killed mount left of its last file, if anything.
    nodes.unmount_all();
    let repaired = nodes.fsck(&["--repair"]);
    assert!(repaired.status.success(), "{}{}", written(&repaired), said(&repaired));
    nodes.agree();
    nodes.mount_all();
    nodes.build_again();
    eventually("that the files are reached", || {
        NODES.iter().all(|node| tree(&nodes.at(node, "")) == before[0])
    });
}
