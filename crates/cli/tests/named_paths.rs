//! What a person names: paths that are not there, files where directories belong, roots of file tiers.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use halocline_testkit::commands::commands;
use halocline_testkit::program;
use halocline_testkit::sandbox::{Sandbox, said};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::eventually;

/// Expects a refusal whose message has `parts`.
#[track_caller]
fn refused(sandbox: &Sandbox, args: &[&str], parts: &[&str]) {
    let output = sandbox.halocline(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    for part in parts {
        assert!(said(&output).contains(part), "{args:?} without {part:?}: {}", said(&output));
    }
}

/// Commands of a mount, with a path that is not there.
const ON_MOUNTS: &[&[&str]] = &[
    &["status", "nowhere"],
    &["umount", "nowhere"],
    &["where", "nowhere"],
    &["explain", "nowhere", "0", "4K"],
    &["flush", "nowhere"],
    &["warm", "nowhere"],
    &["evict", "nowhere"],
    &["demote", "nowhere"],
    &["cluster", "drain", "node", "nowhere"],
    &["pin", "*.x", "--on", "nowhere"],
    &["unpin", "*.x", "--on", "nowhere"],
    &["exclude", "*.x", "--on", "nowhere"],
    &["jobs", "list", "--on", "nowhere"],
    &["jobs", "remove", "j", "--on", "nowhere"],
    &["jobs", "run", "j", "--on", "nowhere", "--", "true"],
];

/// Commands of a directory.
const DIRECTORIES: &[&[&str]] = &[
    &["mount", "nowhere", "mnt", "--cache", "cache"],
    &["mount", "origin", "mnt", "--cache", "nowhere"],
    &["mount", "origin", "nowhere", "--cache", "cache"],
    &["mount", "--tier", "nowhere", "mnt"],
    &["run", "--origin", "nowhere", "--cache", "cache", "--", "true"],
    &["calibrate", "--dry-run", "nowhere"],
    &["bench", "ior", "--quick", "--dir", "nowhere"],
    &["bench", "tier", "--dir", "nowhere"],
    &["bench", "ior", "--quick", "--dir", "origin", "--cache-dir", "nowhere"],
    &["trace", "record", "--origin", "nowhere", "-o", "out", "--", "true"],
    &["bench", "layout", "--workload", "ior", "--dir", "nowhere"],
    &["bench", "cluster", "--quick", "--dir", "nowhere"],
    &["mark-servers", "nowhere"],
];

/// Commands that look at what is there already.
const FOUND: &[&[&str]] = &[&["fsck", "nowhere"], &["rescue", "nowhere", "--to", "out"]];

/// Commands of a file.
const FILES: &[&[&str]] = &[
    &["trace", "show", "nowhere"],
    &["trace", "show", "nowhere", "--cache-sizes", "auto"],
    &["trace", "import", "nowhere", "-o", "out"],
    &["trace", "play", "nowhere", "origin"],
    &["plan", "nowhere", "--servers", "nowhere"],
    &["simulate", "nowhere", "--servers", "nowhere"],
    &["jobs", "add", "nowhere"],
    &["jobs", "make", "j", "--files-from", "nowhere"],
    &["advise", "nowhere", "--servers", "nowhere"],
    &["apply", "nowhere", "origin"],
    &["verify", "nowhere", "origin"],
];

/// Commands of an origin with a cluster.
const ORIGINS: &[&[&str]] = &[
    &["cluster", "nodes", "nowhere", "--cluster", "redis://nowhere"],
    &["cluster", "status", "nowhere", "--cluster", "redis://nowhere"],
    &["cluster", "tokens", "nowhere", "file", "--cluster", "redis://nowhere"],
    &["cluster", "fsck", "nowhere", "--cluster", "redis://nowhere"],
    &["cluster", "recover", "nowhere", "node", "--cluster", "redis://nowhere"],
    &["cluster", "forget", "nowhere", "node", "--cluster", "redis://nowhere"],
];

/// Commands that are given no path that must be there, and those with words of their own, below.
const OTHERS: &[&[&str]] = &[
    &["doctor"],
    &["model"],
    &["bench", "admission"],
    &["bench", "advise"],
    &["bench", "metadata"],
    &["trace", "make"],
    &["unstripe", "nowhere", "out"],
];

/// A new command is in one of the lists, or the test of them is not complete.
#[test]
fn every_command_is_given_a_path_that_is_not_there() {
    let lists = [ON_MOUNTS, DIRECTORIES, FOUND, FILES, ORIGINS, OTHERS].concat();
    for words in commands(&program!()) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_here = |args: &&[&str]| {
            args.starts_with(&words) || words.starts_with(args) && OTHERS.contains(args)
        };
        assert!(lists.iter().any(is_here), "{words:?} is in no list of this file");
    }
}

