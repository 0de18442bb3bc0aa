//! The space on the SSDs of a tier that nodes share: a policy demotes and promotes files by itself, over two mounts (I15).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::{self, SharedTiers};
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

const NODES: [&str; 2] = ["one", "two"];
const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

struct Nodes {
    tiers: SharedTiers,
    /// File systems of their own below some directories.
    mounted: Vec<PathBuf>,
}

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.tiers
    }
}

impl Nodes {
    /// Two nodes that are not mounted yet; `None`, with the reason, where that cannot be tried.
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        Some(Self { tiers: SharedTiers::new(scratch, &NODES)?, mounted: Vec::new() })
    }

    fn mounts(&self, node: &str, options: &[&str]) {
        let mounted = self.mount(node, options);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }

    fn mount_both(&self, options: &[&str]) {
        for node in NODES {
            self.mounts(node, options);
        }
    }

    fn unmount(&self) {
        for node in NODES {
            drop(self.scratch.succeed(&["umount", node]));
        }
    }

    fn json(&self, args: &[&str]) -> Value {
        let told = self.scratch.succeed(&[args, &["--json"]].concat());
        serde_json::from_str(&told).unwrap()
    }

    fn tier(&self, node: &str) -> Value {
        self.scratch.status(node)["tier"].clone()
    }

    fn used(&self, node: &str) -> u64 {
        self.scratch.status(node)["used_bytes"].as_u64().unwrap()
    }

    /// The tier of each file.
    fn places(&self) -> BTreeMap<String, String> {
        let all = self.json(&["where", "one"]);
        let text = |file: &Value, key: &str| file[key].as_str().unwrap().to_owned();
        let files = all.as_array().unwrap().iter();
        files.map(|file| (text(file, "path"), text(file, "tier_name"))).collect()
    }

    fn fsck(&self, more: &[&str]) -> (bool, String) {
        let done = shared_tiers::fsck(&self.scratch, &self.store.url(), more);
        (done.status.success(), said(&done))
    }

    /// Gives a directory a file system of its own, of some bytes.
    fn mount_small(&mut self, name: &str, bytes: u64) -> bool {
        let at = self.scratch.path(name);
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        let is_mounted = done.is_ok_and(|done| done.status.success());
        if is_mounted {
            self.mounted.push(at.clone());
        }
        let keeps = is_mounted && keeps_attributes(&at);
        if !keeps {
            skip("there is no small file system with extended attributes here");
        }
        keeps
    }
}

fn keeps_attributes(at: &Path) -> bool {
    let file = at.join("try");
    fs::write(&file, "").unwrap();
    let set = rustix::fs::setxattr(&file, "user.try", b"1", rustix::fs::XattrFlags::empty());
    fs::remove_file(file).unwrap();
    set.is_ok()
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in NODES {
            let _ = self.scratch.halocline(&["umount", "--force", node]);
        }
        for at in &self.mounted {
            let _ = Command::new("umount").arg("--lazy").arg(at).status();
        }
    }
}

/// Bytes that only this file has.
fn bytes_of(name: &str, len: usize) -> Vec<u8> {
    name.bytes().cycle().take(len).collect()
}

