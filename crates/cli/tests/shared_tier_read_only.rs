//! A node of a shared tier whose SSD can be read only, as ext4 after an error: its programs go on with the shared disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::shared_tiers::SharedTiers;
use halocline_testkit::skipping::skip;
use serde_json::Value;

const NODES: [&str; 2] = ["one", "two"];

/// A file system that turns read-only when it is told of an error. Dropping it removes it.
struct Failing {
    at: PathBuf,
    trigger: PathBuf,
}

impl Failing {
    fn over(at: PathBuf, image: &Path) -> Option<Self> {
        File::create(image).unwrap().set_len(32 << 20).unwrap();
        let done = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        let is_mounted = done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image))
            && done(
                Command::new("mount")
                    .args(["-o", "loop,errors=remount-ro"])
                    .args([image, at.as_path()]),
            );
        if !is_mounted {
            skip("no ext4 can be mounted from a file");
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == at.to_str());
        let device = line.unwrap().rsplit(' ').nth(1).unwrap().trim_start_matches("/dev/");
        let trigger = PathBuf::from(format!("/sys/fs/ext4/{device}/trigger_fs_error"));
        let is_there = trigger.exists();
        let failing = Self { at, trigger };
        if !is_there {
            skip("this kernel makes no ext4 read-only on request");
        }
        is_there.then_some(failing)
    }

    fn fail(&self) {
        fs::write(&self.trigger, "1").unwrap();
        assert!(File::create(self.at.join("x")).is_err(), "it takes no files");
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Regression: programs could make no files, though the shared disk had room, and the mount was said to be well.
#[test]
fn files_are_made_on_the_shared_disk_while_the_ssd_can_be_read_only() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &NODES) else { return };
    let Some(nodes) = SharedTiers::new(scratch, &NODES) else { return };
    let (ssd, image) = (nodes.scratch.path("one-tiers/ssd"), nodes.scratch.path("image"));
    let Some(failing) = Failing::over(ssd, &image) else { return };
    // It belongs to the file system.
    let _ = fs::remove_dir(failing.at.join("lost+found"));
    let nodes = nodes.mounted(&NODES, &[]);
    fs::write(nodes.at("one", "before"), "on the SSD").unwrap();
    fs::write(nodes.at("two", "other"), "on the other SSD").unwrap();
    nodes.until_closed("one", "");
    failing.fail();
    fs::create_dir(nodes.at("one", "d")).unwrap();
    fs::write(nodes.at("one", "d/after"), "on the shared disk").unwrap();
    let told = nodes.scratch.succeed(&["where", "one/d/after", "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told[0]["tier_name"], "hdd", "{told}");
    assert_eq!(fs::read_to_string(nodes.at("two", "d/after")).unwrap(), "on the shared disk");
    // What would come at its second use is read where it is.
    for _ in 0..4 {
        assert_eq!(fs::read_to_string(nodes.at("one", "before")).unwrap(), "on the SSD");
        assert_eq!(fs::read_to_string(nodes.at("one", "other")).unwrap(), "on the other SSD");
    }
    let health = nodes.scratch.status("one")["health"].clone();
    assert_eq!(health["state"], "degraded", "{health}");
    let reason = health["reason"].as_str().unwrap();
    assert!(reason.contains("ssd can be read only") && reason.contains("dmesg"), "{reason}");
    assert_eq!(nodes.scratch.status("two")["health"]["state"], "ok");
    for node in NODES {
        nodes.scratch.succeed(&["umount", node]);
    }
}
