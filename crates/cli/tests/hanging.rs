//! Mounts over directories that hang: the mount below them is stopped. Commands answer in time and say which directory
//! it is, and the mount can be ended.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::standstill;
use halocline_testkit::waiting::eventually;
use rustix::process::Pid;

/// A mount `below` that may be stopped until this is dropped, and directories for one over it.
struct Stack {
    scratch: Scratch,
    stopped: Option<Pid>,
}

impl Deref for Stack {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.go_on();
    }
}

impl Stack {
    /// `below` is mounted there, with these options; `None`, with the reason, where no mount can be made.
    fn new(below: &'static str, options: &[&str]) -> Option<Self> {
        let points: &[&str] = match below {
            "tiers/hdd" => &["mnt", "tiers/hdd"],
            "tiers/ssd" => &["mnt", "tiers/ssd"],
            _ => &["mnt", "below"],
        };
        let scratch = Scratch::with_mountpoints(program!(), points)?;
        for name in ["tiers/ssd", "tiers/hdd", "cache2"] {
            fs::create_dir_all(scratch.path(name)).unwrap();
        }
        // Each look is a question to the process that will be stopped.
        let mount = ["mount", "origin", below, "--cache", "cache", "--attr-timeout=0s"];
        scratch.succeed(&[&mount[..], options].concat());
        Some(Self { scratch, stopped: None })
    }

    fn stop(&mut self, mountpoint: &str) {
        let pid = self.pid(mountpoint);
        self.stopped = Some(pid);
        standstill::stop(pid);
    }

    fn go_on(&mut self) {
        if let Some(pid) = self.stopped.take() {
            standstill::go_on(pid);
        }
    }

    /// The output of a command, which ends whatever hangs.
    fn bounded(&self, args: &[&str]) -> Output {
        self.all_bounded(&[args]).remove(0)
    }