/// Some commands ended with status 1, and some had no remedy.
#[test]
fn a_path_that_is_not_there_is_refused_by_every_command() {
    let sandbox = Sandbox::new(program!());
    for args in ON_MOUNTS {
        refused(
            &sandbox,
            args,
            &["nowhere: there is no such file or directory", "correct the path"],
        );
    }
    for args in DIRECTORIES {
        refused(&sandbox, args, &["nowhere: there is no such directory", "create it"]);
    }
    for args in FOUND {
        refused(&sandbox, args, &["nowhere: there is no such directory", "name the directory"]);
    }
    for args in ORIGINS {
        refused(&sandbox, args, &["nowhere is not an origin of a cluster", "name the origin"]);
    }
    refused(&sandbox, &["unstripe", "nowhere", "out"], &["nowhere", "give the directory"]);
    fs::write(sandbox.path("servers.toml"), "").unwrap();
    for args in FILES {
        refused(&sandbox, args, &["nowhere: there is no such file", "correct the path"]);
    }
}

/// `fsck FILE` told of `FILE/halocline-cache.toml`.
#[test]
fn what_is_no_cache_is_told_with_a_remedy() {
    let sandbox = Sandbox::new(program!());
    for command in [&["fsck"][..], &["rescue", "--to", "out"]] {
        let of = |path| [command, &[path]].concat();
        refused(&sandbox, &of("origin/data"), &["data is not a directory", "name the directory"]);
        refused(&sandbox, &of("origin"), &["origin is not a cache", "name the directory"]);
    }
    assert!(!sandbox.path("out").exists());
}

/// The status was that of a machine on which something does not work.
#[test]
fn doctor_refuses_what_mount_refuses() {
    let sandbox = Sandbox::new(program!());
    for flags in [
        &["--policy", "best"][..],
        &["--config", "none.toml"],
        &["--origin", "nowhere", "--cache", "cache"],
    ] {
        let output = sandbox.halocline(&[&["doctor"], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", said(&output));
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("FUSE device") && told.contains("FAIL"), "{told}");
    }
}

/// `status` and `umount` said that it is on no mount, `fsck` not where it is mounted.
#[test]
fn the_root_of_a_file_tier_stands_for_its_mount() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for dir in ["root", "root/ssd", "root/hdd"] {
        fs::create_dir(scratch.path(dir)).unwrap();
    }
    refused_as_elsewhere(&scratch, "root");
    scratch.succeed(&["mount", "--tier", "root", "mnt"]);
    let pid = scratch.status("mnt")["pid"].clone();
    for named in ["root", "root/ssd"] {
        assert_eq!(scratch.status(named)["pid"], pid, "{named}");
    }
    let point = fs::canonicalize(scratch.path("mnt")).unwrap();
    let point = point.to_str().unwrap();
    let remedy = format!("halocline umount {point}");
    refused(&scratch, &["fsck", "root"], &["is mounted at", point, &remedy, &pid.to_string()]);
    scratch.succeed(&["umount", "root"]);
    refused_as_elsewhere(&scratch, "root");
    scratch.succeed(&["fsck", "root"]);
}

