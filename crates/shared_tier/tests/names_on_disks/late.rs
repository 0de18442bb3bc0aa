//! The shared disk can only be read while names change, and follows once it can be written again.

use std::fs;
use std::path::Path;
use std::process::Command;

use halocline_testkit::skipping::skip;
use halocline_testkit::small_disk::SmallDisk;

use crate::disks::{Disks, tree};
use crate::mounted::Mounted;

const DISK_BYTES: u64 = 16 << 20;

fn make_writable(disk: &Path, is_writable: bool) {
    let how = if is_writable { "remount,rw" } else { "remount,ro" };
    let done = Command::new("mount").args(["-o", how]).arg(disk).status().unwrap();
    assert!(done.success());
}

/// Whether attributes of users can be set on it: on one in memory, since Linux 6.6.
fn has_attributes(disk: &SmallDisk) -> bool {
    rustix::fs::setxattr(disk.path(), "user.tried", b"1", rustix::fs::XattrFlags::empty()).is_ok()
}

/// Regression: what had lost its name stayed on the disk until the names were checked, and was back if the store was lost
/// before that.
#[test]
fn i15_a_disk_that_can_be_written_again_follows_what_was_taken_away_meanwhile() {
    let disks = Disks::new();
    let Some(disk) = SmallDisk::over(disks.at("shared"), DISK_BYTES) else { return };
    if !has_attributes(&disk) {
        skip("a file system in memory without attributes of users");
        return;
    }
    let mounted = Mounted::new(&disks, false);
    for name in ["d", "empty"] {
        mounted.mkdir(name).unwrap();
    }
    mounted.create("d/f", "bytes").unwrap();
    for name in ["gone", "moved", "d/replaced", "d/over"] {
        mounted.symlink(name, name).unwrap();
    }
    mounted.link("gone", "d/again").unwrap();
    make_writable(disk.path(), false);
    mounted.unlink("gone").unwrap();
    mounted.unlink("d/f").unwrap();
    mounted.rename("moved", "d/new", 0).unwrap();
    mounted.rename("d/over", "d/replaced", 0).unwrap();
    mounted.rmdir("empty").unwrap();
    let shared = |name: &str| disk.path().join(name);
    let stale = ["gone", "moved", "d/f", "d/over", "empty"];
    assert!(stale.iter().all(|name| shared(name).symlink_metadata().is_ok()));
    make_writable(disk.path(), true);
    let wanted = tree(&mounted.tier);
    assert_eq!(wanted.len(), 4, "{wanted:?}");
    // As the background does within a minute.
    mounted.tier.close().unwrap();
    for name in stale {
        assert!(shared(name).symlink_metadata().is_err(), "{name} is still there");
    }
    assert_eq!(fs::read_link(shared("d/replaced")).unwrap().to_str(), Some("d/over"));
    drop(mounted);
    disks.are_as_in_store("a disk that could only be read");
    disks.forget();
    disks.repair();
    assert_eq!(tree(&Mounted::new(&disks, false).tier), wanted);
}

/// Regression: the rename was acknowledged, but stayed undone on the disk after the unmount, and was lost with the store.
#[test]
fn i15_a_disk_that_could_not_be_written_in_the_midst_of_a_rename_follows_later() {
    for requests in 0.. {
        let disks = Disks::new();
        let Some(disk) = SmallDisk::over(disks.at("shared"), DISK_BYTES) else { return };
        let mounted = Mounted::new(&disks, false);
        for name in ["a", "b", "a/below"] {
            mounted.mkdir(name).unwrap();
        }
        let path = disk.path().to_owned();
        mounted.interrupt(requests, move || make_writable(&path, false));
        let renamed = mounted.rename("a/below", "b/new", 0);
        let was_interrupted = mounted.was_interrupted();
        mounted.interrupt(i64::MAX, || {});
        make_writable(disk.path(), true);
        assert_eq!(mounted.at("b/new").is_ok(), renamed.is_ok(), "before request {requests}");
        let wanted = tree(&mounted.tier);
        mounted.tier.close().unwrap();
        drop(mounted);
        disks.are_as_in_store(&format!("before request {requests}"));
        disks.forget();
        disks.repair();
        assert_eq!(tree(&Mounted::new(&disks, false).tier), wanted, "before request {requests}");
        if !was_interrupted {
            return;
        }
    }
}
