//! Times of directories, which a rebuild takes from the disks.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use halocline_vfs::{Engine, SetAttr, SetTime};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::disks::{Disks, NODES};
use crate::mounted::{CALLER, Mounted};

/// Times of old programs.
const SET: i64 = 1_000_000;
const OLD: i64 = 1_000_000_000;

fn mtime(mounted: &Mounted, path: &str) -> i64 {
    mounted.tier.stat(&mounted.at(path).unwrap(), None).unwrap().raw.st_mtime
}

fn set(mounted: &Mounted, path: &str, seconds: i64) {
    let at = UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs());
    let change = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    mounted.tier.set_attr(&mounted.at(path).unwrap(), None, &change, CALLER).unwrap();
}

fn set_on_disk(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

/// Regression: they were those of the repair.
#[test]
fn i15_directories_have_their_times_again_after_a_rebuild() {
    let disks = Disks::new();
    let [one, two] = NODES.map(|node| Mounted::of_node(&disks, node, true));
    for directory in ["set", "set/below", "moved", "by_ssd", "by_disk", "shown", "shown/below"] {
        one.mkdir(directory).unwrap();
    }
    for file in ["set/f", "set/below/f", "moved/f", "by_ssd/f", "by_disk/f", "shown/below/f"] {
        one.create(file, "text").unwrap();
    }
    for directory in ["set/below", "set", "moved"] {
        set(&one, directory, SET);
    }
    // Neither changes a name.
    one.demote("moved/f").unwrap();
    two.promote("moved/f").unwrap();
    let [ssd, shared] = [disks.at(NODES[0]).join("ssd"), disks.at("shared")];
    // What is newer than the time that a program has set.
    let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed() + 9;
    set_on_disk(&ssd.join("set/below"), later);
    for directory in ["by_ssd", "by_disk", "shown", "shown/below"] {
        set_on_disk(&ssd.join(directory), OLD);
        set_on_disk(&shared.join(directory), OLD);
    }
    set_on_disk(&ssd.join("by_ssd"), OLD + 1);
    set_on_disk(&shared.join("by_disk"), OLD + 2);
    // A mirror on another SSD is new, and its directory is not.
    two.create("shown/below/g", "text").unwrap();
    drop((one, two));
    disks.forget();
    disks.repair();
    let one = Mounted::new(&disks, true);
    let all = [
        ("set", SET),
        ("set/below", later),
        ("moved", SET),
        ("by_ssd", OLD + 1),
        ("by_disk", OLD + 2),
        ("shown", OLD),
    ];
    for (directory, time) in all {
        assert_eq!(mtime(&one, directory), time, "{directory}");
    }
    assert!(mtime(&one, "shown/below") > OLD);
}