#[track_caller]
/// Regression: one link that led nowhere, which any user can make, kept root's `demote DIR/*` from demoting anything.
#[test]
fn a_link_that_leads_nowhere_keeps_no_other_path_from_a_command() {
    let Some(scratch) = Scratch::with_mountpoints(program!(), &["m"]) else { return };
    for disk in ["tier/ssd", "tier/hdd"] {
        fs::create_dir_all(scratch.path(disk)).unwrap();
    }
    scratch.succeed(&["mount", "--tier", "tier", "m"]);
    for name in ["a", "b"] {
        fs::write(scratch.path("m").join(name), name).unwrap();
    }
    for (link, target) in [("l", "nowhere"), ("out", "/etc/passwd")] {
        symlink(target, scratch.path("m").join(link)).unwrap();
    }
    let names = ["m/a", "m/l", "m/out", "m/b"];
    let asked = |command: &str| {
        let done = scratch.halocline(&[&[command], &names[..]].concat());
        assert_eq!(done.status.code(), Some(1), "{command}: {}", said(&done));
        for link in ["on a mount: m/l: ", "on a mount: m/out is"] {
            assert!(said(&done).contains(link), "{command}: {}", said(&done));
        }
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(asked("demote").contains("2 files"));
    let told = asked("where");
    assert_eq!(told.matches("hdd").count(), 2, "{told}");
    assert!(asked("warm").contains("2 files"));
    // Alone, and where a name is mistyped, nothing is done.
    for refused in [&["demote", "m/l"][..], &["demote", "m/l", "m/out"], &["demote", "m/a", "m/no"]]
    {
        let done = scratch.halocline(refused);
        assert_eq!(done.status.code(), Some(2), "{refused:?}: {}", said(&done));
    }
    scratch.succeed(&["umount", "m"]);
}

fn refused_as_elsewhere(scratch: &Scratch, named: &str) {
    let output = scratch.halocline(&["status", named]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("is not on a halocline mount"), "{}", said(&output));
}

/// The log said "a request failed", and not of which file.
#[test]
fn the_log_says_of_which_file_a_request_failed() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a small file system");
    }
    let script = "mount -t tmpfs -o size=1M small origin && exec \"$0\" \"$@\"";
    let fill = "mkdir origin/d && head -c 4194304 /dev/zero > origin/d/big";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(scratch.program())
        .args(["run", "--origin", "origin", "--cache", "cache", "--policy", "never"])
        .args(["--", "sh", "-c", fill])
        .current_dir(scratch.root())
        .output()
        .unwrap();
    let told = said(&output);
    let line = told.lines().find(|line| line.contains("a request failed"));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    for part in ["d/big", "write", "No space left"] {
        assert!(line.contains(part), "{line}");
    }
}

/// Each path of a list cost a process that looked where it lies, some 11 ms.
#[test]
fn a_long_list_is_fetched_without_a_process_for_each_path() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    scratch.succeed(&["mount", "origin", "mnt", "--cache", "cache", "--size", "64M"]);
    let line = format!("{}\n", scratch.path("mnt/data").display());
    let faults_of_list = |paths: usize| {
        fs::write(scratch.path("list"), line.repeat(paths)).unwrap();
        #[expect(clippy::zombie_processes, reason = "wait4 waits for it, and counts its faults")]
        let warm = scratch.command(&["warm", "-f", "list"]).stdout(Stdio::null()).spawn().unwrap();
        page_faults(&warm)
    };
    let (of_one, of_all) = (faults_of_list(1), faults_of_list(3000));
    // Whatever else the machine does: the smallest process has some hundred.
    assert!(of_all < of_one + 3000 * 20, "{of_one} page faults, and {of_all} for 3000 paths");
    scratch.succeed(&["umount", "mnt"]);
}

/// Page faults of a process, which must succeed, and of all that it started.
fn page_faults(process: &Child) -> i64 {
    let pid = i32::try_from(process.id()).unwrap();
    // SAFETY: all its fields are numbers.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
    eventually("the end of the process", || {
        // SAFETY: both places are ours, and nobody else waits for the process.
        let ended = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
        assert!(ended >= 0, "{}", std::io::Error::last_os_error());
        ended == pid
    });
    assert_eq!(status, 0);
    usage.ru_minflt
}
