//! Directories on an SSD that an earlier version adopted, without numbers.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use halocline_os::clock::Clock;
use rustix::fs::{fgetxattr, fremovexattr};

use crate::disks::{Disks, NODES, tree};
use crate::mounted::Mounted;

const NUMBER: &str = "user.halocline.directory";

fn number(disks: &Disks, path: &str) -> Option<Vec<u8>> {
    let (mut value, fd) = (vec![0; 32], File::open(disks.at(path)).unwrap());
    let bytes = fgetxattr(fd, NUMBER, &mut value[..]).ok()?;
    value.truncate(bytes);
    Some(value)
}

/// A tier with `d/s/f`, as an earlier version adopted it.
fn adopted() -> Disks {
    let disks = Disks::new();
    let mounted = Mounted::new(&disks, true);
    for directory in ["d", "d/s", "open"] {
        mounted.mkdir(directory).unwrap();
    }
    for file in ["d/s/f", "open/f"] {
        mounted.create(file, "text").unwrap();
    }
    mounted.tier.close().unwrap();
    for path in ["d", "d/s", "open"] {
        let fd = File::open(disks.at(&format!("n1/ssd/{path}"))).unwrap();
        fremovexattr(fd, NUMBER).unwrap();
    }
    fs::set_permissions(disks.at("n1/ssd/open"), Permissions::from_mode(0o777)).unwrap();
    disks
}

/// Regression: they had no numbers for good, and no file below them was ever demoted.
#[test]
fn a_mount_numbers_closed_directories_by_the_files_in_them() {
    let disks = adopted();
    let mounted = Mounted::new(&disks, true);
    let (clock, path) = (Clock::MACHINE, "n1/ssd/d/s");
    let begun = clock.instant();
    while number(&disks, path).is_none() {
        assert!(clock.elapsed(begun) < Duration::from_secs(30), "it has no number");
        clock.sleep(Duration::from_millis(20));
    }
    assert_eq!(number(&disks, path), number(&disks, "shared/d/s"));
    mounted.rename("d", "e", 0).unwrap();
    mounted.tier.close().unwrap();
    drop(mounted);
    // Others may have put something into it.
    assert_eq!(number(&disks, "n1/ssd/open"), None);
    disks.repair();
    disks.are_as_in_store("a repair");
    disks.forget();
    disks.repair();
    disks.are_as_in_store("a rebuild");
    let names = tree(&Mounted::of_node(&disks, NODES[0], true).tier);
    assert!(names.keys().any(|path| path.ends_with("e/s/f")), "{names:?}");
    assert!(!names.keys().any(|path| path.ends_with("/d") || path == "d"), "{names:?}");
}
