//! The disks of a shared tier by commands: files are moved, a node is drained, names are checked and built again (I15).

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::shared_tiers::SharedTiers;
use rustix::fs::{XattrFlags, listxattr, removexattr, setxattr};
use serde_json::Value;

const NODES: [&str; 2] = ["one", "two"];

/// Two nodes with a disk that both see.
struct Nodes(SharedTiers);

impl Deref for Nodes {
    type Target = SharedTiers;

    fn deref(&self) -> &SharedTiers {
        &self.0
    }
}

impl Nodes {
    fn new() -> Option<Self> {
        Some(Self(SharedTiers::started(program!(), &NODES, &[])?))
    }

    fn mount_again(&self, node: &str) {
        let mounted = self.mount(node, &[]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }

    fn unmount(&self) {
        for node in NODES {
            self.scratch.succeed(&["umount", node]);
        }
    }

    fn report(&self, more: &[&str]) -> (bool, Value) {
        let done = self.fsck(&[&["--json"], more].concat());
        let report = serde_json::from_slice(&done.stdout);
        (done.status.success(), report.unwrap_or_else(|_| panic!("{}", said(&done))))
    }

    fn tier_of(&self, name: &str) -> String {
        let path = format!("two/{name}");
        let told = self.scratch.succeed(&["where", &path, "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        told[0]["tier_name"].as_str().unwrap().to_owned()
    }

    /// All that a node shows: names with the texts of files.
    fn shown(&self, node: &str) -> Vec<(PathBuf, String)> {
        let (mut shown, mut todo) = (Vec::new(), vec![self.scratch.path(node)]);
        while let Some(dir) = todo.pop() {
            for one in fs::read_dir(dir).unwrap() {
                let path = one.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                let text = if kind.is_dir() {
                    todo.push(path.clone());
                    "directory".to_owned()
                } else if kind.is_symlink() {
                    fs::read_link(&path).unwrap().to_str().unwrap().to_owned()
                } else {
                    fs::read_to_string(&path).unwrap()
                };
                shown.push((path.strip_prefix(self.scratch.path(node)).unwrap().to_owned(), text));
            }
        }
        shown.sort();
        shown
    }

    fn fill(&self) {
        fs::create_dir_all(self.at("one", "a/below")).unwrap();
        fs::write(self.at("one", "a/f"), "of one").unwrap();
        fs::write(self.at("two", "a/below/g"), "of two").unwrap();
        fs::write(self.at("two", "second"), "with two names").unwrap();
        fs::hard_link(self.at("one", "second"), self.at("one", "a/other")).unwrap();
        symlink("a/f", self.at("two", "link")).unwrap();
        fs::rename(self.at("two", "a"), self.at("two", "b")).unwrap();
        fs::create_dir(self.at("one", "a")).unwrap();
        fs::write(self.at("one", "a/f"), "of the new directory").unwrap();
    }
}

#[test]
fn i15_files_go_down_and_up_and_a_drained_node_has_none() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.fill();
    let before = nodes.shown("one");
    assert_eq!(nodes.tier_of("b/f"), "ssd of one");
    nodes.moves(&["demote", "one/b/f"]);
    assert_eq!(nodes.tier_of("b/f"), "hdd");
    assert_eq!(fs::read_to_string(nodes.scratch.path("disk/b/f")).unwrap(), "of one");
    nodes.moves(&["warm", "two/b/f"]);
    assert_eq!(nodes.tier_of("b/f"), "ssd of two");
    assert_eq!(nodes.shown("two"), before);
    // What is open stays.
    let open = fs::File::open(nodes.at("one", "b/below/g")).unwrap();
    let refused = nodes.scratch.halocline(&["demote", "two/b"]);
    let told = String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && told.contains("has it open"), "{told}");
    drop(open);
    // The other node may have used it often enough to have it by now.
    nodes.moves(&["warm", "two/b/below/g"]);
    let dry = nodes.moves(&["cluster", "drain", "two", "one", "--dry-run", "--json"]);
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(dry["files"], 1, "{dry}");
    // Of the mount in which it is typed.
    let mut drain = Command::new(program!());
    drain.args(["cluster", "drain", "two"]).current_dir(nodes.at("one", ""));
    let drained = drain.output().unwrap();
    assert!(drained.status.success(), "{}", said(&drained));
    let on = |node: &str| {
        let all = nodes.scratch.succeed(&["where", "one", "--json"]);
        let all: Value = serde_json::from_str(&all).unwrap();
        let of = format!("ssd of {node}");
        all.as_array().unwrap().iter().filter(|file| file["tier_name"] == *of).count()
    };
    assert_eq!((on("two"), nodes.shown("one")), (0, before.clone()));
    assert_eq!(nodes.shown("two"), before);
    nodes.unmount();
    assert!(nodes.fsck(&[]).status.success(), "{}", said(&nodes.fsck(&[])));
}

/// Regression: the bytes stayed in the directory of the name that the file had lost. When that was removed, as by
/// `cp -al one two; rm -r one`, nothing could read them any more, and the check found nothing wrong.
#[test]
fn a_file_with_several_names_outlives_the_directory_of_its_bytes() {
    let Some(nodes) = Nodes::new() else { return };
    for (name, renamed) in [("k", false), ("m", true)] {
        let of = |file: &str| format!("{name}/{file}");
        fs::create_dir(nodes.at("one", name)).unwrap();
        fs::write(nodes.at("one", &of("f")), name).unwrap();
        nodes.moves(&["demote", &format!("one/{name}/f")]);
        fs::create_dir(nodes.at("two", &format!("{name}2"))).unwrap();
        let link = format!("{name}2/l");
        fs::hard_link(nodes.at("two", &of("f")), nodes.at("two", &link)).unwrap();
        if renamed {
            fs::rename(nodes.at("one", &of("f")), nodes.at("one", "elsewhere")).unwrap();
        } else {
            fs::remove_file(nodes.at("one", &of("f"))).unwrap();
        }
        fs::remove_dir(nodes.at("one", name)).unwrap();
        fs::create_dir(nodes.at("two", name)).unwrap();
        for node in NODES {
            assert_eq!(fs::read_to_string(nodes.at(node, &link)).unwrap(), name);
        }
    }
    let before = nodes.shown("one");
    nodes.unmount();
    assert!(nodes.fsck(&[]).status.success(), "{}", said(&nodes.fsck(&[])));
    nodes.store.command(&["FLUSHALL"]);
    let rebuilt = nodes.fsck(&["--repair"]);
    assert!(rebuilt.status.success(), "{}", said(&rebuilt));
    nodes.mount_again("one");
    assert_eq!(nodes.shown("one"), before);
}

/// Regression: the time of the change was noted only by a node that knew another name of the file.
#[test]
fn i15_a_name_that_is_taken_away_by_a_node_that_knows_no_other_one_changes_the_file() {
    let Some(nodes) = Nodes::new() else { return };
    let changed = || {
        let seen = fs::metadata(nodes.at("one", "f")).unwrap();
        (seen.ctime(), seen.ctime_nsec())
    };
    fs::write(nodes.at("one", "f"), "f").unwrap();
    fs::create_dir(nodes.at("one", "d")).unwrap();
    for name in ["d/g", "d/h"] {
        fs::hard_link(nodes.at("one", "f"), nodes.at("one", name)).unwrap();
    }
    nodes.until_closed("one", "f");
    let before = changed();
    fs::remove_file(nodes.at("two", "d/g")).unwrap();
    let removed = changed();
    assert!(removed > before, "{before:?} {removed:?}");
    fs::write(nodes.at("two", "other"), "other").unwrap();
    fs::rename(nodes.at("two", "other"), nodes.at("two", "d/h")).unwrap();
    let replaced = changed();
    assert!(replaced > removed, "{removed:?} {replaced:?}");
    assert_eq!(fs::metadata(nodes.at("two", "f")).unwrap().nlink(), 1);
}

#[test]
fn i15_many_small_files_are_drained_whole_and_an_unknown_node_is_none() {
    const FILES: usize = 400;
    let Some(nodes) = Nodes::new() else { return };
    let text = |number: usize| format!("{number} ").repeat(number % 7);
    for number in 0..FILES {
        let dir = nodes.at("one", &format!("d{}", number % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), text(number)).unwrap();
    }
    fs::write(nodes.at("two", "d0/stays"), "of two").unwrap();
    let refused = nodes.scratch.halocline(&["cluster", "drain", "on", "two"]);
    let told = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("its nodes are one, two"), "{told}");
    // From the other node, and below one directory first.
    nodes.until_closed("one", "");
    nodes.moves(&["cluster", "drain", "one", "two/d1"]);
    let told = nodes.moves(&["cluster", "drain", "one", "two", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["files"], FILES - FILES / 3, "{told}");
    assert_eq!(nodes.tier_of("d0/stays"), "ssd of two");
    for number in 0..FILES {
        let name = format!("d{}/{number}", number % 3);
        // There first: one that is read on a node may come to its SSD.
        let shown = [nodes.scratch.path(&format!("disk/{name}")), nodes.at("one", &name)];
        for path in shown {
            let found = fs::read_to_string(&path);
            assert_eq!(found.unwrap_or_else(|error| panic!("{path:?}: {error}")), text(number));
        }
    }
    nodes.unmount();
    assert!(nodes.fsck(&[]).status.success(), "{}", said(&nodes.fsck(&[])));
}

#[test]
fn what_explain_tells_is_where_a_file_is_and_what_would_move_it() {
    let Some(nodes) = Nodes::new() else { return };
    let explain = |node: &str, name: &str| -> Value {
        let path = format!("{node}/{name}");
        let told = nodes.scratch.succeed(&["explain", &path, "--json"]);
        serde_json::from_str(&told).unwrap()
    };
    let says = |told: &Value, key: &str, part: &str| {
        let sentences = told[key].as_array().unwrap();
        let is_said = sentences.iter().any(|one| one.as_str().unwrap().contains(part));
        assert!(is_said, "{part}: {told}");
    };
    fs::create_dir(nodes.at("one", "d")).unwrap();
    fs::write(nodes.at("one", "d/f"), vec![1; 10_000]).unwrap();
    nodes.until_closed("one", "d/f");
    let told = explain("one", "d/f");
    assert_eq!((&told["tier_name"], &told["opens"]), (&"ssd of one".into(), &1.into()), "{told}");
    assert_eq!((&told["leaves_after"], &told["may_leave"]), (&0.into(), &1.into()), "{told}");
    // Regression: of a file system that others fill, too, it told what is left below the limit.
    let disk = rustix::fs::statvfs(nodes.scratch.path("one-tiers/ssd")).unwrap();
    let most = disk.f_bavail * disk.f_frsize + (1 << 30);
    assert!(told["ssd_free_bytes"].as_u64() <= Some(most), "{told}");
    says(&told, "reasons", "0 of 1 file on this SSD would leave before it");
    says(&told, "remedies", "halocline demote FILE");
    let told = explain("two", "d/f");
    assert_eq!((&told["opens"], &told["leaves_after"]), (&0.into(), &Value::Null), "{told}");
    says(&told, "reasons", "node one");
    says(&told, "reasons", "no program on this node");
    says(&told, "remedies", "halocline warm FILE");
    // Open there: a move that was asked for says later why it was not made.
    let open = fs::File::open(nodes.at("one", "d/f")).unwrap();
    says(&explain("one", "d/f"), "reasons", "a program on this node has it open");
    says(&explain("two", "d/f"), "reasons", "open on 1 other node");
    assert!(!nodes.scratch.halocline(&["warm", "two/d/f"]).status.success());
    says(&explain("two", "d/f"), "reasons", "when it was to move last: a program on some node");
    drop(open);
    nodes.moves(&["demote", "two/d/f"]);
    let told = explain("two", "d/f");
    assert_eq!((&told["tier_name"], &told["stayed"]), (&"hdd".into(), &Value::Null), "{told}");
    says(&told, "reasons", "the disk that all nodes share");
    nodes.scratch.succeed(&["exclude", "d/*", "--on", "two"]);
    says(&explain("two", "d/f"), "remedies", "exclude --remove");
    let shown = nodes.scratch.succeed(&["explain", "two/d/f"]);
    assert!(shown.contains("because    an exclude glob"), "{shown}");
    // A node whose SSD is away.
    fs::write(nodes.at("one", "g"), "of one").unwrap();
    nodes.until_closed("one", "g");
    nodes.scratch.succeed(&["umount", "one"]);
    let [ssd, away] = ["one-tiers/ssd", "one-tiers/away"].map(|name| nodes.scratch.path(name));
    fs::rename(&ssd, &away).unwrap();
    let told = explain("two", "g");
    says(&told, "reasons", "not reached from this node");
    says(&told, "remedies", "--peers");
    fs::rename(&away, &ssd).unwrap();
    for (args, part) in [
        (&["explain", "two/d"][..], "not a regular file"),
        (&["explain", "two/none"], "no such file"),
        (&["explain", "two/g", "0", "4"], "without OFFSET and LENGTH"),
    ] {
        let refused = nodes.scratch.halocline(args);
        assert!(!refused.status.success() && said(&refused).contains(part), "{}", said(&refused));
    }
}

#[test]
fn i15_a_store_that_lost_everything_is_built_again_from_the_disks() {
    let Some(nodes) = Nodes::new() else { return };
    nodes.fill();
    nodes.moves(&["demote", "one/b/f"]);
    let before = nodes.shown("one");
    let refused = nodes.fsck(&["--repair"]);
    let told = said(&refused);
    assert!(told.contains("uses the tier") && told.contains(" s from now"), "{told}");
    nodes.unmount();
    let (is_right, report) = nodes.report(&[]);
    assert!(is_right, "{report}");
    nodes.store.command(&["FLUSHALL"]);
    let (is_right, report) = nodes.report(&[]);
    assert!(!is_right && report["rebuilt"] == true && report["repaired"] == false, "{report}");
    let refused = nodes.fsck(&["--confirm"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    let (is_right, report) = nodes.report(&["--repair"]);
    assert!(is_right && report["told"].as_array().unwrap().is_empty(), "{report}");
    for node in NODES {
        nodes.mount_again(node);
    }
    assert_eq!(nodes.shown("one"), before);
    assert_eq!(nodes.shown("two"), before);
    fs::write(nodes.at("two", "b/f"), "still written").unwrap();
    assert_eq!(fs::read_to_string(nodes.at("one", "b/f")).unwrap(), "still written");
    nodes.unmount();
}

/// Regression: the check made a link there, through a link that a user had made on the mount.
#[test]
fn i15_a_name_in_the_store_that_leads_through_a_link_is_refused() {
    let Some(nodes) = Nodes::new() else { return };
    let outside = nodes.scratch.path("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, nodes.at("one", "link")).unwrap();
    nodes.unmount();
    // Whoever reaches the store can write this.
    let forged = "local all = redis.call('KEYS', '*:names:1:entries')[1]
        local order = string.gsub(all, 'entries$', 'order')
        redis.call('HSET', all, 'link/forged', redis.call('HGET', all, 'link'))
        return redis.call('ZADD', order, 1000, 'link/forged')";
    assert_eq!(nodes.store.command(&["EVAL", forged, "0"]), ":1\r\n");
    let refused = nodes.fsck(&["--repair"]);
    assert!(outside.join("forged").symlink_metadata().is_err(), "{}", said(&refused));
    assert!(
        !refused.status.success() && said(&refused).contains("a name that"),
        "{}",
        said(&refused)
    );
}

/// Regression: the state of a mount on which each operation failed was good.
#[test]
fn a_mount_whose_names_are_lost_says_so() {
    let Some(nodes) = Nodes::new() else { return };
    let health = |node: &str| -> Value {
        let told = nodes.scratch.succeed(&["status", node, "--json"]);
        serde_json::from_str::<Value>(&told).unwrap()["health"].clone()
    };
    let sound = health("one");
    fs::write(nodes.at("one", "file"), "x").unwrap();
    nodes.store.command(&["FLUSHALL"]);
    // Regression: it was good until a program asked for a name.
    let lost = health("one");
    let remedy = "cluster fsck --tier ROOT --cluster URL [--peers PATTERN] --repair";
    assert!(sound != lost && lost.to_string().contains(remedy), "{sound} {lost}");
    assert!(fs::read_dir(nodes.scratch.path("one")).is_err());
    assert_eq!(health("one"), lost);
    // Regression: commands about a file told of a fault of a device.
    for command in [&["where"][..], &["warm"], &["demote"], &["explain"]] {
        let failed = nodes.scratch.halocline(&[command, &["one/file"]].concat());
        assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
        assert!(said(&failed).contains(remedy), "{}", said(&failed));
    }
    nodes.unmount();
    assert!(nodes.fsck(&["--repair"]).status.success(), "{}", said(&nodes.fsck(&[])));
    nodes.mount_again("one");
    assert_eq!(health("one"), sound);
}

/// Regression: the older state was believed, and the advice for it was what would have made it the true one.
#[test]
fn i15_attributes_that_an_older_store_has_forgotten_are_told_and_taken_from_the_disks() {
    let Some(mut nodes) = Nodes::new() else { return };
    fs::write(nodes.at("one", "f"), "old").unwrap();
    nodes.unmount();
    nodes.store.command(&["SAVE"]);
    nodes.mount_again("one");
    fs::write(nodes.at("one", "f"), "only mine").unwrap();
    fs::set_permissions(nodes.at("one", "f"), PermissionsExt::from_mode(0o600)).unwrap();
    nodes.scratch.succeed(&["umount", "one"]);
    let (is_right, report) = nodes.report(&[]);
    assert!(is_right && report["may_be_older"] == false, "{report}");
    nodes.0.store.restart();
    let confirmed = nodes.fsck(&["--confirm"]);
    let told = String::from_utf8_lossy(&confirmed.stdout);
    assert_eq!(confirmed.status.code(), Some(1), "{told}");
    assert!(told.contains("mode 600 on the disk, 644 in the store"), "{told}");
    assert!(told.contains("size 9 on the disk, 3 in the store"), "{told}");
    assert!(told.contains("restart its server") && told.contains("without --confirm"), "{told}");
    assert!(!told.contains("nothing was changed; --repair does it"), "{told}");
    let (is_right, report) = nodes.report(&[]);
    assert!(!is_right && report["may_be_older"] == true, "{report}");
    nodes.0.store.restart();
    let (is_right, report) = nodes.report(&["--repair"]);
    assert!(is_right && report["rebuilt"] == true, "{report}");
    nodes.mount_again("one");
    let is = fs::metadata(nodes.at("one", "f")).unwrap();
    assert_eq!((is.permissions().mode() & 0o777, is.len()), (0o600, 9));
    nodes.scratch.succeed(&["umount", "one"]);
}

/// Regression: it ended as one that left nothing to do.
#[test]
fn a_repair_that_gives_a_file_another_name_says_so_by_its_status() {
    let Some(nodes) = Nodes::new() else { return };
    fs::write(nodes.at("one", "f"), "on the SSD").unwrap();
    nodes.unmount();
    fs::write(nodes.scratch.path("one-tiers/hdd/f"), "by hand").unwrap();
    nodes.store.command(&["FLUSHALL"]);
    let repaired = nodes.fsck(&["--repair"]);
    let told = String::from_utf8_lossy(&repaired.stdout);
    assert_eq!(repaired.status.code(), Some(1), "{told}");
    assert!(told.contains("something else has its name f, so it is named f~"), "{told}");
    let (is_right, report) = nodes.report(&[]);
    assert!(is_right, "{report}");
    nodes.mount_again("one");
    assert_eq!(nodes.shown("one").len(), 2);
    nodes.scratch.succeed(&["umount", "one"]);
}

/// Regression: a repair was promised for files that are only not reached.
#[test]
fn a_check_promises_no_repair_of_what_it_does_not_reach() {
    let Some(nodes) = Nodes::new() else { return };
    fs::write(nodes.at("two", "f"), "of two").unwrap();
    nodes.unmount();
    let url = nodes.store.url();
    let tier = ["cluster", "fsck", "--tier", "one-tiers", "--cluster", &url];
    let checked = nodes.scratch.halocline(&tier);
    let told = String::from_utf8_lossy(&checked.stdout);
    assert!(!checked.status.success() && told.contains("give --peers"), "{told}");
    assert!(told.contains("1 file there keep") && !told.contains("--repair"), "{told}");
}

/// Regression: names were made that the file system could not keep with the file, and then a repair was refused, so that
/// anybody with a file on the tier kept it from being mounted again.
#[test]
fn more_names_than_a_file_keeps_are_refused_and_keep_nobody_from_a_repair() {
    const TRIED: usize = 500;
    let Some(nodes) = Nodes::new() else { return };
    let plain = nodes.scratch.path("plain");
    fs::write(&plain, "").unwrap();
    let keeps =
        |at: usize| setxattr(&plain, format!("user.{at:0100}"), b"", XattrFlags::empty()).is_ok();
    if (0..TRIED).all(keeps) {
        let _unwritable = writeln!(
            std::io::stderr(),
            "SKIP more_names_than_a_file_keeps: its file system keeps any number of attributes"
        );
        return;
    }
    fs::write(nodes.at("one", "f"), "text").unwrap();
    let name = |at: usize| nodes.at("one", &format!("{at:0100}"));
    let linked = (0..TRIED).map(|at| fs::hard_link(nodes.at("one", "f"), name(at)));
    let made = linked.take_while(Result::is_ok).count();
    assert!(made < TRIED, "more than can be recorded with the file");
    let refused = fs::hard_link(nodes.at("one", "f"), name(made)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EMLINK), "{refused}");
    assert_eq!(fs::metadata(nodes.at("two", "f")).unwrap().nlink(), made as u64 + 1);
    assert!(!nodes.at("two", &format!("{made:0100}")).exists(), "the name was taken away again");
    // A name gives its room to another one.
    fs::rename(name(0), name(made)).unwrap();
    // Regression: ENOSPC, as if the disk were full, where a few names are too many.
    let crowded = nodes.at("one", "crowded");
    fs::write(&crowded, "text").unwrap();
    setxattr(&crowded, "user.big", &[b'x'; 3300], XattrFlags::empty()).unwrap();
    let mut few = (0..TRIED).map(|at| nodes.at("one", &format!("c{at:0100}")));
    let refused = few.find_map(|name| fs::hard_link(&crowded, name).err()).expect("no room");
    assert_eq!(refused.raw_os_error(), Some(libc::EMLINK), "{refused}");
    assert!(fs::metadata(&crowded).unwrap().nlink() < 8);
    nodes.unmount();
    assert!(nodes.fsck(&[]).status.success(), "{}", said(&nodes.fsck(&[])));
    let file = nodes.scratch.path("one-tiers/ssd/f");
    let mut list = vec![0; 1 << 16];
    let len = listxattr(&file, &mut list).unwrap();
    let attributes = list[..len].split(|byte| *byte == 0);
    let are_names = attributes.filter(|name| name.starts_with(b"user.halocline.name."));
    are_names.take(2).for_each(|name| removexattr(&file, name).unwrap());
    setxattr(&file, "user.other", &[0; 150], XattrFlags::empty()).unwrap();
    let (_, report) = nodes.report(&["--repair"]);
    assert!(report["told"].to_string().contains("no room to list"), "{report}");
    nodes.mount_again("two");
    assert_eq!(fs::metadata(nodes.at("two", "f")).unwrap().nlink(), made as u64 + 1);
}
