//! Directories of a shared tier that are so deep that no program can name what is in them. Everybody can make such a tree,
//! by moving directories below one another, and it must neither be lost nor stop anything else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use halocline_os::beneath::TreeCursor;
use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::waiting::eventually;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, linkat, mkdirat, openat, renameat, statat};
use rustix::fs::{symlinkat, unlinkat};

const NODES: [&str; 2] = ["one", "two"];
/// Directories that are moved below one another, and the levels of each: a path in it has 3,600 bytes.
const PARTS: [&str; 4] = ["a", "b", "c", "d"];
const LEVELS: usize = 15;

struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

/// The name of a level of a part.
fn level(part: &str) -> String {
    part.repeat(240)
}

fn write_at(cursor: &TreeCursor, name: &str, text: &str) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let made = openat(cursor.directory(), name, flags, Mode::from_raw_mode(0o644)).unwrap();
    File::from(made).write_all(text.as_bytes()).unwrap();
}

fn read_at(cursor: &TreeCursor, name: &OsStr) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = String::new();
    let file = openat(cursor.directory(), name, flags, Mode::empty()).unwrap();
    File::from(file).read_to_string(&mut text).unwrap();
    text
}

impl Nodes {
    fn new() -> Option<Self> {
        Some(Self(SharedTiers::started(program!(), &NODES, &[])?))
    }

    fn mount_again(&self) {
        for node in NODES {
            let mounted = self.mount(node, &[]);
            assert!(mounted.status.success(), "{}", said(&mounted));
        }
    }

    fn unmount(&self) {
        for node in NODES {
            shared_tiers::unmount(&self.scratch, node);
        }
    }

    fn cursor(&self, node: &str) -> TreeCursor {
        TreeCursor::new(File::open(self.scratch.path(node)).unwrap()).unwrap()
    }

    /// In the lowest directory of a part, which is below all parts before it.
    fn lowest(&self, node: &str, part: usize) -> TreeCursor {
        let mut cursor = self.cursor(node);
        for part in &PARTS[..=part] {
            (0..LEVELS).for_each(|_| cursor.enter(OsStr::new(&level(part))).unwrap());
        }
        cursor
    }

    /// Makes the parts, with a file in each directory, made by both nodes in turn; then moves each below the one before.
    fn make(&self) {
        for part in PARTS {
            let (mut one, mut two) = (self.cursor("one"), self.cursor("two"));
            for at in 0..LEVELS {
                mkdirat(one.directory(), level(part).as_str(), Mode::RWXU).unwrap();
                for cursor in [&mut one, &mut two] {
                    cursor.enter(OsStr::new(&level(part))).unwrap();
                }
                write_at(if at % 2 == 0 { &one } else { &two }, "f", &format!("{part}{at}"));
            }
        }
        for (above, part) in PARTS[1..].iter().enumerate() {
            let to = self.lowest("one", above);
            let name = level(part);
            let root = File::open(self.scratch.path("one")).unwrap();
            renameat(&root, name.as_str(), to.directory(), name.as_str()).unwrap();
        }
    }

    /// All that a node shows: paths with the texts of files.
    fn shown(&self, node: &str) -> BTreeMap<PathBuf, String> {
        let (mut shown, mut cursor) = (BTreeMap::new(), self.cursor(node));
        let mut todo = vec![PathBuf::new()];
        while let Some(path) = todo.pop() {
            if let Some(name) = path.file_name() {
                cursor.leave_to(path.iter().count() - 1).unwrap();
                cursor.enter(name).unwrap();
            }
            for name in cursor.names().unwrap() {
                let stat = statat(cursor.directory(), &name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
                let text = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => {
                        todo.push(path.join(&name));
                        "directory".to_owned()
                    }
                    FileType::Symlink => "link".to_owned(),
                    _ => read_at(&cursor, &name),
                };
                shown.insert(path.join(&name), text);
            }
        }
        shown
    }