#[track_caller]
fn all_there(nodes: &Nodes, names: impl IntoIterator<Item = String>, len: usize) {
    for name in names {
        for node in NODES {
            let read =
                fs::read(nodes.at(node, &name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(read, bytes_of(&name, len), "{name} on {node}");
        }
    }
}

const LRU: [&str; 4] = ["--policy", "lru", "--ssd-limit", "4M"];

#[test]
fn an_ssd_that_fills_gives_what_was_used_longest_ago_to_the_shared_disk() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&LRU);
    fs::create_dir(nodes.at("one", "d")).unwrap();
    fs::write(nodes.at("one", "d/pinned"), bytes_of("d/pinned", 256 * KIB)).unwrap();
    nodes.scratch.succeed(&["pin", "d/pin*", "--on", "two"]);
    eventually("the rule of the other node is known", || {
        nodes.scratch.status("one")["rules"]["pin"][0] == "d/pin*"
    });
    let mut open = File::create(nodes.at("one", "d/open")).unwrap();
    open.write_all(&bytes_of("d/open", 256 * KIB)).unwrap();
    let name = |at: usize| format!("d/f{at:02}");
    for at in 0..16 {
        fs::write(nodes.at("one", &name(at)), bytes_of(&name(at), 512 * KIB)).unwrap();
    }
    let high = nodes.tier("one")["high_bytes"].as_u64().unwrap();
    eventually("the SSD is below its limit", || nodes.used("one") <= high);
    eventually("nothing waits for room", || nodes.tier("one")["waiting_bytes"] == 0);
    // More may leave meanwhile: what left by then is on the shared disk.
    let demoted = nodes.tier("one")["demoted"].clone();
    let places = nodes.places();
    assert_eq!(places["d/pinned"], "ssd of one", "{places:?}");
    assert_eq!(places["d/open"], "ssd of one", "{places:?}");
    assert_eq!(places[&name(0)], "hdd", "{places:?}");
    let on_disk = places.values().filter(|tier| *tier == "hdd").count();
    assert!((8..16).contains(&on_disk), "{places:?}");
    assert!(demoted["files"].as_u64().unwrap() <= on_disk as u64, "{demoted} {places:?}");
    assert!(demoted["bytes"].as_u64().unwrap() > 0);
    // Programs see none of it.
    open.write_all(b"more").unwrap();
    drop(open);
    let expected = [bytes_of("d/open", 256 * KIB), b"more".to_vec()].concat();
    assert_eq!(fs::read(nodes.at("two", "d/open")).unwrap(), expected);
    all_there(&nodes, (0..16).map(name), 512 * KIB);
    assert_eq!(fs::read(nodes.at("two", "d/pinned")).unwrap(), bytes_of("d/pinned", 256 * KIB));
    nodes.unmount();
    let (is_right, told) = nodes.fsck(&[]);
    assert!(is_right, "{told}");
    // What is on the SSD is known again.
    nodes.mounts("one", &LRU);
    eventually("what is on the SSD is counted", || {
        let used = nodes.used("one");
        used > 0 && used <= high && nodes.tier("one")["ssd_files"].as_u64() > Some(0)
    });
}

/// Regression: eight files of one user, with all the attributes that they can have, kept all others on the SSD; and commands
/// said that the disk had no room, or, of empty files, nothing.
#[test]
fn files_that_cannot_move_for_their_attributes_hold_up_no_others() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&LRU);
    for at in 0..24 {
        let path = nodes.at("one", &format!("full{at}"));
        fs::write(&path, if at == 0 { "" } else { "bytes" }).unwrap();
        let set = |number: usize, bytes: usize| {
            let (name, value) = (format!("user.{bytes}-{number}"), vec![b'v'; bytes]);
            rustix::fs::setxattr(&path, &name, &value, rustix::fs::XattrFlags::empty()).is_ok()
        };
        let kept = [400, 40, 1].map(|bytes| (0..100).take_while(|at| set(*at, bytes)).count());
        if kept.contains(&100) {
            return skip("this file system keeps any number of attributes");
        }
    }
    for at in 0..16 {
        fs::write(nodes.at("one", &format!("f{at}")), bytes_of("f", 512 * KIB)).unwrap();
    }
    let high = nodes.tier("one")["high_bytes"].as_u64().unwrap();
    eventually("the SSD is below its limit", || nodes.used("one") <= high);
    eventually("they are closed", || {
        let tried = nodes.scratch.halocline(&["demote", "one/full0"]);
        let told = [written(&tried), said(&tried)].concat();
        assert_eq!(tried.status.code(), Some(1), "an empty file that stays: {told}");
        told.contains("setfattr -x")
    });
    let drained = nodes.scratch.halocline(&["cluster", "drain", "one", "two"]);
    let told = [written(&drained), said(&drained)].concat();
    assert_eq!(drained.status.code(), Some(1), "{told}");
    assert_eq!(told.matches("setfattr -x").count(), 24, "{told}");
    let places = nodes.places();
    let stay: Vec<_> = places.iter().filter(|(_, tier)| *tier != "hdd").map(|at| at.0).collect();
    assert!(stay.len() == 24 && stay.iter().all(|name| name.starts_with("full")), "{stay:?}");
}

