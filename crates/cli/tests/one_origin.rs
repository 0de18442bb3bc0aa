//! Two caches over the same files would not see each other's newest bytes: an origin has one engine
//! (I8), by whatever path it is named.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;
use rustix::process::{Signal, kill_process};

/// A place with a second cache and mount point.
struct TwoCaches(Scratch);

impl Deref for TwoCaches {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl TwoCaches {
    /// `None`, with the reason, where no mount can be made.
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &["mnt", "mnt2"])?;
        for name in ["cache2", "origin/sub", "origin/sub/deep"] {
            fs::create_dir(scratch.path(name)).unwrap();
        }
        Some(Self(scratch))
    }

    fn mount(&self, origin: &str) {
        let mount = ["mount", origin, "mnt", "--cache", "cache", "--policy", "always"];
        // What is written stays dirty, however long the test takes.
        self.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    }

    /// Expects that neither `mount` nor `run` accept `origin` with the second cache.
    #[track_caller]
    fn refused(&self, origin: &str) {
        for args in [
            &["mount", origin, "mnt2", "--cache", "cache2"][..],
            &["run", "--origin", origin, "--cache", "cache2", "--", "true"],
        ] {
            let output = self.halocline(args);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
            let parts = ["is in use", "process", "end that mount first"];
            assert!(parts.iter().all(|part| said(&output).contains(part)), "{}", said(&output));
            assert!(!said(&output).contains("one file system"), "a note first: {}", said(&output));
            assert_eq!(fs::read_dir(self.path("cache2")).unwrap().count(), 0, "{args:?}");
        }
    }
}

/// The second mount read zeros and stale bytes, and nobody said a word.
#[test]
fn i8_an_origin_has_one_cache_by_any_path() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin");
    fs::write(scratch.path("mnt/new"), "dirty").unwrap();
    symlink("origin", scratch.path("alias")).unwrap();
    for origin in ["origin", "alias", "origin/sub", "origin/sub/deep"] {
        scratch.refused(origin);
    }
    assert_eq!(fs::read(scratch.path("mnt/new")).unwrap(), b"dirty", "the first goes on");
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["mount", "origin", "mnt2", "--cache", "cache2"]);
    assert_eq!(fs::read(scratch.path("mnt2/new")).unwrap(), b"dirty");
}

#[test]
fn i8_an_origin_above_one_in_use_is_refused() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin/sub/deep");
    for origin in ["origin/sub", "origin"] {
        scratch.refused(origin);
    }
    fs::create_dir(scratch.path("origin/other")).unwrap();
    scratch.succeed(&["mount", "origin/other", "mnt2", "--cache", "cache2"]);
}

#[test]
fn i8_a_part_that_is_mounted_elsewhere_is_the_same_files() {
    let Some(scratch) = TwoCaches::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can mount a directory elsewhere");
    }
    fs::create_dir(scratch.path("elsewhere")).unwrap();
    scratch.mount("origin");
    let script = "mount --bind origin/sub elsewhere && exec \"$0\" \"$@\"";
    for origin in ["elsewhere", "elsewhere/deep"] {
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(scratch.program())
            .args(["run", "--origin", origin, "--cache", "cache2", "--", "true"])
            .current_dir(scratch.root())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("is in use"), "{}", said(&output));
    }
}

#[test]
fn i8_the_claim_of_a_killed_mount_is_gone_with_it() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin");
    kill_process(scratch.pid("mnt"), Signal::KILL).unwrap();
    let run = ["run", "--origin", "origin", "--cache", "cache2", "-q", "--", "cat", "origin/data"];
    eventually("the end of the claim", || scratch.halocline(&run).stdout == b"precious");
}

