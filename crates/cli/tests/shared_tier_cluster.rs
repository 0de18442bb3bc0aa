//! A tier that nodes share, with its names on the masters of a Redis Cluster (D12).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster, STEADY};
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{fsck, make, mount_with, unmount};
use halocline_testkit::waiting::eventually;

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
            // The second one takes requests from `/dev/fuse`.
            let more: &[&str] = if node == "two" { &["--io-uring=false"] } else { &[] };
            let mounted = mount_with(&self.scratch, &self.store.urls(), node, more);
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

/// What is in a directory, and of how much of it there are no attributes.
fn listed(dir: &Path) -> std::io::Result<(usize, usize)> {
    let (mut names, mut silent) = (0, 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        names += 1;
        silent += usize::from(entry.metadata().is_err());
    }
    Ok((names, silent))
}

/// The names of a directory are on one master, and the attributes of the directories in it, and of files with several names,
/// on any. Regression: what the dead master had of these was missing, for as long as nobody repaired the names, and `ls`
/// ended with 0.
#[test]
fn what_a_dead_master_has_attributes_of_is_still_listed() {
    const EACH: usize = 8;
    let Some(mut nodes) = Nodes::new() else { return };
    for number in 0..DIRECTORIES {
        let at = |name: &str, other| nodes.at("one", &format!("d{number}/{name}{other}"));
        for other in 0..EACH {
            fs::create_dir_all(at("d", other)).unwrap();
            // In the others, all names without attributes of their own are known as directories.
            if number.is_multiple_of(2) {
                fs::write(at("f", other), "x").unwrap();
                fs::hard_link(at("f", other), at("l", other)).unwrap();
            }
        }
    }
    let all = |number: usize| if number.is_multiple_of(2) { 3 * EACH } else { EACH };
    // All paths lead through the root.
    let has_root = |master: &usize| {
        !nodes.store.command(*master, &["KEYS", "halocline:*:names:1:*"]).is_empty()
    };
    let dead = (0..MASTERS).find(|master| !has_root(master)).unwrap();
    let mut keys = (0..).map(|number| format!("key{number}"));
    let key = keys.find(|key| nodes.store.master_of(key) == dead).unwrap();
    nodes.store.kill(dead);
    // At first nobody has its part, and then a replica that may have forgotten names.
    for is_replaced in [false, true] {
        if is_replaced {
            nodes.store.wait_for_successor(dead, &key);
        }
        for node in NODES {
            let dir = |number| nodes.at(node, &format!("d{number}"));
            eventually("a listing of names without attributes", || {
                let mut was_tried = false;
                for number in 0..DIRECTORIES {
                    let Ok((names, silent)) = listed(&dir(number)) else { continue };
                    assert_eq!(names, all(number), "{node}, d{number}, {is_replaced}");
                    was_tried |= silent > 0;
                }
                was_tried
            });
            for number in 0..DIRECTORIES {
                let ls = Command::new("ls").arg(dir(number)).output().unwrap();
                let names = written(&ls).lines().count();
                assert!(!ls.status.success() || names == all(number), "{node}, d{number}: {names}");
            }
        }
    }
}
