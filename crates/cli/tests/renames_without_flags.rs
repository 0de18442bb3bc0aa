//! A tier and a cache on a file system whose rename knows no flags, as over NFS and many FUSE servers: mergerfs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;

/// mergerfs over a directory, until dropped.
struct Merged(PathBuf);

impl Merged {
    /// `None`, with the reason, where there is none.
    fn over(branch: PathBuf, point: PathBuf) -> Option<Self> {
        fs::create_dir_all(&branch).unwrap();
        fs::create_dir_all(&point).unwrap();
        let mount = Command::new("mergerfs")
            .args(["-o", "cache.files=off"])
            .arg(branch)
            .arg(&point)
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(point)),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                skip(format!("mergerfs: {error}"));
                None
            }
        }
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        let _ended = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A tier whose disk had no `RENAME_NOREPLACE` took no file, and programs got `ENOSPC` while it had room.
#[test]
fn a_tier_below_takes_what_the_ssd_has_no_room_for() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for name in ["tiers/ssd", "tiers/hdd"] {
        fs::create_dir_all(scratch.path(name)).unwrap();
    }
    let Some(merged) = Merged::over(scratch.path("branch"), scratch.path("tiers/hdd")) else {
        return;
    };
    scratch.succeed(&["mount", "--tier", "tiers", "mnt", "--ssd-limit", "4M"]);
    let content = |number: u8| vec![number; 1 << 20];
    for number in 1..=10 {
        fs::write(scratch.path(&format!("mnt/file{number}")), content(number)).unwrap();
    }
    scratch.succeed(&["demote", "mnt/file10"]);
    assert_eq!(fs::read(scratch.path("branch/file10")).unwrap(), content(10));
    for number in 1..=10 {
        assert_eq!(fs::read(scratch.path(&format!("mnt/file{number}"))).unwrap(), content(number));
    }
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["fsck", "tiers"]);
    drop(merged);
}

/// The same of the SSD's side: each kind of file moves its names there.
#[test]
fn a_tier_and_a_cache_can_lie_on_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::create_dir_all(scratch.path("tiers/hdd")).unwrap();
    let Some(merged) = Merged::over(scratch.path("branch"), scratch.path("tiers/ssd")) else {
        return;
    };
    scratch.succeed(&["mount", "--tier", "tiers", "mnt", "--copies", "archive"]);
    fs::write(scratch.path("mnt/file"), "first").unwrap();
    scratch.succeed(&["demote", "mnt/file"]);
    scratch.succeed(&["warm", "mnt/file"]);
    fs::write(scratch.path("mnt/file"), "second").unwrap();
    fs::rename(scratch.path("mnt/file"), scratch.path("mnt/renamed")).unwrap();
    fs::remove_file(scratch.path("mnt/renamed")).unwrap();
    fs::write(scratch.path("mnt/other"), "third").unwrap();
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["fsck", "tiers"]);
    let cache = scratch.path("tiers/ssd/cache");
    fs::create_dir(&cache).unwrap();
    let mount =
        ["mount", "origin", "mnt", "--policy", "always", "--cache", cache.to_str().unwrap()];
    scratch.succeed(&mount);
    fs::write(scratch.path("mnt/new"), "content").unwrap();
    fs::rename(scratch.path("mnt/new"), scratch.path("mnt/newer")).unwrap();
    scratch.succeed(&["umount", "mnt"]);
    assert_eq!(fs::read(scratch.path("origin/newer")).unwrap(), b"content");
    drop(merged);
}