/// A private mount is seen like any other, also from within: a step of a job that brings a cache of
/// its own.
#[test]
fn i8_a_run_is_seen_from_outside_and_from_within() {
    let Some(scratch) = TwoCaches::new() else { return };
    let halocline = scratch.program().display().to_string();
    let inner = format!(
        "'{halocline}' run --origin origin --cache cache2 -- true; echo $?; \
         '{halocline}' run --origin origin/sub --cache cache2 -- true; echo $?"
    );
    let output = scratch.halocline(&[
        "run", "--origin", "origin", "--cache", "cache", "-q", "--", "sh", "-c", &inner,
    ]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2\n2\n", "{}", said(&output));
    assert_eq!(said(&output).matches("is in use").count(), 2, "{}", said(&output));
    let up = scratch.path("origin/up");
    let script = "touch origin/up; while [ -e origin/up ]; do sleep 0.05; done";
    let args = ["run", "--origin", "origin", "--cache", "cache", "-q", "--", "sh", "-c", script];
    let mut first = scratch.command(&args).spawn().unwrap();
    eventually("the start of the command", || up.exists());
    scratch.refused("origin");
    // Not through the mount: the file may be known there for a second yet.
    fs::remove_file(up).unwrap();
    eventually("the end of the command", || first.try_wait().unwrap().is_some());
}

#[test]
fn i8_of_mounts_at_the_same_moment_one_gets_the_origin() {
    let Some(scratch) = TwoCaches::new() else { return };
    for _ in 0..5 {
        let start = |mountpoint, cache| {
            scratch.command(&["mount", "origin", mountpoint, "--cache", cache]).spawn().unwrap()
        };
        let mut both = [start("mnt", "cache"), start("mnt2", "cache2")];
        let statuses = both.each_mut().map(|child| child.wait().unwrap().code());
        assert!([[Some(0), Some(2)], [Some(2), Some(0)]].contains(&statuses), "{statuses:?}");
        let winner = if statuses[0] == Some(0) { "mnt" } else { "mnt2" };
        scratch.succeed(&["umount", winner]);
    }
}

#[test]
fn mounts_that_only_read_share_an_origin() {
    let Some(scratch) = TwoCaches::new() else { return };
    let mount = |mountpoint, cache, mode| {
        scratch.halocline(&["mount", "origin", mountpoint, "--cache", cache, "--mode", mode])
    };
    assert!(mount("mnt", "cache", "read-only").status.success());
    let writing = mount("mnt2", "cache2", "write-through");
    assert_eq!(writing.status.code(), Some(2), "{}", said(&writing));
    let reading = mount("mnt2", "cache2", "read-only");
    assert!(reading.status.success(), "{}", said(&reading));
}

#[test]
fn i8_the_directories_of_a_tier_are_nobody_elses_origin() {
    let Some(scratch) = TwoCaches::new() else { return };
    for name in ["set", "set/ssd", "set/hdd", "set/hdd/d"] {
        fs::create_dir(scratch.path(name)).unwrap();
    }
    scratch.succeed(&["mount", "--tier", "set", "mnt"]);
    for origin in ["set/hdd", "set/hdd/d", "set/ssd", "set"] {
        scratch.refused(origin);
    }
    scratch.succeed(&["umount", "mnt"]);
    scratch.mount("set/hdd/d");
    let output = scratch.halocline(&["mount", "--tier", "set", "mnt2"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("is in use"), "{}", said(&output));
}

/// What is dirty on the cache was left out, and nobody said so.
#[test]
fn a_striped_origin_in_use_is_not_copied_from() {
    let Some(scratch) = TwoCaches::new() else { return };
    fs::remove_file(scratch.path("origin/data")).unwrap();
    fs::remove_dir_all(scratch.path("origin/sub")).unwrap();
    let striped = ["--origin-volume", "striped", "--origin-servers", "2"];
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"];
    scratch.succeed(&[&mount[..], &striped].concat());
    fs::write(scratch.path("mnt/file"), "bytes").unwrap();
    let output = scratch.halocline(&["unstripe", "origin", "file", "out"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("is in use"), "{}", said(&output));
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["unstripe", "origin", "file", "out"]);
    assert_eq!(fs::read(scratch.path("out")).unwrap(), b"bytes");
}

/// One cache was called two.
#[test]
fn i8_a_cache_has_one_mount() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin");
    let output = scratch.halocline(&["mount", "origin", "mnt2", "--cache", "cache"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("with this cache already"), "{}", said(&output));
    assert!(!said(&output).contains("two caches"), "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
}

/// It said to type `fuser -vm MOUNTPOINT`.
#[test]
fn a_busy_unmount_says_what_can_be_typed() {
    let Some(scratch) = TwoCaches::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a mount namespace alone");
    }
    // Where nobody else has a copy of the mount: who makes a namespace just then has one of all others, and it is told of.
    let script = r#""$0" mount origin mnt --cache cache && exec 3< mnt/data && ! "$0" umount mnt && \
                    exec 3<&- && "$0" umount mnt"#;
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .arg(scratch.program())
        .current_dir(scratch.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let point = fs::canonicalize(scratch.path("mnt")).unwrap();
    let remedy = format!("`fuser -vm {}`", point.display());
    assert!(said(&output).contains(&remedy), "{}", said(&output));
}

/// Over the bare mount point of an SSD that was not mounted an empty cache was made, and old bytes were read.
#[test]
fn i1_an_origin_that_is_older_than_its_cache_is_not_served_without_it() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin");
    fs::write(scratch.path("mnt/file"), "newer").unwrap();
    kill_process(scratch.pid("mnt"), Signal::KILL).unwrap();
    eventually("the dead mount", || scratch.halocline(&["umount", "mnt"]).status.code() == Some(3));
    fs::rename(scratch.path("cache"), scratch.path("ssd")).unwrap();
    fs::create_dir(scratch.path("cache")).unwrap();
    for (origin, cache, remedy) in [
        ("origin", "cache", "mount the device of that cache there first"),
        ("origin", "cache2", "mount with that cache"),
        ("origin/sub/deep", "cache2", "mount with that cache"),
    ] {
        for args in [
            &["mount", origin, "mnt2", "--cache", cache][..],
            &["run", "--origin", origin, "--cache", cache, "--", "true"],
        ] {
            let refused = scratch.halocline(args);
            assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", said(&refused));
            let path = scratch.path("cache").display().to_string();
            let parts = [remedy, "--cache-lost", &path];
            assert!(parts.iter().all(|part| said(&refused).contains(part)), "{}", said(&refused));
        }
        assert_eq!(fs::read_dir(scratch.path(cache)).unwrap().count(), 0, "nothing was begun");
    }
    fs::remove_dir(scratch.path("cache")).unwrap();
    fs::rename(scratch.path("ssd"), scratch.path("cache")).unwrap();
    scratch.mount("origin");
    assert_eq!(fs::read(scratch.path("mnt/file")).unwrap(), b"newer");
    let mut names = [0; 4096];
    let len = rustix::fs::listxattr(scratch.path("mnt"), &mut names).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("halocline.dirty"), "programs see it");
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["mount", "origin", "mnt2", "--cache", "cache2"]);
    assert_eq!(fs::read(scratch.path("mnt2/file")).unwrap(), b"newer");
}