#[test]
fn what_is_used_comes_to_the_ssd_of_the_node_that_uses_it() {
    let Some(nodes) = Nodes::new() else { return };
    // The kernel would serve what is on the SSD by itself, and nothing would count its bytes.
    let options =
        ["--policy", "lru", "--ssd-limit", "64M", "--exclude", "no/*", "--passthrough=false"];
    nodes.mount_both(&options);
    fs::create_dir(nodes.at("one", "no")).unwrap();
    for name in ["a", "b", "no/c", "pinned"] {
        fs::write(nodes.at("one", name), bytes_of(name, 100 * KIB)).unwrap();
    }
    assert_eq!(nodes.places()["no/c"], "hdd", "excluded");
    nodes.until_closed("one", "");
    nodes.moves(&["demote", "one/a"]);
    nodes.scratch.succeed(&["pin", "pinned", "--on", "two"]);
    let read = |name: &str| {
        assert_eq!(fs::read(nodes.at("two", name)).unwrap(), bytes_of(name, 100 * KIB), "{name}");
        // The kernel tells of a close a little later.
        nodes.until_closed("two", name);
        nodes.places()[name].clone()
    };
    assert_eq!(read("a"), "ssd of two", "from the shared disk");
    assert_eq!(read("b"), "ssd of one", "one use is not worth the way");
    assert_eq!(read("b"), "ssd of two", "two are");
    for _ in 0..3 {
        assert_eq!(read("no/c"), "hdd", "excluded");
        assert_eq!(read("pinned"), "ssd of one", "pinned there");
    }
    let tier = nodes.tier("two");
    assert_eq!(tier["promoted"]["files"], 2, "{tier}");
    assert_eq!(tier["opens"]["promoted"], 2, "{tier}");
    assert_eq!(tier["ssd_files"], 2, "{tier}");
    assert!(tier["requests"]["on_ssd"]["read_bytes"].as_u64() > Some(0), "{tier}");
    assert!(tier["requests"]["in_place"]["read_bytes"].as_u64() > Some(0), "{tier}");
}

/// Each name is made, read and demoted while the other node does the same.
#[test]
fn many_small_files_of_two_nodes_leave_at_once() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&["--policy", "lru", "--ssd-limit", "400K"]);
    fs::create_dir(nodes.at("one", "d")).unwrap();
    let name = |node: &str, at: usize| format!("d/{node}-{at}");
    std::thread::scope(|scope| {
        for node in NODES {
            let nodes = &nodes;
            scope.spawn(move || {
                for at in 0..200 {
                    let name = name(node, at);
                    fs::write(nodes.at(node, &name), bytes_of(&name, 3 * KIB)).unwrap();
                }
            });
        }
    });
    for node in NODES {
        let high = nodes.tier(node)["high_bytes"].as_u64().unwrap();
        eventually("the SSD is below its limit", || nodes.used(node) <= high);
        assert_ne!(nodes.tier(node)["demoted"]["files"], 0);
    }
    let names = || NODES.iter().flat_map(|node| (0..200).map(|at| name(node, at)));
    all_there(&nodes, names(), 3 * KIB);
    nodes.unmount();
    let (is_right, told) = nodes.fsck(&[]);
    assert!(is_right, "{told}");
}

#[test]
fn a_mount_that_is_killed_while_files_move_by_themselves_loses_nothing() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&["--ssd-limit", "64M"]);
    let name = |at: usize| format!("f{at:03}");
    for at in 0..120 {
        fs::write(nodes.at("one", &name(at)), bytes_of(&name(at), 64 * KIB)).unwrap();
    }
    nodes.scratch.succeed(&["umount", "one"]);
    for round in 0..4_u64 {
        // Each time it is given less, so that files leave.
        nodes.mounts("one", &["--policy", "lru", "--ssd-limit", &format!("{}M", 6 - round)]);
        eventually("files leave", || nodes.tier("one")["demoted"]["files"].as_u64() > Some(round));
        kill_process(nodes.scratch.pid("one"), Signal::KILL).unwrap();
        let _ = nodes.scratch.halocline(&["umount", "--force", "one"]);
        eventually("the mount point is free", || {
            let _ = Command::new("umount").arg("--lazy").arg(nodes.scratch.path("one")).output();
            fs::read_dir(nodes.scratch.path("one")).is_ok_and(|mut names| names.next().is_none())
        });
    }
    nodes.mounts("one", &["--policy", "lru", "--ssd-limit", "2M"]);
    let high = nodes.tier("one")["high_bytes"].as_u64().unwrap();
    eventually("the SSD is counted and below its limit", || {
        let used = nodes.used("one");
        used > 0 && used <= high
    });
    all_there(&nodes, (0..120).map(name), 64 * KIB);
    nodes.unmount();
    let (_, told) = nodes.fsck(&["--repair"]);
    let (is_right, after) = nodes.fsck(&[]);
    assert!(is_right, "{told} {after}");
    nodes.mount_both(&[]);
    all_there(&nodes, (0..120).map(name), 64 * KIB);
}

