//! Mounts of several nodes on one tier, with a real store of names between them (I15).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::process::Output;

use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::waiting::eventually;
use serde_json::Value;

/// The nodes, which are called as their mount points; each has its tiers in `NAME-tiers`.
const NODES: [&str; 3] = ["one", "two", "three"];

struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

impl Nodes {
    /// Mounts so many; `None`, with the reason, where that cannot be tried.
    fn new(count: usize) -> Option<Self> {
        Some(Self(Self::prepared()?.0.mounted(&NODES[..count], &[])))
    }

    fn prepared() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        Some(Self(SharedTiers::new(scratch, &NODES)?))
    }

    fn write(&self, node: &str, name: &str, text: &str) {
        fs::write(self.at(node, name), text).unwrap();
    }

    #[track_caller]
    fn read(&self, node: &str, name: &str) -> String {
        fs::read_to_string(self.at(node, name)).unwrap()
    }

    fn open(&self, node: &str, name: &str) -> File {
        File::options().read(true).write(true).open(self.at(node, name)).unwrap()
    }

    /// Ends a node's process with `kill -9`; its mount point is free again.
    fn kill(&self, node: &str) {
        self.scratch.kill(node);
    }

    fn locate(&self, node: &str, name: &str) -> Value {
        let path = format!("{node}/{name}");
        let told = self.scratch.succeed(&["where", &path, "--json"]);
        serde_json::from_str::<Value>(&told).unwrap()[0].clone()
    }

    fn log(&self, node: &str) -> String {
        let log = format!("{node}-tiers/ssd/.halocline/halocline.log");
        fs::read_to_string(self.scratch.path(&log)).unwrap()
    }
}

