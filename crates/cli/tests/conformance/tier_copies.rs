//! Clean copies of a real tier mount: kept, archived, given up, and what they are worth without the
//! SSD.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::mount::{self, Mount};
use crate::programs;
use crate::tier_limits::Tmpfs;
use halocline_testkit::waiting::eventually;

fn told(args: &[&str], path: &Path) -> Value {
    let output = programs::run(programs::halocline().args(args).arg(path).arg("--json"));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn archived(mount: &Mount) {
    let waiting = || mount.status()["tier"]["copies"]["waiting"]["files"].as_u64();
    eventually("the last file to be archived", || waiting() == Some(0));
}

/// The whole story of a lost SSD: archived, lost, adopted.
#[test]
fn what_was_archived_outlives_the_ssd() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--copies", "archive", "--archive-after", "1s"]);
    let path = |name: &str| mount.path().join(name);
    fs::create_dir(path("dir")).expect("a directory");
    for number in 0..20 {
        fs::write(path(&format!("dir/file{number}")), vec![number; 50_000]).expect("write");
    }
    fs::write(path("old"), b"old").expect("write");
    archived(&mount);
    fs::rename(path("dir/file0"), path("renamed")).expect("rename");
    fs::remove_file(path("dir/file1")).expect("remove");
    fs::File::open(path("dir")).expect("open").sync_all().expect("a durable removal");
    fs::write(path("old"), b"new").expect("write");
    archived(&mount);
    eventually("the copy of what was renamed", || mount.root().join("hdd/renamed").exists());
    let files = told(&["where"], &mount.path());
    let files = files.as_array().expect("a list");
    assert_eq!(files.len(), 20);
    for file in files {
        assert_eq!((&file["tier"], &file["clean_copy"]), (&0.into(), &"hdd".into()), "{file}");
    }
    let shown = programs::run(programs::halocline().arg("status").arg(mount.path()));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("clean copies") && shown.contains("not archived yet"), "{shown}");

    let pid = mount.status()["pid"].as_u64().expect("a pid");
    mount.kill(u32::try_from(pid).expect("a pid"));
    let ssd = mount.root().join("ssd");
    fs::remove_dir_all(&ssd).expect("the SSD is lost");
    fs::create_dir(&ssd).expect("a new one");
    fs::remove_file(mount.root().join("hdd/.halocline/tier.json")).expect("the old set's label");
    mount.start();
    let path = |name: &str| mount.path().join(name);
    for number in 2..20 {
        let content = fs::read(path(&format!("dir/file{number}"))).expect("it is back");
        assert_eq!(content, vec![number; 50_000]);
    }
    assert_eq!(fs::read(path("renamed")).expect("it is back"), vec![0; 50_000]);
    assert_eq!(fs::read(path("old")).expect("it is back"), b"new");
    assert!(!path("dir/file0").exists() && !path("dir/file1").exists());
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// A demote of what is unchanged moves nothing, and nobody lacks room because of copies.
#[test]
fn kept_copies_save_a_demote_and_give_way() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier_prepared(&["--copies", "keep", "--passthrough=false"]);
    let _hdd = Tmpfs::mount(&mount.root().join("hdd"), "8M");
    mount.start();
    let path = |name: &str| mount.path().join(name);
    fs::write(path("one"), vec![1; 5 << 20]).expect("write");
    told(&["demote"], &path("one"));
    let number = fs::metadata(mount.root().join("hdd/one")).expect("stat").ino();
    told(&["warm"], &path("one"));
    let moved = told(&["demote"], &path("one"));
    assert_eq!((&moved["bytes"], &moved["clean_bytes"]), (&0.into(), &(5 << 20).into()));
    assert_eq!(fs::metadata(mount.root().join("hdd/one")).expect("stat").ino(), number);
    told(&["warm"], &path("one"));
    // The disk has room for one of them.
    fs::write(path("two"), vec![2; 5 << 20]).expect("write");
    let moved = told(&["demote"], &path("two"));
    assert_eq!((&moved["files"], &moved["left_bytes"]), (&1.into(), &0.into()), "{moved}");
    assert_eq!(told(&["where"], &path("one"))[0]["clean_copy"], Value::Null);
    assert_eq!(fs::read(path("one")).expect("read"), vec![1; 5 << 20]);
    assert_eq!(fs::read(path("two")).expect("read"), vec![2; 5 << 20]);
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

/// `fsck` tells of a copy that is gone, and forgets it.
#[test]
fn fsck_tells_of_copies() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::tier(&["--copies", "keep", "--passthrough=false"]);
    fs::write(mount.path().join("file"), b"content").expect("write");
    told(&["demote"], &mount.path().join("file"));
    told(&["warm"], &mount.path().join("file"));
    mount.unmount();
    let fsck = |args: &[&str]| {
        let output = programs::run(programs::halocline().arg("fsck").arg(mount.root()).args(args));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let clean = fsck(&[]);
    assert!(clean.contains("1 of them have a clean copy") && clean.contains("clean\n"), "{clean}");
    fs::remove_file(mount.root().join("hdd/file")).expect("remove");
    let gone = fsck(&[]);
    assert!(gone.contains("its clean copy") && gone.contains("is gone"), "{gone}");
    fsck(&["--repair"]);
    assert!(fsck(&[]).contains("clean\n"));
    mount.start();
    assert_eq!(fs::read(mount.path().join("file")).expect("read"), b"content");
}