    fn remove_all(&self, node: &str) {
        let mut paths: Vec<PathBuf> = self.shown(node).into_keys().collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.iter().count()));
        for path in paths {
            let mut cursor = self.cursor(node);
            path.parent().unwrap().iter().for_each(|name| cursor.enter(name).unwrap());
            let name = path.file_name().unwrap();
            unlinkat(cursor.directory(), name, AtFlags::empty())
                .or_else(|_| unlinkat(cursor.directory(), name, AtFlags::REMOVEDIR))
                .unwrap();
        }
    }

    fn fsck(&self, more: &[&str]) {
        let done = shared_tiers::fsck(&self.scratch, &self.store.url(), more);
        assert!(done.status.success(), "{more:?}: {}", said(&done));
    }

    /// The store forgets all names, which are then built again.
    fn rebuild(&self) {
        let before = self.shown("one");
        assert_eq!(self.shown("two"), before);
        self.unmount();
        self.fsck(&[]);
        self.store.command(&["FLUSHALL"]);
        self.fsck(&["--repair"]);
        self.fsck(&[]);
        self.mount_again();
        assert_eq!(self.shown("one"), before);
        assert_eq!(self.shown("two"), before);
    }

    /// The directories on the disks and SSDs, without those that are Halocline's own.
    fn directories_on_disks(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for disk in ["disk", "one-tiers/ssd", "two-tiers/ssd"] {
            let mut cursor = self.cursor(disk);
            let mut todo: Vec<PathBuf> = vec![PathBuf::new()];
            while let Some(path) = todo.pop() {
                if let Some(name) = path.file_name() {
                    cursor.leave_to(path.iter().count() - 1).unwrap();
                    // The background removes it meanwhile.
                    if cursor.enter(name).is_err() {
                        continue;
                    }
                    all.push(PathBuf::from(disk).join(&path));
                }
                for name in cursor.names().unwrap_or_default() {
                    let stat = statat(cursor.directory(), &name, AtFlags::SYMLINK_NOFOLLOW);
                    let is = |mode| FileType::from_raw_mode(mode) == FileType::Directory;
                    let is_private = name.as_encoded_bytes().starts_with(b".halocline");
                    if stat.is_ok_and(|stat| is(stat.st_mode)) && !is_private {
                        todo.push(path.join(name));
                    }
                }
            }
        }
        all
    }

    fn files_on_ssds(&self) -> usize {
        let all = self.scratch.succeed(&["where", "one", "--json"]);
        let all: serde_json::Value = serde_json::from_str(&all).unwrap();
        let all = all.as_array().unwrap().iter();
        all.filter(|file| file["tier_name"].as_str().unwrap().starts_with("ssd")).count()
    }
}

/// Regression: the drain ended with status 1, the check said "File name too long", and after a loss of the store nobody
/// could mount the tier until root had moved the directories on the disk.
#[test]
fn i15_nothing_is_lost_or_stopped_by_a_tree_deeper_than_paths_are_long() {
    let Some(nodes) = Nodes::new() else { return };
    std::fs::write(nodes.at("two", "another's"), "in the root").unwrap();
    nodes.make();
    assert_eq!(nodes.shown("two").len(), 2 * PARTS.len() * LEVELS + 1);
    nodes.rebuild();
    assert_eq!(nodes.files_on_ssds(), PARTS.len() * LEVELS + 1, "they are where they were");
    // Everything can be made there, too.
    let deep = nodes.lowest("one", 3);
    mkdirat(deep.directory(), "made here", Mode::RWXU).unwrap();
    write_at(&deep, "new", "made in the depth");
    linkat(deep.directory(), "new", deep.directory(), "other", AtFlags::empty()).unwrap();
    symlinkat("new", deep.directory(), "link").unwrap();
    write_at(&nodes.cursor("two"), "g", "moved there");
    let root = File::open(nodes.scratch.path("two")).unwrap();
    renameat(&root, "g", nodes.lowest("two", 3).directory(), "moved").unwrap();
    drop((deep, root));
    nodes.rebuild();
    for (node, through) in [("one", "two"), ("two", "one")] {
        nodes.moves(&["cluster", "drain", node, through]);
    }
    assert_eq!(nodes.files_on_ssds(), 0);
    nodes.rebuild();
    // What is too deep for an SSD is named, and all else is moved.
    let warmed = nodes.scratch.halocline(&["warm", "one"]);
    let told = String::from_utf8_lossy(&warmed.stdout).into_owned() + &said(&warmed);
    assert!(told.contains("too deep for an SSD"), "{told}");
    // Regression: the last line spoke of room.
    assert!(!told.contains("room"), "{told}");
    assert_eq!(nodes.files_on_ssds(), LEVELS + 1);
    nodes.rebuild();
    nodes.remove_all("two");
    assert!(nodes.shown("one").is_empty());
    // Regression: those that had been renamed, and those on the SSD of the other node, stayed there until a repair.
    nodes.unmount();
    nodes.mount_again();
    eventually("that no directory is left on a disk", || nodes.directories_on_disks().is_empty());
    nodes.rebuild();
}