#[test]
fn i15_what_one_node_makes_the_others_have_at_once() {
    let Some(nodes) = Nodes::new(3) else { return };
    nodes.write("one", "file", "hello");
    // What is open somewhere does not move to who uses it.
    let held = nodes.open("one", "file");
    for node in NODES {
        assert_eq!(nodes.read(node, "file"), "hello");
    }
    // Written where it is.
    nodes.open("two", "file").write_all_at(b"J", 0).unwrap();
    assert_eq!(nodes.read("three", "file"), "Jello");
    assert_eq!(fs::read_to_string(nodes.scratch.path("one-tiers/ssd/file")).unwrap(), "Jello");
    let place = nodes.locate("three", "file");
    assert_eq!(place["tier_name"], "ssd of one", "{place}");
    drop(held);
    // What is open elsewhere has the size that it has there.
    let mut open = nodes.open("one", "file");
    open.write_all(&[b'x'; 10_000]).unwrap();
    assert_eq!(fs::metadata(nodes.at("two", "file")).unwrap().len(), 10_000);
    drop(open);
    assert_eq!(fs::metadata(nodes.at("two", "file")).unwrap().len(), 10_000);
    let names = |node: &str| {
        let names = fs::read_dir(nodes.scratch.path(node)).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::create_dir(nodes.at("two", "d")).unwrap();
    symlink("file", nodes.at("three", "link")).unwrap();
    assert_eq!(names("one"), ["d", "file", "link"]);
    assert_eq!(names("one"), names("three"));
    let inode = |node: &str| fs::metadata(nodes.at(node, "file")).unwrap().ino();
    assert_eq!(inode("one"), inode("three"));
}

#[test]
fn i15_what_two_nodes_append_is_all_there() {
    const LINES: usize = 400;
    let Some(nodes) = Nodes::new(2) else { return };
    std::thread::scope(|scope| {
        for node in &NODES[..2] {
            let nodes = &nodes;
            scope.spawn(move || {
                let path = nodes.at(node, "log");
                let mut log = File::options().create(true).append(true).open(path).unwrap();
                for line in 0..LINES {
                    // One write for each line.
                    log.write_all(format!("{node} {line}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = nodes.read("two", "log");
    for node in &NODES[..2] {
        let lines: Vec<&str> = log.lines().filter(|line| line.starts_with(node)).collect();
        let wanted: Vec<String> = (0..LINES).map(|line| format!("{node} {line}")).collect();
        assert_eq!(lines, wanted, "each node's in its order");
    }
}

#[test]
fn i15_directories_are_renamed_under_other_nodes() {
    let Some(nodes) = Nodes::new(2) else { return };
    fs::create_dir_all(nodes.at("one", "a/b")).unwrap();
    nodes.write("one", "a/b/file", "1");
    let held = nodes.open("two", "a/b/file");
    fs::rename(nodes.at("one", "a"), nodes.at("one", "z")).unwrap();
    assert_eq!(nodes.read("two", "z/b/file"), "1");
    held.write_all_at(b"2", 0).unwrap();
    nodes.write("two", "z/b/more", "3");
    assert_eq!(
        (nodes.read("one", "z/b/file"), nodes.read("one", "z/b/more")),
        ("2".into(), "3".into())
    );
    // The disk follows.
    assert!(nodes.scratch.path("disk/z/b").is_dir() && !nodes.scratch.path("disk/a").exists());
    // A file gets the place of its new name, replaces another one, and the other node finds it there.
    nodes.write("two", "target", "old");
    let old = nodes.open("one", "target");
    fs::rename(nodes.at("two", "z/b/file"), nodes.at("two", "target")).unwrap();
    assert_eq!(nodes.read("one", "target"), "2");
    assert_eq!(fs::read_to_string(nodes.scratch.path("one-tiers/ssd/target")).unwrap(), "2");
    let mut was = String::new();
    (&old).read_to_string(&mut was).unwrap();
    assert_eq!(was, "old", "who has what was replaced open goes on with it");
    fs::remove_dir_all(nodes.at("one", "z")).unwrap();
    assert!(!nodes.at("two", "z").exists());
}

/// Regression: the rename waited for itself, twenty seconds, to find a name of what it had replaced.
#[test]
fn a_file_that_is_known_by_the_replaced_name_alone_keeps_nobody_waiting() {
    let Some(nodes) = Nodes::new(2) else { return };
    let renames = std::thread::spawn(move || {
        for number in 0..20 {
            let [one, other, new] = ["a", "b", "new"].map(|name| format!("{name}{number}"));
            nodes.write("one", &one, "old");
            fs::hard_link(nodes.at("one", &one), nodes.at("one", &other)).unwrap();
            assert_eq!(nodes.read("two", &other), "old");
            nodes.write("two", &new, "new");
            fs::rename(nodes.at("two", &new), nodes.at("two", &other)).unwrap();
            assert_eq!(
                (nodes.read("one", &other), nodes.read("two", &one)),
                ("new".into(), "old".into())
            );
        }
        drop(nodes);
    });
    eventually("the renames are made", || renames.is_finished());
    renames.join().unwrap();
}

#[test]
fn a_file_that_was_removed_elsewhere_goes_on_where_it_is_open() {
    let Some(nodes) = Nodes::new(2) else { return };
    nodes.write("one", "file", "hello");
    let mut held = nodes.open("two", "file");
    fs::remove_file(nodes.at("one", "file")).unwrap();
    assert!(!nodes.at("two", "file").exists());
    held.write_all_at(b"more", 5).unwrap();
    let mut found = String::new();
    held.read_to_string(&mut found).unwrap();
    assert_eq!(found, "hellomore");
    let stat = held.metadata().unwrap();
    assert_eq!((stat.len(), stat.nlink()), (9, 0));
    held.set_len(3).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 3);
    assert!(!nodes.scratch.path("one-tiers/ssd/file").exists());
    // Its name is free.
    nodes.write("two", "file", "new");
    assert_eq!(nodes.read("one", "file"), "new");
}

#[test]
fn i13_a_node_that_was_killed_comes_back_with_all_that_it_wrote() {
    let Some(nodes) = Nodes::new(2) else { return };
    nodes.write("two", "before", "kept");
    let open = nodes.open("two", "before");
    open.write_all_at(b"kept and more", 0).unwrap();
    nodes.kill("two");
    drop(open);
    // Its SSD is still reached, and has what was written.
    assert_eq!(nodes.read("one", "before"), "kept and more");
    assert_eq!(fs::metadata(nodes.at("one", "before")).unwrap().len(), 13);
    let again = nodes.mount("two", &[]);
    assert!(again.status.success(), "{}", said(&again));
    assert_eq!(nodes.read("two", "before"), "kept and more");
    let held = nodes.open("two", "before");
    assert_eq!(held.metadata().unwrap().len(), 13);
}

#[test]
fn i15_the_files_of_a_node_that_is_not_reached_fail_alone() {
    let Some(nodes) = Nodes::new(2) else { return };
    nodes.write("one", "here", "1");
    nodes.write("two", "there", "2");
    fs::create_dir(nodes.at("two", "d")).unwrap();
    nodes.write("two", "d/there", "3");
    let away = nodes.scratch.path("two-tiers/away");
    fs::rename(nodes.scratch.path("two-tiers/ssd"), &away).unwrap();
    let refused = fs::read(nodes.at("one", "there")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    let log = nodes.log("one");
    assert!(log.contains("node two"), "{log}");
    // Everything else works, also beside and above them.
    assert_eq!(nodes.read("one", "here"), "1");
    assert_eq!(fs::metadata(nodes.at("one", "there")).unwrap().len(), 1);
    fs::rename(nodes.at("one", "d"), nodes.at("one", "e")).unwrap();
    nodes.write("one", "e/beside", "4");
    fs::rename(&away, nodes.scratch.path("two-tiers/ssd")).unwrap();
    assert_eq!(nodes.read("one", "there"), "2");
    assert_eq!(nodes.read("one", "e/there"), "3");
}

#[test]
fn a_tier_with_files_but_no_names_is_not_taken_for_a_new_one() {
    let Some(nodes) = Nodes::prepared() else { return };
    let file = nodes.scratch.path("disk/file");
    fs::write(&file, "somebody's").unwrap();
    let refused = nodes.mount("one", &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(
        said(&refused)
            .contains("cluster fsck --tier ROOT --cluster URL [--peers PATTERN] --repair"),
        "{}",
        said(&refused)
    );
    fs::remove_file(&file).unwrap();
    let mounted = nodes.mount("one", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    nodes.write("one", "file", "ours");
    // Another SSD under the same name, and the same one twice.
    let root = nodes.scratch.path("three-tiers");
    let url = nodes.store.url();
    let same =
        ["mount", "--tier", root.to_str().unwrap(), "three", "--cluster", &url, "--node", "one"];
    let refused = nodes.scratch.halocline(&same);
    assert!(said(&refused).contains("another SSD has the name one"), "{}", said(&refused));
    // Without the store nobody sees the names.
    nodes.scratch.succeed(&["umount", "one"]);
    let alone = nodes.scratch.halocline(&["mount", "--tier", "one-tiers", "one"]);
    assert_eq!(alone.status.code(), Some(2), "{}", said(&alone));
    assert!(said(&alone).contains("--cluster"), "{}", said(&alone));
    // Another store has none of them.
    let other = RedisServer::start(&[]).unwrap();
    let empty = ["mount", "--tier", "one-tiers", "one", "--cluster", &other.url()];
    let refused = nodes.scratch.halocline(&empty);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("this tier had names"), "{}", said(&refused));
    let mounted = nodes.mount("one", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    assert_eq!(nodes.read("one", "file"), "ours");
}

/// Regression: a mount that was refused had taken the name, and its node could never mount.
#[test]
fn a_mount_that_is_refused_takes_no_name_from_another_node() {
    let Some(nodes) = Nodes::prepared() else { return };
    let (url, other) = (nodes.store.url(), RedisServer::start(&[]).unwrap());
    let mounts = |root: &str, url: &str, node: &str| {
        let tier = ["mount", "--tier", root, "three", "--cluster", url, "--node", node];
        nodes.scratch.halocline(&tier)
    };
    assert!(nodes.mount("one", &[]).status.success());
    nodes.scratch.succeed(&["umount", "one"]);
    // One node's SSD under the name of another, and another store.
    let refused = mounts("one-tiers", &url, "two");
    assert!(said(&refused).contains("is that of node one, not of two"), "{}", said(&refused));
    let refused = mounts("three-tiers", &other.url(), "two");
    assert!(said(&refused).contains("this tier had names"), "{}", said(&refused));
    let mounted = nodes.mount("two", &[]);
    assert!(mounted.status.success(), "{}", said(&mounted));
}

#[test]
fn commands_take_a_glob_and_name_the_path_at_which_there_is_nothing() {
    let Some(nodes) = Nodes::new(1) else { return };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    for name in ["d/a.log", "d/b.log", "d/c"] {
        nodes.write("one", name, "text");
    }
    let told = nodes.scratch.succeed(&["where", "one/**/*.log", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    let paths: Vec<_> = told.as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["d/a.log", "d/b.log"]);
    let several = ["where", "one/d/a.log", "one/d/c", "one/**/b*", "--json"];
    let told: Value = serde_json::from_str(&nodes.scratch.succeed(&several)).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 3, "{told}");
    // One that several of them match was told as often.
    let twice = ["where", "one/d/a.log", "one/d/*.log", "one/**/*.log", "--json"];
    let told: Value = serde_json::from_str(&nodes.scratch.succeed(&twice)).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 2, "{told}");
    for command in ["demote", "warm"] {
        let told = nodes.scratch.succeed(&[command, "one/d/c", "one/**/*.log", "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["files"], 3, "{command}: {told}");
    }
    let nothing = "there is no such file or directory on the mount";
    for command in [&["where", "one/x"][..], &["where", "one/x", "0", "1"], &["demote", "one/x"]] {
        let told = said(&nodes.scratch.halocline(command));
        assert!(told.contains("one/x: ") && told.contains(nothing), "{command:?}: {told}");
    }
    for command in [["where", "one/d/x*"], ["demote", "one/d/x*"]] {
        let told = said(&nodes.scratch.halocline(&command));
        assert!(told.contains("no file matches \"d/x*\""), "{command:?}: {told}");
    }
}

/// Regression: ESTALE each time, until the directory's path was looked up otherwise. The kernel holds the lock of all renames while
/// it looks up the last name of one between directories, and then cannot move in its own cache what it has seen elsewhere.
#[test]
fn what_another_node_moved_to_another_directory_is_moved_on_at_once() {
    let Some(nodes) = Nodes::new(2) else { return };
    for path in ["p", "q", "r", "d", "d/e", "z"] {
        fs::create_dir(nodes.at("one", path)).unwrap();
    }
    nodes.write("one", "d/e/g", "g");
    let rename = |from: &str, to: &str| fs::rename(nodes.at("one", from), nodes.at("one", to));
    let move_away = |from: &str, to: &str| {
        fs::rename(nodes.at("two", from), nodes.at("two", to)).unwrap();
    };
    let seen = |path: &str| fs::metadata(nodes.at("one", path)).unwrap();
    seen("d/e/g");
    move_away("d", "p/d");
    rename("p/d", "q/d").unwrap();
    // What this node has moved itself, and seen only by listing.
    move_away("q/d", "p/x");
    rename("p/x", "r/x").unwrap();
    move_away("r/x", "p/x");
    assert_eq!(fs::read_dir(nodes.at("one", "p")).unwrap().count(), 1);
    move_away("p/x", "q/x");
    rename("q/x", "r/x").unwrap();
    // To where it was, whose lock the rename has.
    move_away("r/x", "q/x");
    rename("q/x", "r/y").unwrap();
    // Onto it, and in exchange with it.
    move_away("r/y", "q/y");
    let exchanged = rustix::fs::renameat_with(
        rustix::fs::CWD,
        nodes.at("one", "z"),
        rustix::fs::CWD,
        nodes.at("one", "q/y"),
        rustix::fs::RenameFlags::EXCHANGE,
    );
    exchanged.unwrap();
    move_away("q/y", "p/y");
    fs::create_dir(nodes.at("one", "r/empty")).unwrap();
    rename("r/empty", "p/y").unwrap();
    assert_eq!(fs::read(nodes.at("one", "z/e/g")).unwrap(), b"g");
    assert_eq!(fs::read(nodes.at("two", "z/e/g")).unwrap(), b"g");
    seen("p/y");
}

/// Regression: the messages led to a rebuild in the empty mount point, which read no SSD; the next repair set all files of the SSDs
/// aside, and the real disk had names without files.
#[test]
fn a_shared_disk_that_is_away_is_asked_for_and_one_that_is_lost_costs_no_file_of_an_ssd() {
    let Some(nodes) = Nodes::new(2) else { return };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    nodes.write("one", "d/f", "of one");
    nodes.write("two", "d/g", "of two");
    let unmount = || ["one", "two"].map(|node| nodes.scratch.succeed(&["umount", node]));
    unmount();
    let (disk, real) = (nodes.scratch.path("disk"), nodes.scratch.path("real"));
    fs::rename(&disk, &real).unwrap();
    fs::create_dir(&disk).unwrap();
    let url = nodes.store.url();
    let fsck = |more: &[&str]| shared_tiers::fsck(&nodes.scratch, &url, more);
    for refused in [nodes.mount("one", &[]), fsck(&[]), fsck(&["--repair"]), fsck(&["--confirm"])] {
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains("is the shared disk mounted?"), "{}", said(&refused));
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "{}", said(&refused));
    }
    fs::remove_dir(&disk).unwrap();
    fs::rename(&real, &disk).unwrap();
    assert!(fsck(&[]).status.success(), "{}", said(&fsck(&[])));
    // It is lost.
    fs::remove_dir_all(&disk).unwrap();
    fs::create_dir(&disk).unwrap();
    let built = fsck(&["--repair", "--shared-disk-lost"]);
    let told = [said(&built), written(&built)].concat();
    assert!(built.status.success() && told.contains("were read: one, two"), "{told}");
    for node in ["one", "two"] {
        let mounted = nodes.mount(node, &[]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
    assert_eq!([nodes.read("two", "d/f"), nodes.read("one", "d/g")], ["of one", "of two"]);
    unmount();
    assert!(fsck(&[]).status.success(), "{}", written(&fsck(&[])));
    // Another SSD was mounted in place of this one.
    fs::write(disk.join(".halocline/node-one"), "another").unwrap();
    let refused = nodes.mount("one", &[]);
    let told = said(&refused);
    assert!(told.contains("this one was that of node one before"), "{told}");
    let other =
        nodes.scratch.halocline(&["cluster", "fsck", "--tier", "one-tiers/ssd", "--cluster", &url]);
    assert!(said(&other).contains("give ROOT"), "{}", said(&other));
}

/// Regression: only the locks on the new disk counted, which no mount has, so the command that a refused mount prints rewrote the
/// SSDs of nodes at work, and gave the same SSDs names of two stores.
#[test]
fn i15_a_shared_disk_is_not_lost_while_a_node_of_its_tier_is_at_work() {
    let Some(nodes) = Nodes::new(2) else { return };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    nodes.write("one", "d/f", "of one");
    nodes.write("two", "d/g", "of two");
    nodes.scratch.succeed(&["umount", "two"]);
    // It is not mounted at the other node.
    let empty = nodes.scratch.path("two-tiers/hdd");
    fs::remove_file(&empty).unwrap();
    fs::create_dir(&empty).unwrap();
    let (url, peers) = (nodes.store.url(), shared_tiers::peers(&nodes.scratch));
    let lost = |root: &str| {
        let tier = ["cluster", "fsck", "--tier", root, "--cluster", &url, "--peers", &peers];
        nodes.scratch.halocline(&[&tier[..], &["--repair", "--shared-disk-lost"]].concat())
    };
    let refused_with = |refused: Output, why: &str| {
        let told = [said(&refused), written(&refused)].concat();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(why), "{told}");
    };
    refused_with(lost("two-tiers"), "node one is mounted");
    let process = format!("process {} on ", nodes.scratch.pid("one"));
    refused_with(lost("two-tiers"), &process);
    // The disk was detached under the mount itself.
    let hdd = nodes.scratch.path("one-tiers/hdd");
    fs::remove_file(&hdd).unwrap();
    fs::create_dir(&hdd).unwrap();
    refused_with(lost("one-tiers"), &process);
    // Where locks of SSDs do not reach.
    fs::remove_file(nodes.scratch.path("one-tiers/ssd/.halocline/in-use")).unwrap();
    for root in ["one-tiers", "two-tiers"] {
        refused_with(lost(root), "node one of this tier is at work with another shared disk");
    }
    for dir in [&empty, &hdd] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }
    // As a repair that was not refused would leave it.
    fs::create_dir_all(empty.join(".halocline/nodes")).unwrap();
    fs::write(empty.join(".halocline/nodes/two"), "").unwrap();
    let id = nodes.scratch.path("disk/.halocline/tier");
    fs::copy(id, empty.join(".halocline/tier")).unwrap();
    refused_with(nodes.mount("two", &[]), "node one of this tier is at work with another");
    assert_eq!(nodes.read("one", "d/f"), "of one");
    nodes.scratch.succeed(&["umount", "one"]);
    fs::remove_dir_all(&empty).unwrap();
    fs::create_dir(&empty).unwrap();
    let built = lost("two-tiers");
    let told = [said(&built), written(&built)].concat();
    assert!(built.status.success() && told.contains("were read: one, two"), "{told}");
}
