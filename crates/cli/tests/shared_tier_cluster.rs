//! A tier that nodes share, with its names on the masters of a Redis Cluster (D12).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use halocline_testkit::program;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster, STEADY};
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{fsck, make, mount_with, unmount};

const NODES: [&str; 2] = ["one", "two"];
/// So many that each master has some.
const DIRECTORIES: usize = 24;

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
        nodes.mount();
        Some(nodes)
    }

    fn mount(&self) {
        for node in NODES {
            let mounted = mount_with(&self.scratch, &self.store.urls(), node, &[]);
            assert!(mounted.status.success(), "{}", said(&mounted));
        }
    }

    fn unmount(&self) {
        for node in NODES {
            unmount(&self.scratch, node);
        }
    }

    fn at(&self, node: &str, name: &str) -> PathBuf {
        self.scratch.path(node).join(name)
    }

    /// Each directory has a file of the first node, and one of the second one, which has a name in the next directory, too.
    fn fill(&self) {
        for number in 0..DIRECTORIES {
            fs::create_dir(self.at("one", &format!("d{number}"))).unwrap();
        }
        for number in 0..DIRECTORIES {
            let (file, other) = (format!("d{number}/f"), format!("d{number}/g"));
            fs::write(self.at("one", &file), &file).unwrap();
            fs::write(self.at("two", &other), &other).unwrap();
            let next = format!("d{}/l", (number + 1) % DIRECTORIES);
            fs::hard_link(self.at("two", &other), self.at("two", &next)).unwrap();
        }
    }

    fn set_memory(&self, master: usize, limit: &str) {
        let done = self.store.command(master, &["CONFIG", "SET", "maxmemory", limit]);
        assert!(done.contains("OK"), "{done}");
    }

    fn check(&self, more: &[&str]) -> bool {
        let done = fsck(&self.scratch, &self.store.urls(), more);
        println!("{}{}", written(&done), said(&done));
        done.status.success()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in NODES {
            let _ = self.scratch.halocline(&["umount", "--force", node]);
        }
    }
}

/// All files below a directory, with their text.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut tree, mut todo) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                tree.insert(path.strip_prefix(root).unwrap().to_owned(), text);
            }
        }
    }
    tree
}

#[test]
fn i15_names_on_several_masters_are_one_tree_and_are_built_again() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.fill();
    let used = |master| nodes.store.command(master, &["DBSIZE"]) != ":0";
    assert!((0..MASTERS).all(used), "each master has names");
    for number in 0..DIRECTORIES {
        let (from, to) = (format!("d{number}/f"), format!("d{}/moved", (number + 7) % DIRECTORIES));
        let node = NODES[number % 2];
        fs::rename(nodes.at(node, &from), nodes.at(node, &to)).unwrap();
    }
    fs::rename(nodes.at("two", "d3"), nodes.at("two", "d4/below")).unwrap();
    fs::remove_dir_all(nodes.at("one", "d5")).unwrap();
    let before = tree(&nodes.at("one", ""));
    assert_eq!(before.len(), 3 * (DIRECTORIES - 1));
    assert_eq!(tree(&nodes.at("two", "")), before);
    nodes.unmount();
    assert!(nodes.check(&[]));
    for master in 0..MASTERS {
        nodes.store.command(master, &["FLUSHALL"]);
    }
    assert!(!nodes.check(&[]) && nodes.check(&["--repair"]));
    nodes.mount();
    for node in NODES {
        assert_eq!(tree(&nodes.at(node, "")), before, "{node}");
    }
}

/// What a full server still does, each master of a cluster does, too; and masters that have room go on.
#[test]
fn masters_without_memory_are_a_full_disk_to_programs() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.fill();
    let before = tree(&nodes.at("one", ""));
    let new = |number: usize, name: &str| {
        let made = fs::write(nodes.at(NODES[number % 2], &format!("d{number}/{name}")), "new");
        made.map_err(|error| error.kind())
    };
    nodes.set_memory(1, "1");
    let made = (0..DIRECTORIES).filter(|number| new(*number, "one-is-full").is_ok()).count();
    assert!((1..DIRECTORIES).contains(&made), "{made}");
    for master in 0..MASTERS {
        nodes.set_memory(master, "1");
    }
    for number in 0..DIRECTORIES {
        assert_eq!(new(number, "all-are-full"), Err(ErrorKind::StorageFull), "d{number}");
    }
    let status = nodes.scratch.succeed(&["status", "one"]);
    assert!(status.contains("the store of names is full"), "{status}");
    for node in NODES {
        let mut now = tree(&nodes.at(node, ""));
        now.retain(|path, _| !path.ends_with("one-is-full"));
        assert_eq!(now, before, "{node}");
    }
    // Names of two directories, on masters of their own.
    for number in 0..DIRECTORIES {
        fs::remove_file(nodes.at(NODES[number % 2], &format!("d{number}/l"))).unwrap();
        fs::remove_dir_all(nodes.at(NODES[(number + 1) % 2], &format!("d{number}"))).unwrap();
    }
    assert!(tree(&nodes.at("two", "")).is_empty());
    for master in 0..MASTERS {
        nodes.set_memory(master, "0");
    }
    fs::create_dir(nodes.at("two", "d0")).unwrap();
    assert_eq!(new(0, "again"), Ok(()));
    nodes.unmount();
    assert!(nodes.check(&[]));
}