/// Regression: at each open of a file that was too deep for the SSD, the store was asked for the whole way to it: two requests
/// for each directory.
#[test]
fn opens_in_a_deep_tree_cost_what_opens_cost() {
    const OPENS: u128 = 40;
    /// How long a node believes what it has read, at least (`halocline_cluster::names::LEASE_MS`).
    const LEASE_MS: u128 = 80;
    let Some(nodes) = Nodes::new() else { return };
    nodes.make();
    for (node, through) in [("one", "two"), ("two", "one")] {
        nodes.moves(&["cluster", "drain", node, through]);
    }
    nodes.unmount();
    nodes.mount_again();
    let deep = nodes.lowest("one", PARTS.len() - 1);
    read_at(&deep, OsStr::new("f"));
    let (before, begun) = (nodes.requests("one"), Instant::now());
    for _ in 0..OPENS {
        read_at(&deep, OsStr::new("f"));
    }
    let leases = begun.elapsed().as_millis() / LEASE_MS;
    let requests = nodes.requests("one") - before;
    println!("{requests} requests for {OPENS} opens in {:?}", begun.elapsed());
    // The name and its directory, the open and the close.
    assert!(requests <= 10 * OPENS + 8 * leases, "{requests} requests");
}

/// Regression: a repair kept a directory open for each one that it was to rename.
#[test]
fn a_repair_renames_more_directories_than_it_may_open() {
    const DIRECTORIES: usize = 500;
    let Some(nodes) = Nodes::new() else { return };
    for at in 0..DIRECTORIES {
        fs::create_dir_all(nodes.at("one", &format!("d{at}/below"))).unwrap();
    }
    let before = nodes.shown("two");
    nodes.unmount();
    // Somebody moves them on the disk: each into the next one, and what is in it beside it.
    let on_disk = |path: String| nodes.scratch.path("disk").join(path);
    for at in 0..DIRECTORIES {
        fs::rename(on_disk(format!("d{at}/below")), on_disk(format!("below{at}"))).unwrap();
        if at > 0 {
            let into = format!("below{}/d{at}", at - 1);
            fs::rename(on_disk(format!("d{at}")), on_disk(into)).unwrap();
        }
    }
    let (url, peers) = (nodes.store.url(), shared_tiers::peers(&nodes.scratch));
    let repair = [
        "cluster",
        "fsck",
        "--tier",
        "one-tiers",
        "--cluster",
        &url,
        "--peers",
        &peers,
        "--repair",
    ];
    let repaired = Command::new("sh")
        .args(["-c", "ulimit -n 128; exec \"$0\" \"$@\""])
        .arg(nodes.scratch.program())
        .args(repair)
        .current_dir(nodes.scratch.root())
        .output()
        .unwrap();
    assert!(repaired.status.success(), "{}", said(&repaired));
    nodes.fsck(&[]);
    nodes.mount_again();
    assert_eq!(nodes.shown("one"), before);
    assert!(on_disk("d7/below".to_owned()).is_dir());
}