#[test]
fn full_disks_lose_nothing_and_files_go_where_there_is_room() {
    let Some(mut nodes) = Nodes::new() else { return };
    if !nodes.mount_small("disk", 12 * MIB) || !nodes.mount_small("one-tiers/ssd", 8 * MIB) {
        return;
    }
    nodes.mount_both(&["--policy", "lru", "--ssd-limit", "100%"]);
    let name = |at: usize| format!("f{at:02}");
    // More than the SSD has: it goes on although the SSD itself is full for a moment.
    for at in 0..15 {
        let mut file = File::create(nodes.at("one", &name(at))).unwrap();
        for piece in bytes_of(&name(at), 1024 * KIB).chunks(64 * KIB) {
            file.write_all(piece).unwrap();
        }
    }
    all_there(&nodes, (0..15).map(name), 1024 * KIB);
    // Now both are full.
    let mut made = 15;
    let full = (15..40).find_map(|at| {
        let written = fs::write(nodes.at("one", &name(at)), bytes_of(&name(at), 1024 * KIB));
        made = at;
        written.err()
    });
    assert_eq!(full.and_then(|error| error.raw_os_error()), Some(28), "{made}");
    fs::remove_file(nodes.at("one", &name(made))).unwrap();
    all_there(&nodes, (0..made).map(name), 1024 * KIB);
    // And there is room again.
    for at in 0..8 {
        fs::remove_file(nodes.at("one", &name(at))).unwrap();
    }
    eventually("a file finds room", || {
        let path = nodes.at("one", "again");
        fs::write(&path, bytes_of("again", 1024 * KIB)).is_ok()
    });
    all_there(&nodes, (8..made).map(name).chain(["again".to_owned()]), 1024 * KIB);
    nodes.unmount();
    let (is_right, told) = nodes.fsck(&[]);
    assert!(is_right, "{told}");
}

#[test]
fn a_jobs_sequences_steer_each_nodes_ssd_and_tell_a_scheduler_where_its_bytes_are() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&["--ssd-limit", "4M"]);
    for at in 0..6 {
        let name = format!("in{at}");
        fs::write(nodes.at("one", &name), bytes_of(&name, 512 * KIB)).unwrap();
    }
    let job = r#"{"job": "j", "nodes": {
        "one": ["in0", "in0"],
        "two": ["in1", {"file": "in2", "repeat": 3}, "in1", "gone"]}}"#;
    fs::write(nodes.scratch.path("job.json"), job).unwrap();
    nodes.until_closed("one", "");
    nodes.scratch.succeed(&["jobs", "add", "job.json", "--on", "one"]);
    let references =
        |node: &str| nodes.json(&["jobs", "list", "--on", node])[0]["references"].clone();
    eventually("the other node hears of it", || references("two") == 6);
    assert_eq!(references("one"), 2);
    nodes.moves(&["demote", "one/in2"]);
    let places = nodes.json(&["where", "two", "--job", "job.json"]);
    let node =
        |at: usize| (places["nodes"][at]["node"].clone(), places["nodes"][at]["bytes"].clone());
    assert_eq!(node(0), ("one".into(), (1024 * KIB).into()), "{places}");
    assert_eq!(node(1), (Value::Null, (512 * KIB).into()), "{places}");
    assert_eq!(places["missing_files"], 1, "{places}");
    let told = nodes.scratch.succeed(&["where", "two", "--job", "job.json"]);
    assert!(told.contains("(shared disk)") && told.contains("1 file"), "{told}");
    // What is announced to come again is worth its way at its first use; nothing else is.
    let read = |name: &str| {
        let path = nodes.at("two", name).to_str().unwrap().to_owned();
        let ran = ["jobs", "run", "j", "--on", "two", "--", "cat", &path];
        nodes.scratch.succeed(&ran);
        nodes.until_closed("two", name);
        nodes.places()[name].clone()
    };
    assert_eq!(read("in1"), "ssd of two");
    fs::read(nodes.at("two", "in3")).unwrap();
    assert_eq!(nodes.places()["in3"], "ssd of one");
    nodes.scratch.succeed(&["jobs", "remove", "j", "--on", "two"]);
    eventually("it is gone everywhere", || {
        nodes.json(&["jobs", "list", "--on", "one"]).as_array().unwrap().is_empty()
    });
    // What is no job is refused.
    fs::write(nodes.scratch.path("bad.json"), "{}").unwrap();
    let refused = nodes.scratch.halocline(&["where", "two", "--job", "bad.json"]);
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("bad.json: it is no job file") && text.contains("JOBS.md"), "{text}");
}

