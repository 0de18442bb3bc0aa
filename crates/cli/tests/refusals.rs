//! Bad input is refused before anything changes: status 2, a message that names the thing and the
//! remedy, and nothing lost.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_testkit::program;
use halocline_testkit::sandbox::Sandbox;
use halocline_testkit::skipping::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// A sandbox where everything stays as it was.
struct Unchanged(Sandbox);

impl Deref for Unchanged {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.0
    }
}

impl Unchanged {
    fn new() -> Self {
        Self(Sandbox::new(program!()))
    }

    /// Expects status 2, each of `parts` in the message, and everything as it was.
    #[track_caller]
    fn refused(&self, args: &[&str], parts: &[&str]) {
        let before = names(&self.path("cache"));
        let output = self.halocline(args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        for part in parts {
            assert!(message.contains(part), "{args:?} says {message:?} without {part:?}");
        }
        assert_eq!(fs::read(self.path("origin/data")).unwrap(), b"precious");
        assert_eq!(names(&self.path("cache")), before, "{args:?} changed the cache");
    }

    /// Expects the same of `mount` and of `run` with these directories and flags.
    #[track_caller]
    fn both_refused(&self, origin: &str, cache: &str, flags: &[&str], parts: &[&str]) {
        let mount = ["mount", origin, "mnt", "--cache", cache];
        self.refused(&[&mount[..], flags].concat(), parts);
        let run = ["run", "--origin", origin, "--cache", cache];
        self.refused(&[&run[..], flags, &["--", "true"]].concat(), parts);
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

#[test]
fn missing_directories() {
    let scratch = Unchanged::new();
    scratch.both_refused("nowhere", "cache", &[], &["origin nowhere", "create it"]);
    scratch.both_refused("origin", "nowhere", &[], &["cache nowhere", "create it"]);
    scratch.refused(
        &["mount", "origin", "nowhere", "--cache", "cache"],
        &["mount point nowhere", "create it"],
    );
}

#[test]
fn files_where_directories_belong() {
    let scratch = Unchanged::new();
    scratch.both_refused("origin/data", "cache", &[], &["origin/data", "not a directory"]);
    scratch.both_refused("origin", "origin/data", &[], &["cache", "not a directory"]);
}

#[test]
fn unwritable_directories() {
    for name in ["origin", "cache"] {
        let scratch = Unchanged::new();
        if rustix::process::geteuid().is_root() {
            // Permissions do not stop root; a file system that is mounted read-only does.
            let script = format!(
                "mount --bind {name} {name} && mount -o remount,ro,bind {name} && exec \"$0\" \"$@\""
            );
            let run = ["run", "--origin", "origin", "--cache", "cache", "--", "true"];
            let output = Command::new("unshare")
                .args(["-m", "sh", "-c", &script])
                .arg(scratch.program())
                .args(run)
                .current_dir(scratch.root())
                .output()
                .unwrap();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{message}");
            assert!(message.contains(name) && message.contains("for writing"), "{message}");
        } else {
            fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(0o555)).unwrap();
            let parts = [name, "cannot be written", "permissions"];
            scratch.both_refused("origin", "cache", &[], &parts);
        }
    }
}

#[test]
fn a_full_disk_under_the_cache() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a small file system");
    }
    let scratch = Unchanged::new();
    let script = "mount -t tmpfs -o size=1M small cache && exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(scratch.program())
        .args(["run", "--origin", "origin", "--cache", "cache", "--", "true"])
        .current_dir(scratch.root())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    for part in ["cache", "1.00 MiB left", "free at least"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn one_side_inside_the_other() {
    let scratch = Unchanged::new();
    fs::create_dir(scratch.path("origin/inner")).unwrap();
    fs::create_dir(scratch.path("cache/inner")).unwrap();
    scratch.both_refused("origin", "origin", &[], &["same directory", "of its own"]);
    scratch.both_refused("origin", "origin/inner", &[], &["inside the origin", "of its own"]);
    scratch.both_refused("cache/inner", "cache", &[], &["inside the cache", "of its own"]);
    std::os::unix::fs::symlink("origin", scratch.path("alias")).unwrap();
    scratch.both_refused("origin", "alias", &[], &["same directory"]);
}

#[test]
fn mount_points_that_would_hide_something() {
    let scratch = Unchanged::new();
    fs::create_dir(scratch.path("full")).unwrap();
    fs::write(scratch.path("full/file"), "x").unwrap();
    fs::create_dir(scratch.path("origin/sub")).unwrap();
    let mount = |point| ["mount", "origin", point, "--cache", "cache"];
    scratch.refused(&mount("full"), &["full", "not empty"]);
    scratch.refused(&mount("origin/sub"), &["inside the origin"]);
    scratch.refused(&mount("cache"), &["inside the cache"]);
}

#[test]
fn configurations_that_do_not_fit() {
    let scratch = Unchanged::new();
    for (text, parts) in [
        ("sise = \"2G\"", &["halocline.toml, line 1", "\"sise\"", "\"size\""][..]),
        ("\nsize = \"2X\"", &["line 2", "size", "2G"]),
        ("policy = \"best\"", &["policy", "adaptive"]),
        ("direct = \"yes\"", &["direct", "true or false"]),
        ("= 3", &["line 1"]),
    ] {
        fs::write(scratch.path("halocline.toml"), text).unwrap();
        scratch.both_refused("origin", "cache", &["--config", "halocline.toml"], parts);
    }
    scratch.both_refused("origin", "cache", &["--config", "none.toml"], &["none.toml"]);
    scratch.both_refused("origin", "cache", &["--size", "0"], &["--size"]);
    scratch.both_refused("origin", "cache", &["--size", "900K"], &["records", "--size", "1M"]);
    scratch.both_refused("origin", "cache", &["--emulate", "tape"], &["--emulate", "hdd+ssd"]);
    scratch.both_refused("origin", "cache", &["--policy", "best"], &["--policy", "adaptive"]);
    scratch.both_refused("origin", "cache", &["--size", "8000T"], &["size", "more than"]);
}

/// The process in the background found the pipe closed, and said that there was no such file.
#[test]
fn a_configuration_that_is_gone_when_it_is_read_again() {
    let scratch = Unchanged::new();
    let piped =
        "echo 'policy = \"never\"' | \"$0\" mount origin mnt --cache cache --config /dev/stdin";
    let output = Command::new("sh")
        .args(["-c", piped])
        .arg(program!())
        .current_dir(scratch.root())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("is not a file that stays"), "{message}");
    assert!(message.contains("--foreground"), "{message}");
}

/// Flags without an effect were ignored, so was a limit that no SSD has (all files then left it), and
/// a mount point in a third tier was not seen.
#[test]
fn tiers_that_do_not_fit() {
    let scratch = Unchanged::new();
    for tier in ["ssd", "hdd", "tape", "tape/mnt"] {
        fs::create_dir(scratch.path(tier)).unwrap();
    }
    let mount = |flags: &[&'static str]| [&["mount", "--tier", "."][..], flags].concat();
    scratch.refused(&mount(&["mnt", "--size", "1G"]), &["--size", "--ssd-limit"]);
    scratch.refused(&mount(&["mnt", "--attr-timeout", "0s"]), &["--tier-attr-timeout"]);
    scratch.refused(&mount(&["mnt", "--ssd-limit", "8000T"]), &["ssd-limit", "more than"]);
    scratch.refused(&mount(&["mnt", "--policy", "always"]), &["always", "foresight"]);
    scratch.refused(&mount(&["mnt", "--tiers", "ssd"]), &["--tiers", "ssd, hdd"]);
    let three = ["--tiers", "ssd", "--tiers", "hdd", "--tiers", "tape"];
    let inside = mount(&[&three[..], &["tape/mnt"]].concat());
    scratch.refused(&inside, &["tape/mnt", "lies in, the tier"]);
    scratch.refused(&mount(&["ssd"]), &["ssd", "is, or lies in, the tier"]);
    scratch.both_refused("origin", "cache", &["--ssd-limit", "1G"], &["--ssd-limit", "--size"]);
    for tier in ["ssd", "hdd", "tape"] {
        assert!(!scratch.path(tier).join(".halocline").exists());
    }
}

/// `| head` was answered with a panic.
#[test]
fn a_reader_that_has_read_enough_ends_a_command_quietly() {
    let scratch = Unchanged::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let make = ["trace", "make", "ior", "-p", "1", "-b", "64K", "-t", "64K", "-o", "t.hct"];
    assert!(scratch.command(&make).status().unwrap().success());
    for args in [&["doctor"][..], &["trace", "show", "t.hct"]] {
        let writer = writer.try_clone().unwrap();
        let output = scratch.command(args).stdout(writer).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{args:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A full disk was answered with a panic, too.
#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let scratch = Unchanged::new();
    let make = ["trace", "make", "ior", "-p", "1", "-b", "64K", "-t", "64K", "-o", "t.hct"];
    assert!(scratch.command(&make).status().unwrap().success());
    for args in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["status", "--json"],
        // These were taken for commands whose status is that of a program which they run.
        &["trace", "show", "t.hct"],
        &["trace", "show", "t.hct", "--json"],
        &["bench", "admission", "--only", "1", "--json"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = scratch.command(args).stdout(full).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("standard output: No space left"), "{args:?}: {message}");
        // Nor is there a panic where nothing can be said at all.
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let status = scratch.command(args).stdout(full.try_clone().unwrap()).stderr(full).status();
        assert_eq!(status.unwrap().code(), Some(1), "{args:?}");
    }
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let run = ["run", "--origin", "origin", "--cache", "cache", "--", "sh", "-c", "exit 7"];
    let status = scratch.command(&run).stderr(full).status().unwrap();
    assert!(matches!(status.code(), Some(7 | 2)), "{status}");
}

#[test]
fn the_own_configuration_file_is_read() {
    let scratch = Unchanged::new();
    fs::create_dir_all(scratch.path("config/halocline")).unwrap();
    fs::write(scratch.path("config/halocline/halocline.toml"), "sise = 1").unwrap();
    scratch.both_refused("origin", "cache", &[], &["halocline.toml", "\"sise\""]);
}

#[test]
fn commands_that_cannot_be_started() {
    let scratch = Unchanged::new();
    fs::write(scratch.path("script"), "#!/bin/sh\n").unwrap();
    for (program, status) in [("no-such-program", 127), ("./none", 127), ("./script", 126)] {
        let run = ["run", "--origin", "origin", "--cache", "cache", "--", program];
        let output = scratch.halocline(&run);
        assert_eq!(output.status.code(), Some(status), "{program}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(program) && message.contains("nothing was mounted"), "{message}");
        assert!(names(&scratch.path("cache")).is_empty());
    }
}

#[test]
fn reports_that_cannot_be_written() {
    let scratch = Unchanged::new();
    let run =
        |file| ["run", "--origin", "origin", "--cache", "cache", "--report", file, "--", "true"];
    scratch.refused(&run("none/r.json"), &["directory of the file to be written", "none"]);
    scratch.refused(&run("mnt"), &["mnt", "to be written", "is a directory"]);
}

#[test]
fn places_that_are_on_no_mount() {
    let scratch = Unchanged::new();
    let commands: [&[&str]; 7] = [
        &["status", "origin"],
        &["where", "origin/data"],
        &["explain", "origin/data", "0", "8K"],
        &["flush", "origin"],
        &["warm", "origin/data"],
        &["evict", "origin"],
        &["pin", "*.x", "--on", "origin"],
    ];
    for command in commands.iter().chain(&[&["umount", "origin"][..]]) {
        let output = scratch.halocline(command);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {message}");
        assert!(message.contains("is not on a halocline mount"), "{command:?}: {message}");
    }
    // What was typed is told of, also where it looks like a glob.
    for path in ["origin/none", "origin/[none"] {
        let output = scratch.halocline(&["where", path]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        for part in [path, "there is no such file or directory", "correct the path"] {
            assert!(message.contains(part), "{path}: {message}");
        }
    }
}

#[test]
fn arguments_that_make_no_sense() {
    let scratch = Unchanged::new();
    for args in [&["frobnicate"][..], &[], &["run"], &["explain", "f", "0", "lots"]] {
        let output = scratch.halocline(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

/// Such a mount stopped at its first files, and some hung.
#[test]
fn a_limit_of_open_files_too_low_to_mount_is_told() {
    let scratch = Unchanged::new();
    let mut command = Command::new("prlimit");
    command.arg("--nofile=100:100").arg(scratch.program());
    let directories = ["origin", "mnt", "cache"].map(|name| scratch.path(name));
    let [origin, mountpoint, cache] = &directories;
    let output = command.arg("mount").args([origin, mountpoint]).arg("--cache").arg(cache).output();
    let output = output.unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("100 files open") && message.contains("ulimit -Hn"), "{message}");
}

/// What somebody prepared as a cache, in the hope that root uses it, changes nothing elsewhere.
#[test]
fn what_a_prepared_cache_names_is_not_touched() {
    let scratch = Unchanged::new();
    fs::write(scratch.path("victim"), "precious").unwrap();
    fs::create_dir(scratch.path("elsewhere")).unwrap();
    let made = scratch.halocline(&["run", "--origin", "origin", "--cache", "cache", "--", "true"]);
    if !made.status.success() {
        return skip("no cache can be made here");
    }
    let run = ["run", "--origin", "origin", "--cache", "cache", "--", "true"];
    let fsck = ["fsck", "cache"];
    let inside = |name: &str| scratch.path("cache").join(name);
    let aside = scratch.path("aside");
    for (name, target) in [
        ("halocline.lock", "victim"),
        ("halocline-cache.toml", "victim"),
        ("halocline-binding.toml", "victim"),
        ("meta", "elsewhere"),
        ("objects", "elsewhere"),
        ("meta/snapshot-0000000000000000", "victim"),
        ("rules.json", "victim"),
    ] {
        let had = fs::rename(inside(name), &aside).is_ok();
        symlink(scratch.path(target), inside(name)).unwrap();
        scratch.refused(&run, &[name, "symbolic link"]);
        if name != "rules.json" {
            scratch.refused(&fsck, &[name, "symbolic link"]);
        }
        fs::remove_file(inside(name)).unwrap();
        assert!(!had || fs::rename(&aside, inside(name)).is_ok());
    }
    // A second name of a file that is not the cache's.
    fs::rename(inside("halocline.lock"), &aside).unwrap();
    fs::hard_link(scratch.path("victim"), inside("halocline.lock")).unwrap();
    scratch.refused(&fsck, &["halocline.lock", "hard link"]);
    fs::remove_file(inside("halocline.lock")).unwrap();
    // One that would be waited for.
    let fifo = Command::new("mkfifo").arg(inside("halocline.lock")).status().unwrap();
    assert!(fifo.success());
    scratch.refused(&fsck, &["halocline.lock", "not a regular file"]);
    fs::rename(&aside, inside("halocline.lock")).unwrap();
    assert_eq!(fs::read(scratch.path("victim")).unwrap(), b"precious");
    assert_eq!(names(&scratch.path("elsewhere")), Vec::<PathBuf>::new());
    assert!(scratch.halocline(&fsck).status.success());
    if chown(scratch.path("cache"), Some(12_345), None).is_err() {
        return skip("only root can give a directory to somebody else");
    }
    scratch.refused(&run, &["belongs to user 12345"]);
    scratch.refused(&fsck, &["belongs to user 12345"]);
    chown(scratch.path("cache"), Some(0), None).unwrap();
    chown(scratch.root(), Some(12_345), None).unwrap();
    scratch.refused(&run, &["another user owns"]);
}

/// Versions before made the cache, its store and its log readable for all.
#[test]
fn a_cache_that_is_open_to_others_is_closed() {
    let scratch = Unchanged::new();
    let run = ["run", "--origin", "origin", "--cache", "cache", "--", "true"];
    if !scratch.halocline(&run).status.success() {
        return skip("no cache can be made here");
    }
    let here = |program: &str, args: &[&str]| {
        Command::new(program).args(args).current_dir(scratch.root()).output().unwrap()
    };
    assert!(here("chmod", &["-R", "go+rX", "cache"]).status.success());
    assert!(scratch.halocline(&run).status.success());
    let output = here("find", &["cache", "-perm", "/077"]);
    // What the library's own files allow does not matter below closed directories.
    let open: Vec<_> = std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .filter(|path| scratch.path(path).is_dir() || !path.starts_with("cache/meta/"))
        .collect();
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn an_origin_and_a_mount_point_the_other_way_round() {
    let scratch = Unchanged::new();
    scratch
        .refused(&["mount", "mnt", "origin", "--cache", "cache"], &["not empty", "name it first"]);
}

/// The job ran, and then there was no place for its report.
#[test]
fn a_report_that_cannot_be_written() {
    let scratch = Unchanged::new();
    let long = "n".repeat(300);
    for report in ["nowhere/r.json", "mnt", long.as_str()] {
        let flags = ["run", "--origin", "origin", "--cache", "cache", "--report", report];
        let command = ["--", "touch", "origin/ran"];
        scratch.refused(&[&flags[..], &command].concat(), &["written"]);
        assert!(!scratch.path("origin/ran").exists(), "{report}");
    }
}

/// Each waited for somebody to write into the FIFO.
#[test]
fn fifos_where_files_belong() {
    let scratch = Unchanged::new();
    mknodat(CWD, scratch.path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(scratch.path("t.csv"), "time_s,process,file,op,offset,length\n0,1,f,read,0,4096\n")
        .unwrap();
    assert!(scratch.halocline(&["trace", "import", "t.csv", "-o", "t.hct"]).status.success());
    scratch.both_refused("origin", "cache", &["--config", "fifo"], &["fifo", "not a regular file"]);
    let commands: [&[&str]; 10] = [
        &["trace", "show", "fifo"],
        &["trace", "import", "fifo", "-o", "new.hct"],
        &["plan", "fifo", "--servers", "fifo", "-o", "p.toml"],
        &["plan", "t.hct", "--servers", "fifo", "-o", "p.toml"],
        &["simulate", "fifo", "--servers", "fifo"],
        &["simulate", "t.hct", "--servers", "fifo"],
        &["advise", "fifo", "--servers", "fifo"],
        &["apply", "fifo", "origin"],
        &["verify", "fifo", "origin"],
        &["jobs", "make", "a-job", "fifo"],
    ];
    for command in commands {
        scratch.refused(command, &["fifo"]);
    }
}