    /// The same of commands that run at the same time: each may wait for a while.
    fn all_bounded(&self, commands: &[&[&str]]) -> Vec<Output> {
        let start = |args: &&[&str]| {
            let mut command = self.command(args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let running: Vec<_> = commands.iter().map(start).collect();
        let ended = commands.iter().zip(running).map(|(args, mut child)| {
            eventually(&format!("the end of {args:?}"), || child.try_wait().unwrap().is_some());
            child.wait_with_output().unwrap()
        });
        ended.collect()
    }

    fn is_mounted(&self, name: &str) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let path = self.path(name);
        mounts.lines().any(|line| line.split(' ').nth(4).map(Path::new) == Some(&path))
    }
}

/// `status` waited for ever, and so did `umount --force`, which asks for it first.
#[test]
fn a_tier_that_hangs_is_told_of_and_the_mount_is_ended_by_force() {
    let hung = "tiers/hdd";
    let Some(mut stack) = Stack::new(hung, &["--policy", "never"]) else { return };
    fs::write(stack.path("tiers/hdd/cold"), "content").unwrap();
    stack.succeed(&["mount", "--tier", "tiers", "mnt", "--tier-attr-timeout=0s"]);
    fs::write(stack.path("mnt/hot"), "content").unwrap();
    stack.stop(hung);
    let silent = format!("{}: the directory does not answer", stack.path(hung).display());
    let status = stack.bounded(&["status", "tiers"]);
    assert!(status.status.success(), "{}", said(&status));
    assert!(written(&status).contains(&silent), "{}", written(&status));
    // The SSD answers, though perhaps not in time where the machine has much to do, and is not said to hang with the disk.
    eventually("an answer of the SSD", || {
        let status = stack.bounded(&["status", "tiers", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&written(&status)).unwrap();
        assert_eq!(json["health"]["state"], "silent", "{json}");
        let tiers = json["tier"]["tiers"].as_array().unwrap();
        assert_eq!(tiers.len(), 2, "{json}");
        assert!(tiers[1]["free_bytes"].is_null(), "{json}");
        tiers[0]["free_bytes"].is_u64()
    });
    let commands: [&[&str]; 3] =
        [&["where", "tiers"], &["where", "mnt/cold"], &["explain", "mnt/cold"]];
    for (args, output) in commands.iter().zip(stack.all_bounded(&commands)) {
        assert!(!output.status.success(), "{args:?}: {}", written(&output));
        assert!(said(&output).contains("hangs"), "{args:?}: {}", said(&output));
    }
    let mut df = Command::new("stat").arg("-f").arg(stack.path("mnt")).spawn().unwrap();
    eventually("the end of statfs", || df.try_wait().unwrap().is_some());
    assert!(!df.wait().unwrap().success(), "it cannot be known");
    let forced = stack.bounded(&["umount", "tiers", "--force"]);
    assert!(written(&forced).contains(&silent), "{} {}", written(&forced), said(&forced));
    assert!(!stack.is_mounted("mnt"));
    stack.go_on();
    // Its process ends when the kernel lets go of it.
    eventually("the next mount", || {
        stack.halocline(&["mount", "--tier", "tiers", "mnt"]).status.success()
    });
    for name in ["hot", "cold"] {
        assert_eq!(fs::read(stack.path("mnt").join(name)).unwrap(), b"content");
    }
    stack.succeed(&["umount", "mnt"]);
    stack.succeed(&["umount", hung]);
}

/// `umount --keep-dirty`, which flushes nothing, waited for an origin that hangs.
#[test]
fn who_keeps_dirty_data_waits_for_no_origin() {
    let Some(mut stack) = Stack::new("below", &["--policy", "never"]) else { return };
    let mount = ["mount", "below", "mnt", "--cache", "cache2", "--policy", "always"];
    stack.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    fs::write(stack.path("mnt/new"), "dirty").unwrap();
    stack.stop("below");
    let mut kept = None;
    // A command asks for 10 s, which a machine with much to do may need for an answer.
    eventually("an answer of the mount's process", || {
        let asked = stack.bounded(&["umount", "cache2", "--keep-dirty"]);
        let is_silent = said(&asked).contains("the mount process does not answer");
        kept = Some(asked);
        !is_silent
    });
    let kept = kept.unwrap();
    assert_eq!(kept.status.code(), Some(3), "{}", said(&kept));
    assert!(said(&kept).contains("stay on the cache"), "{}", said(&kept));
    assert!(!stack.is_mounted("mnt"));
    stack.go_on();
    eventually("the next mount", || stack.halocline(&mount).status.success());
    assert_eq!(fs::read(stack.path("mnt/new")).unwrap(), b"dirty");
    stack.succeed(&["umount", "mnt"]);
    assert_eq!(fs::read(stack.path("origin/new")).unwrap(), b"dirty");
    stack.succeed(&["umount", "below"]);
}

/// A disk that is so slow that it is in the middle of a flush when the test stops it.
const SLOW: &str = "
[profile.slow]
kind = \"hdd\"
seek_ms_min = 0.1
seek_ms_max = 0.2
rpm = 60000.0
mb_per_s = 1.0
";
const DIRTY: usize = 64 << 20;

/// `umount --force` asked once, before its flush, whether the origin answers.
#[test]
fn an_origin_that_begins_to_hang_in_a_forced_flush_is_left() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &[]) else { return };
    drop(scratch);
    let Some(mut stack) = Stack::new("below", &["--policy", "never"]) else { return };
    stack.succeed(&["umount", "below"]);
    fs::write(stack.path("slow.toml"), SLOW).unwrap();
    let slow = ["mount", "origin", "below", "--cache", "cache", "--attr-timeout=0s"];
    let emulated = ["--policy", "never", "--config", "slow.toml", "--emulate", "slow+ssd"];
    stack.succeed(&[&slow[..], &emulated].concat());
    let mount = ["mount", "below", "mnt", "--cache", "cache2", "--policy", "always"];
    stack.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    fs::write(stack.path("mnt/new"), vec![7; DIRTY]).unwrap();
    let mut command = stack.command(&["umount", "cache2", "--force"]);
    let forced = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let new = stack.path("origin/new");
    eventually("the flush", || fs::metadata(&new).is_ok_and(|new| new.len() > 0));
    stack.stop("below");
    let mut forced = Some(forced);
    eventually("the end of the unmount", || forced.as_mut().unwrap().try_wait().unwrap().is_some());
    let forced = forced.take().unwrap().wait_with_output().unwrap();
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("stay on the cache"), "{}", said(&forced));
    assert!(!stack.is_mounted("mnt"));
}

