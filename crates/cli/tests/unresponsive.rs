//! Mounts whose process is stopped, and mounts whose origin's server has ended: commands answer in
//! time, say what is wrong, and take neither for a mount whose own process has ended.

use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::stalling_server::{Stalled, StallingServer};
use halocline_testkit::standstill;
use halocline_testkit::waiting::eventually;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

/// Two mounts on their way, one of which may be stopped until this is dropped.
struct Stopped {
    scratch: Scratch,
    stopped: Option<Pid>,
}

impl Deref for Stopped {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.go_on();
    }
}

impl Stopped {
    /// `None`, with the reason, where no mount can be made.
    fn new() -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &["upper", "mnt"])?;
        for name in ["cache2", "origin2", "free"] {
            fs::create_dir(scratch.path(name)).unwrap();
        }
        Some(Self { scratch, stopped: None })
    }

    fn mount(&self, origin: &str, mountpoint: &str, cache: &str) {
        let mount = ["mount", origin, mountpoint, "--cache", cache, "--policy", "always"];
        self.succeed(&[&mount[..], &["--rebuild=false"]].concat());
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
}

/// `status` without a path hung in a look-up that no signal ends, and said nothing of the others.
#[test]
fn a_stopped_mount_keeps_no_command_waiting_for_ever() {
    let Some(mut scratch) = Stopped::new() else { return };
    scratch.mount("origin", "mnt", "cache");
    scratch.mount("origin2", "upper", "cache2");
    fs::write(scratch.path("jobs.json"), "{}").unwrap();
    scratch.stop("mnt");
    let commands: [&[&str]; 15] = [
        &["status", "mnt"],
        &["status", "cache"],
        &["where", "mnt/data"],
        &["where", "mnt/*.x"],
        &["explain", "mnt/data", "0", "8K"],
        &["flush", "mnt"],
        &["flush", "cache"],
        &["warm", "mnt/data"],
        &["evict", "mnt/data"],
        &["demote", "mnt/data"],
        &["pin", "*.x", "--on", "mnt"],
        &["jobs", "list", "--on", "mnt"],
        &["umount", "mnt"],
        &["mount", "origin2", "mnt", "--cache", "free"],
        &["run", "--origin", "mnt", "--cache", "free", "--", "true"],
    ];
    let start = |args: &&[&str]| {
        let mut command = scratch.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all = scratch.command(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running: Vec<_> = commands.iter().map(start).collect();
    for (args, mut child) in commands.iter().zip(running) {
        eventually(&format!("the end of {args:?}"), || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = said(&output);
        assert!(!output.status.success() && said.contains("does not answer"), "{args:?}: {said}");
    }
    let all = all.unwrap().wait_with_output().unwrap();
    let (text, problems) = (String::from_utf8_lossy(&all.stdout).into_owned(), said(&all));
    assert!(text.contains(scratch.path("upper").to_str().unwrap()), "{text} {problems}");
    let line = problems.lines().find(|line| line.contains(scratch.path("mnt").to_str().unwrap()));
    assert!(line.is_some_and(|line| line.contains("does not answer")), "{problems}");
    // Written to the kernel's memory at most: it goes to the origin when the process goes on.
    let forced = scratch.command(&["umount", "mnt", "--force"]).stderr(Stdio::piped()).spawn();
    let forced = waited_for("the forced unmount", forced.unwrap());
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("mnt was detached"), "{}", said(&forced));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(scratch.path("mnt").to_str().unwrap()), "{mounts}");
    scratch.go_on();
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache"]);
    scratch.succeed(&["umount", "mnt"]);
}

/// `status` asked the origin for its device, and `umount --force` asked for the status and then flushed: both
/// waited for ever, and `flush` without a word.
#[test]
fn a_running_mount_whose_origin_hangs_is_told_of_and_ended_by_force() {
    let Some(mut scratch) = Stopped::new() else { return };
    let lower = ["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"];
    // Each look is a question to the process that will be stopped.
    scratch.succeed(&[&lower[..], &["--rebuild=false", "--attr-timeout=0s"]].concat());
    scratch.mount("mnt", "upper", "cache2");
    fs::write(scratch.path("upper/new"), "dirty").unwrap();
    scratch.stop("mnt");
    let status = scratch.succeed(&["status", "cache2"]);
    let silent = format!("{}: the origin does not answer", scratch.path("mnt").display());
    assert!(status.contains(&silent), "{status}");
    let mut flush = scratch.command(&["flush", "cache2"]);
    let mut flush = flush.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(flush.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("waits for a disk or a server"), "{told}");
    let pid = i32::try_from(flush.id()).ok().and_then(Pid::from_raw).unwrap();
    // Not SIGINT, which who started the tests may ignore.
    kill_process(pid, Signal::TERM).unwrap();
    assert!(!flush.wait().unwrap().success(), "a signal ends the wait");
    let mut forced = scratch.command(&["umount", "cache2", "--force"]);
    let forced = forced.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Bounded by itself; the limit is this test's.
    let forced = waited_for("the forced unmount", forced);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("stay on the cache"), "{}", said(&forced));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(scratch.path("upper").to_str().unwrap()), "it is gone");
    scratch.go_on();
    // Its process ends when the kernel lets go of it.
    eventually("the next mount", || {
        let mount = ["mount", "mnt", "upper", "--cache", "cache2", "--policy", "always"];
        scratch.halocline(&mount).status.success()
    });
    assert_eq!(fs::read(scratch.path("upper/new")).unwrap(), b"dirty", "nothing is lost");
    scratch.succeed(&["umount", "upper"]);
    scratch.succeed(&["umount", "mnt"]);
    assert_eq!(fs::read(scratch.path("origin/new")).unwrap(), b"dirty");
}