#[test]
fn a_warm_takes_only_what_fits_and_a_dry_run_says_so_before() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.mount_both(&["--policy", "lru", "--ssd-limit", "2M"]);
    for at in 0..4 {
        let name = format!("big{at}");
        fs::write(nodes.at("one", &name), bytes_of(&name, 600 * KIB)).unwrap();
    }
    nodes.moves(&["demote", "one"]);
    let warm = |more: &[&str]| {
        let done = nodes.scratch.halocline(&[&["warm", "two", "--json"][..], more].concat());
        serde_json::from_slice::<Value>(&done.stdout).unwrap_or_else(|_| panic!("{}", said(&done)))
    };
    let dry = warm(&["--dry-run"]);
    assert_eq!((&dry["files"], dry["skipped"].as_array().unwrap().len()), (&3.into(), 1), "{dry}");
    assert!(dry["skipped"][0]["reason"].as_str().unwrap().contains("no room"), "{dry}");
    assert_eq!(nodes.tier("two")["promoted"]["files"], 0);
    let done = warm(&[]);
    assert_eq!((&done["files"], &done["skipped"]), (&dry["files"], &dry["skipped"]));
    // What never fits has another remedy than what finds no room now.
    fs::write(nodes.at("one", "huge"), bytes_of("huge", 3000 * KIB)).unwrap();
    nodes.until_closed("one", "huge");
    let huge = nodes.scratch.halocline(&["warm", "two/huge"]);
    assert!(written(&huge).contains("--ssd-limit"), "{}", written(&huge));
    nodes.scratch.succeed(&["pin", "big0", "--on", "one"]);
    eventually("the rule is known", || nodes.scratch.status("two")["rules"]["pin"][0] == "big0");
    let dry = nodes.scratch.halocline(&["demote", "two", "--dry-run", "--json"]);
    assert!(written(&dry).contains("unpin it first"), "{}", written(&dry));
}

/// Regression: a write failed while the node was demoting by itself, and `fallocate` made no room at all.
#[test]
fn what_needs_room_on_an_ssd_waits_until_others_have_left() {
    let Some(mut nodes) = Nodes::new() else { return };
    if !nodes.mount_small("disk", 96 * MIB) || !nodes.mount_small("one-tiers/ssd", 16 * MIB) {
        return;
    }
    nodes.mounts("one", &["--policy", "lru", "--ssd-limit", "100%"]);
    for round in 0..4 {
        let names = [0, 1, 2].map(|at| format!("grows{round}-{at}"));
        let open = names.each_ref().map(|name| File::create(nodes.at("one", name)).unwrap());
        for at in 0..7 {
            fs::write(nodes.at("one", &format!("f{at}")), bytes_of("f", 2048 * KIB)).unwrap();
        }
        nodes.until_closed("one", "f6");
        if round == 0 {
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&open[0], flags, 0, 10 * MIB).unwrap();
            continue;
        }
        std::thread::scope(|scope| {
            for (mut file, name) in open.into_iter().zip(&names) {
                scope.spawn(move || {
                    for piece in bytes_of(name, 3 << 20).chunks(100 * KIB) {
                        file.write_all(piece).unwrap();
                    }
                });
            }
        });
        let is_whole =
            |name: &String| fs::read(nodes.at("one", name)).unwrap() == bytes_of(name, 3 << 20);
        assert!(names.iter().all(is_whole));
        for name in &names {
            fs::remove_file(nodes.at("one", name)).unwrap();
        }
    }
    // What has room for a part of a write tells how much that was.
    let mut appends = File::options().append(true).create(true).open(nodes.at("one", "a")).unwrap();
    let piece = bytes_of("a", 100 * KIB);
    let mut told = 0;
    let full = loop {
        match appends.write(&piece) {
            Ok(written) => told += written as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full.raw_os_error(), Some(28));
    assert_eq!(appends.metadata().unwrap().len(), told);
}