#[test]
fn an_origin_is_served_without_a_cache_that_is_lost_for_good() {
    let Some(scratch) = TwoCaches::new() else { return };
    scratch.mount("origin");
    fs::write(scratch.path("mnt/file"), "only there").unwrap();
    assert_eq!(scratch.once_unused(&["umount", "--keep-dirty", "mnt"]).status.code(), Some(3));
    let second = ["mount", "origin", "mnt2", "--cache", "cache2"];
    assert_eq!(scratch.halocline(&second).status.code(), Some(2));
    scratch.succeed(&[&second[..], &["--cache-lost"]].concat());
    scratch.succeed(&["umount", "mnt2"]);
    // Once is enough; and what comes back is taken as ever.
    scratch.succeed(&second);
    scratch.succeed(&["umount", "mnt2"]);
    scratch.mount("origin");
    assert_eq!(fs::read(scratch.path("mnt/file")).unwrap(), b"only there");
    scratch.succeed(&["umount", "mnt"]);
    // A mark that was copied with its directory says nothing of the copy.
    scratch.mount("origin");
    fs::write(scratch.path("mnt/file"), "newer").unwrap();
    assert_eq!(scratch.once_unused(&["umount", "--keep-dirty", "mnt"]).status.code(), Some(3));
    let mut copy = Command::new("cp");
    copy.args(["-a", "--preserve=xattr", "origin", "copy"]).current_dir(scratch.path(""));
    assert!(copy.status().unwrap().success());
    fs::create_dir(scratch.path("cache3")).unwrap();
    scratch.succeed(&["mount", "copy", "mnt2", "--cache", "cache3"]);
}