/// `fsck` looked at the origin before it asked whether it answers.
#[test]
fn a_cache_is_not_checked_while_its_origin_hangs() {
    let Some(mut stack) = Stack::new("below", &["--policy", "never"]) else { return };
    let mount = ["mount", "below", "mnt", "--cache", "cache2", "--policy", "always"];
    stack.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    fs::write(stack.path("mnt/new"), "dirty").unwrap();
    let kept = stack.once_unused(&["umount", "mnt", "--keep-dirty"]);
    assert_eq!(kept.status.code(), Some(3), "{}", said(&kept));
    fs::create_dir(stack.path("saved")).unwrap();
    stack.stop("below");
    for args in [&["fsck", "cache2"][..], &["rescue", "cache2", "--to", "saved"]] {
        let refused = stack.bounded(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains("does not answer"), "{args:?}: {}", said(&refused));
    }
    stack.go_on();
    stack.succeed(&["fsck", "cache2"]);
    stack.succeed(&["umount", "below"]);
}

/// The control socket lies on the SSD: all commands waited for it, for ever.
#[test]
fn a_tier_whose_ssd_hangs_is_told_of_and_the_mount_is_detached_by_force() {
    let hung = "tiers/ssd";
    let Some(mut stack) = Stack::new(hung, &["--policy", "never"]) else { return };
    stack.succeed(&["mount", "--tier", "tiers", "mnt", "--tier-attr-timeout=0s"]);
    fs::write(stack.path("mnt/hot"), "content").unwrap();
    stack.stop(hung);
    let commands: [&[&str]; 6] = [
        &["status", "mnt"],
        &["status", "tiers"],
        &["umount", "mnt"],
        &["umount", "tiers"],
        &["fsck", "tiers"],
        &["mount", "--tier", "tiers", "below"],
    ];
    for (args, output) in commands.iter().zip(stack.all_bounded(&commands)) {
        assert!(!output.status.success(), "{args:?}: {}", written(&output));
        let parts = [hung, "does not answer"];
        assert!(
            parts.iter().all(|part| said(&output).contains(part)),
            "{args:?}: {}",
            said(&output)
        );
    }
    let forced = stack.bounded(&["umount", "tiers", "--force"]);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("was detached"), "{}", said(&forced));
    assert!(!stack.is_mounted("mnt"));
    stack.go_on();
    eventually("the next mount", || {
        stack.halocline(&["mount", "--tier", "tiers", "mnt"]).status.success()
    });
    assert_eq!(fs::read(stack.path("mnt/hot")).unwrap(), b"content");
    stack.succeed(&["umount", "mnt"]);
    stack.succeed(&["umount", hung]);
}

/// Who wanted the origin of a mount whose cache hung connected to its control socket, and waited for ever.
#[test]
fn a_mount_whose_cache_hangs_keeps_nobody_waiting_who_wants_its_origin() {
    let Some(mut stack) = Stack::new("below", &["--policy", "never"]) else { return };
    for name in ["below/cache", "data", "origin2", "other"] {
        fs::create_dir(stack.path(name)).unwrap();
    }
    stack.succeed(&["mount", "data", "mnt", "--cache", "below/cache", "--size", "64M"]);
    let owner = stack.pid("mnt");
    stack.stop("below");
    let commands: [&[&str]; 7] = [
        &["mount", "data", "other", "--cache", "cache2"],
        &["run", "--origin", "data", "--cache", "cache2", "--", "true"],
        &["run", "--origin", "data", "--cache", "below/cache", "--", "true"],
        &["status", "mnt"],
        &["flush", "mnt"],
        &["umount", "mnt"],
        &["umount", "below"],
    ];
    for (args, output) in commands.iter().zip(stack.all_bounded(&commands)) {
        assert!(!output.status.success(), "{args:?}: {}", written(&output));
    }
    let forced = stack.bounded(&["umount", "mnt", "--force"]);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(!stack.is_mounted("mnt"));
    // Its process still says that it serves a mount with a number that the next one may have.
    let again = stack.bounded(&["mount", "data", "other", "--cache", "cache2"]);
    assert!(said(&again).contains("is in use"), "{}", said(&again));
    stack.succeed(&["mount", "origin2", "other", "--cache", "cache2"]);
    stack.all_bounded(&[&["status"], &["status", "other"]]);
    stack.bounded(&["umount", "other"]);
    assert!(!stack.is_mounted("other"));
    stack.go_on();
    let stat = format!("/proc/{}", owner.as_raw_nonzero());
    eventually("the end of the detached mount", || !Path::new(&stat).exists());
    stack.succeed(&["umount", "below"]);
}