fn waited_for(what: &str, mut child: Child) -> Output {
    eventually(&format!("the end of {what}"), || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

/// A file system whose server never answers, as one that is stopped.
struct Silent;

impl fuser::Filesystem for Silent {}

/// A directory that does not answer until this is dropped, which ends all that wait and leaves no mount.
struct Hung {
    dir: PathBuf,
    /// Nobody serves it.
    _session: fuser::Session<Silent>,
}

impl Hung {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let session = fuser::Session::new(Silent, &dir, &fuser::Config::default()).unwrap();
        Self { dir, _session: session }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // The session alone would try it while commands that were ended still look, and leave the mount.
        let _gone = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// `mount`, `run` and all others waited for ever in a look-up that no signal ends.
#[test]
fn a_directory_that_does_not_answer_keeps_no_command_waiting_for_ever() {
    let Some(scratch) = Stopped::new() else { return };
    let hung = Hung::new(scratch.path("hung"));
    let commands: [&[&str]; 20] = [
        &["mount", "hung", "mnt", "--cache", "cache"],
        &["mount", "hung/below", "mnt", "--cache", "cache"],
        &["mount", "origin", "mnt", "--cache", "hung"],
        &["mount", "origin", "hung", "--cache", "cache"],
        &["mount", "--tier", "hung", "mnt"],
        &["run", "--origin", "hung", "--cache", "cache", "--", "true"],
        &["run", "--origin", "origin", "--cache", "hung", "--", "true"],
        &["calibrate", "--dry-run", "hung"],
        &["doctor", "--origin", "hung", "--cache", "cache"],
        &["fsck", "hung"],
        &["unstripe", "hung", "copy"],
        &["status", "hung"],
        &["where", "hung/data"],
        &["explain", "hung/data", "0", "8K"],
        &["flush", "hung"],
        &["warm", "hung/data"],
        &["evict", "hung/data"],
        &["demote", "hung/data"],
        &["umount", "hung"],
        &["pin", "*.x", "--on", "hung"],
    ];
    let start = |args: &&[&str]| {
        let mut command = scratch.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = commands.iter().map(start).collect();
    for (args, mut child) in commands.iter().zip(running) {
        eventually(&format!("the end of {args:?}"), || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = said(&output);
        let all = said + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && all.contains("does not answer"), "{args:?}: {all}");
        assert!(all.contains(scratch.path("hung").to_str().unwrap()), "{args:?}: {all}");
    }
    drop(hung);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(scratch.path("hung").to_str().unwrap()), "it leaves no mount");
}

/// `umount` said that the mount's process had ended before, and detached a living mount.
#[test]
fn a_dead_origin_server_is_not_taken_for_the_dead_mount() {
    let Some(scratch) = Stopped::new() else { return };
    scratch.mount("origin", "mnt", "cache");
    scratch.mount("mnt", "upper", "cache2");
    fs::create_dir(scratch.path("upper/d")).unwrap();
    for name in ["new", "d/below"] {
        fs::write(scratch.path("upper").join(name), "dirty").unwrap();
    }
    kill_process(scratch.pid("mnt"), Signal::KILL).unwrap();
    eventually("the end of the origin", || fs::read_dir(scratch.path("mnt")).is_err());
    eventually("the end of answers", || fs::read_dir(scratch.path("upper")).is_err());
    let inside = scratch.halocline(&["where", "upper/data"]);
    assert!(!said(&inside).contains("has ended"), "{}", said(&inside));
    let refused = scratch.halocline(&["umount", "upper"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("could not be flushed"), "{}", said(&refused));
    let flush = scratch.halocline(&["flush", "upper"]);
    assert_eq!(flush.status.code(), Some(3), "{}", said(&flush));
    let told = String::from_utf8_lossy(&flush.stdout).into_owned();
    assert!(told.contains("new") && told.contains("d/below"), "{told}");
    assert_eq!(scratch.pid("upper"), scratch.pid("upper"), "it lives and is mounted");
    let forced = scratch.halocline(&["umount", "upper", "--force"]);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("stay on the cache"), "{}", said(&forced));
    let dead = scratch.halocline(&["umount", "mnt"]);
    assert_eq!(dead.status.code(), Some(3), "{}", said(&dead));
    assert!(said(&dead).contains("had ended before"), "{}", said(&dead));
    scratch.mount("origin", "mnt", "cache");
    scratch.mount("mnt", "upper", "cache2");
    for name in ["new", "d/below"] {
        assert_eq!(
            fs::read(scratch.path("upper").join(name)).unwrap(),
            b"dirty",
            "nothing is lost"
        );
    }
}

/// Nothing but the system's `umount -l` ended it, and the remedy was told for another directory.
#[test]
fn a_tier_whose_ssd_server_is_dead_is_told_of_and_detached_by_force() {
    let Some(scratch) = Stopped::new() else { return };
    for dir in ["tiers/ssd", "tiers/hdd"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    scratch.mount("origin", "tiers/ssd", "cache");
    scratch.succeed(&["mount", "--tier", "tiers", "mnt"]);
    fs::write(scratch.path("mnt/file"), "content").unwrap();
    kill_process(scratch.pid("tiers/ssd"), Signal::KILL).unwrap();
    eventually("its end", || fs::read_dir(scratch.path("tiers/ssd")).is_err());
    // For a moment the kernel may still answer the mount from its caches.
    eventually("the mount's notice of it", || {
        !scratch.halocline(&["status", "mnt"]).status.success()
    });
    let told = |args: &[&str], code| {
        let output = scratch.halocline(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        let parts = ["tiers/ssd", "umount -l"];
        assert!(
            parts.iter().all(|part| said(&output).contains(part)),
            "{args:?}: {}",
            said(&output)
        );
    };
    told(&["status", "mnt"], 1);
    told(&["status", "tiers"], 1);
    told(&["fsck", "tiers"], 2);
    told(&["umount", "mnt"], 1);
    // It said that nothing had ever been cached there once the kernel knew no attributes of the directory any more.
    eventually("the end of what the kernel knows", || {
        fs::metadata(scratch.path("tiers/ssd")).is_err()
    });
    told(&["fsck", "tiers"], 2);
    told(&["mount", "--tier", "tiers", "upper"], 2);
    let forced = scratch.halocline(&["umount", "tiers", "--force"]);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    assert!(said(&forced).contains("was detached"), "{}", said(&forced));
    assert_eq!(scratch.halocline(&["umount", "tiers/ssd"]).status.code(), Some(3));
    scratch.mount("origin", "tiers/ssd", "cache");
    eventually("the next mount", || {
        scratch.halocline(&["mount", "--tier", "tiers", "mnt"]).status.success()
    });
    assert_eq!(fs::read(scratch.path("mnt/file")).unwrap(), b"content");
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["umount", "tiers/ssd"]);
}

/// A search path with an empty part, which is common, is not a path that hangs: `run` refused its command.
#[test]
fn an_empty_part_of_the_search_path_is_passed_over() {
    let Some(scratch) = Stopped::new() else { return };
    let mut run = scratch.command(&["run", "--origin", "origin", "--cache", "cache", "--", "true"]);
    let path = format!(":{}", std::env::var("PATH").unwrap());
    let run = run.env("PATH", path).stderr(Stdio::piped()).spawn().unwrap();
    let ended = waited_for("the run", run);
    assert!(ended.status.success(), "{}", said(&ended));
}

/// What lies below the mount point of a server that answers was looked at by the command itself, which then waited for
/// ever where that did not answer; so was whatever no look had been asked for.
#[test]
fn a_server_that_answers_not_for_every_path_keeps_no_command_waiting_for_ever() {
    let Some(scratch) = Stopped::new() else { return };
    fs::create_dir(scratch.path("data")).unwrap();
    for name in ["a", "plan.toml", "t.hct"] {
        fs::write(scratch.path("data").join(name), "x").unwrap();
    }
    let served = StallingServer::mount(&scratch.path("data"), &scratch.path("served"));
    served.stall(Stalled::Lookup);
    let commands: [&[&str]; 17] = [
        &["status", "served/a"],
        &["umount", "served/a"],
        &["where", "served/a"],
        &["mount", "served/a", "mnt", "--cache", "cache"],
        &["mount", "origin", "mnt", "--cache", "served/a"],
        &["mount", "origin", "mnt", "--cache", "cache", "--trace", "served/t"],
        &["mount", "origin", "mnt", "--cache", "cache", "--config", "served/a"],
        &["run", "--origin", "origin", "--cache", "cache", "--", "served/a"],
        &["run", "--origin", "origin", "--cache", "cache", "--report", "served/r", "--", "true"],
        &["rescue", "cache", "--to", "served/new"],
        &["rescue", "served/a", "--to", "free"],
        &["trace", "show", "served/t.hct"],
        &["trace", "import", "served/a", "--out", "free/t.hct"],
        &["plan", "t.hct", "--servers", "served/a"],
        &["apply", "served/plan.toml", "origin"],
        &["verify", "served/plan.toml", "origin"],
        &["pin", "*.x", "--on", "served/a"],
    ];
    let start = |args: &&[&str]| {
        let mut command = scratch.command(args);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = commands.iter().map(start).collect();
    for (args, child) in commands.iter().zip(running) {
        let output = waited_for(&format!("{args:?}"), child);
        let said = said(&output);
        assert!(!output.status.success() && said.contains("does not answer"), "{args:?}: {said}");
    }
    let mut home = scratch.command(&["doctor"]);
    let home = home.env("HOME", scratch.path("served/a")).env_remove("XDG_CONFIG_HOME");
    let doctor = home.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let doctor = waited_for("doctor", doctor);
    let told = said(&doctor) + &String::from_utf8_lossy(&doctor.stdout);
    assert!(told.contains("does not answer"), "{told}");
}
