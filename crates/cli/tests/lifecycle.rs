//! `run`, `mount` and `umount` from beginning to end, as a person uses them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use halocline_testkit::closes;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Runs a shell script on the origin, with these flags.
fn run(scratch: &Scratch, flags: &[&str], script: &str) -> Output {
    let head =
        ["run", "--origin", "origin", "--cache", "cache", "--size", "64M", "--policy", "always"];
    scratch.halocline(&[&head[..], flags, &["--", "sh", "-c", script]].concat())
}

fn mount_here(scratch: &Scratch) {
    scratch.succeed(&[
        "mount", "origin", "mnt", "--cache", "cache", "--size", "64M", "--policy", "always",
    ]);
}

/// Kills the mount process and waits until it has let go of all it had.
fn kill_mount_process(scratch: &Scratch) {
    let pid = scratch.pid("mnt");
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let wait_limit = Timespec::try_from(WAIT_LIMIT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait_limit)), Ok(1));
}

#[track_caller]
fn end_of(child: &mut Child) -> std::process::ExitStatus {
    let mut status = None;
    eventually("the end of the process", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn run_shows_the_mount_to_its_command_only() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let origin = scratch.path("origin");
    let script = "cat origin/data && printf new > origin/new && grep -c \"$PWD/origin \" /proc/self/mountinfo";
    let output = run(&scratch, &["--report", "r.json"], script);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(written(&output), "precious1\n");
    assert!(said(&output).contains("by cache"), "the report is printed");
    assert_eq!(fs::read(origin.join("new")).unwrap(), b"new", "all is on the origin after it");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(origin.to_str().unwrap()), "nobody else saw the mount");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(scratch.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["exit_status"], 0);
    assert_eq!(report["dirty_bytes_left"], 0);
    assert_eq!(report["write"]["cache_bytes"], 3);
    assert_eq!(report["flush"]["bytes"], 3);
}

/// The command's own status hid it, and nothing said which files or why.
#[test]
fn a_run_whose_origin_is_full_says_what_stays_dirty_and_why() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a small file system");
    }
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::create_dir(scratch.path("behind")).unwrap();
    // Others take the space that was free when the write was accepted.
    let inner = "head -c 1048576 /dev/zero > origin/new; cat /dev/zero > behind/fill; exit $STATUS";
    let outer = "mount -t tmpfs -o size=8M small origin && mount --bind origin behind && \
                 exec \"$0\" \"$@\"";
    for (status, ends) in [("0", 3), ("7", 7)] {
        let _ = fs::remove_dir_all(scratch.path("cache"));
        fs::create_dir(scratch.path("cache")).unwrap();
        let args = ["run", "--origin", "origin", "--cache", "cache", "--size", "64M"];
        let flags = ["--policy", "always", "--rebuild=false", "--report", "r.json"];
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", outer])
            .arg(scratch.program())
            .args(args.iter().chain(&flags).chain(&["-q", "--", "sh", "-c", inner]))
            .env("STATUS", status)
            .current_dir(scratch.root())
            .output()
            .unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(ends), "{said}");
        assert!(said.contains("new: no space is left on the origin"), "{said}");
        assert!(said.contains("`halocline flush`") && said.contains("stay on the cache"), "{said}");
        let report = fs::read(scratch.path("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        assert_eq!((&report["left_files"], &report["left"][0]["path"]), (&1.into(), &"new".into()));
        assert!(report["left"][0]["reason"].as_str().unwrap().contains("no space"), "{report}");
        assert!(report["dirty_bytes_left"].as_u64().unwrap() > 0, "{report}");
    }
}

/// Figures of an emulation went round as those of hardware.
#[test]
fn a_report_says_that_its_devices_are_emulated() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::remove_file(scratch.path("origin/data")).unwrap();
    let flags = ["--emulate", "2xhdd+2xssd", "--report", "r.json"];
    let output = run(&scratch, &flags, "printf new > origin/new");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("EMULATED (2xhdd+2xssd)"), "{}", said(&output));
    let report = fs::read(scratch.path("r.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["emulated"], "2xhdd+2xssd");
    let output = scratch.halocline(&["unstripe", "nowhere", "out"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("give the directory"), "{}", said(&output));
    for what in [&["new"][..], &[]] {
        let dry = [&["unstripe", "--dry-run", "origin"][..], what, &["out"]].concat();
        let output = scratch.halocline(&dry);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told, "3 B would be copied to out\n");
        assert!(!scratch.path("out").exists() && !scratch.path("out.incomplete").exists());
    }
    fs::write(scratch.path("out.incomplete"), "").unwrap();
    let output = scratch.halocline(&["unstripe", "-n", "origin", "out"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("out.incomplete exists"), "{}", said(&output));
    fs::remove_file(scratch.path("out.incomplete")).unwrap();
    let output = scratch.halocline(&["unstripe", "origin", "new", "out"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        fs::read(scratch.path("out")).unwrap(),
        b"new",
        "ORIGIN [PATH] OUT, as the help says"
    );
    let output = scratch.halocline(&["unstripe", "origin", "all"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read(scratch.path("all/new")).unwrap(), b"new");
}

/// Each file that was removed while others were flushed was told of, by a number, in the midst of
/// the command's own output.
#[test]
fn files_that_are_removed_while_others_are_flushed_are_not_missed() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let script = "for round in 1 2 3; do for d in a b c; do ( cd origin; mkdir $d; \
                  for i in $(seq 400); do echo $i >$d/$i; done; rm -r $d ) & done; wait; done";
    let args = ["run", "--origin", "origin", "--cache", "cache", "--policy", "always", "-q"];
    let args = [&args[..], &["--max-dirty-age", "10ms", "--", "sh", "-c", script]].concat();
    let mut command = Command::new("prlimit");
    // Files beyond those that may be open have nothing but their names to be found by.
    command.arg("--nofile=600:600").arg(scratch.program()).args(args);
    let output = command.current_dir(scratch.root()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output), "", "a job's output is its own");
}

/// Else what is dirty there stays there: root does not mind, and others cannot open it again.
#[test]
fn a_cache_is_its_owners_to_open_whatever_the_umask() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for mask in ["0777", "0277", "0000"] {
        let cache = format!("cache{mask}");
        fs::create_dir(scratch.path(&cache)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"umask {mask} && exec "$@""#), "sh"]).arg(program!());
        command.args(["run", "--origin", "origin", "--cache", &cache, "--size", "64M", "-q"]);
        command.args(["--policy", "always", "--", "sh", "-c", "umask && echo data > origin/file"]);
        let output = command.current_dir(scratch.path("")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(written(&output).trim(), mask, "the command has the caller's");
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let file = scratch.path("origin/file");
        assert_eq!(mode(&file), 0o666 & !u32::from_str_radix(mask, 8).unwrap());
        fs::remove_file(file).unwrap();
        let mut left = vec![scratch.path(&cache)];
        while let Some(path) = left.pop() {
            let is_dir = path.is_dir();
            assert_eq!(mode(&path), if is_dir { 0o700 } else { 0o600 }, "{}", path.display());
            if is_dir {
                left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
}

#[test]
fn run_starts_its_command_on_the_mount_where_it_stands() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let args =
        ["run", "--origin", ".", "--cache", "../cache", "-q", "--", "stat", "-f", "-c", "%T", "."];
    let output = scratch.command(&args).current_dir(scratch.path("origin")).output().unwrap();
    assert_eq!(written(&output).trim(), "fuseblk", "{}", said(&output));
}

#[test]
fn run_ends_as_its_command_did() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for (script, status) in [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let output = run(&scratch, &["-q"], script);
        assert_eq!(output.status.code(), Some(status), "{script}: {}", said(&output));
        assert!(output.stderr.is_empty(), "quiet says {:?}", said(&output));
    }
}

/// The command's own failure became that of the report.
#[test]
fn a_report_that_cannot_be_written_hides_nothing() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for (script, want) in [("rmdir reports; exit 7", 7), ("rmdir reports", 1)] {
        fs::create_dir(scratch.path("reports")).unwrap();
        let output = run(&scratch, &["-q", "--report", "reports/r.json"], script);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(want), "{said}");
        assert!(said.contains("cannot write the report"), "{said}");
    }
}

/// Whoever runs it in the foreground was told of success, and nothing of the conflict.
#[test]
fn a_foreground_mount_ends_with_4_where_it_met_a_conflict() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let args = ["mount", "-f", "origin", "mnt", "--cache", "cache", "--policy", "always"];
    let mut mount = scratch.command(&[&args[..], &["--rebuild=false"]].concat());
    let mut mount = mount.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(mount.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("mounted"), "{first}");
    scratch.succeed(&["flush", "mnt"]);
    fs::write(scratch.path("mnt/data"), "ours").unwrap();
    eventually("dirty bytes", || scratch.status("mnt")["dirty_bytes"] == 4);
    closes::all_are_told(&scratch.path("mnt"));
    fs::write(scratch.path("origin/data"), "theirs, and longer").unwrap();
    let pid = Pid::from_raw(i32::try_from(mount.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = end_of(&mut mount);
    let said: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(status.code(), Some(4), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("data") && line.contains("conflicts/")),
        "{said:?}"
    );
    assert_eq!(fs::read(scratch.path("origin/data")).unwrap(), b"theirs, and longer");
}

#[test]
fn run_forwards_signals_and_flushes_after_them() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let script =
        "trap 'kill $!; printf late > origin/late; exit 5' TERM; sleep 60 & : > origin/up; wait";
    let head = ["run", "--origin", "origin", "--cache", "cache", "-q", "--", "sh", "-c", script];
    let mut child = scratch.command(&head).spawn().unwrap();
    eventually("the start of the command", || scratch.path("origin/up").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert_eq!(fs::read(scratch.path("origin/late")).unwrap(), b"late");
}

#[test]
fn mount_returns_when_the_mount_works_and_umount_when_it_is_gone() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for round in 0..3 {
        mount_here(&scratch);
        assert_eq!(fs::read(scratch.path("mnt/data")).unwrap(), b"precious");
        let name = format!("file{round}");
        fs::write(scratch.path("mnt").join(&name), &name).unwrap();
        scratch.succeed(&["flush", "mnt", "--wait"]);
        scratch.succeed(&["umount", "mnt"]);
        assert!(!scratch.path("mnt/data").exists());
        assert_eq!(fs::read(scratch.path("origin").join(&name)).unwrap(), name.as_bytes());
    }
}

/// A script that holds a lock, or reads what the command says to its end, does not mean the mount.
#[test]
fn a_mount_keeps_nothing_open_of_who_started_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let lock = scratch.path("lock");
    let script = r#"exec 9>"$0" && exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&lock).arg(program!());
    command.args(["mount", "origin", "mnt", "--cache", "cache", "--size", "64M"]);
    let output = command.current_dir(scratch.path("")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let open = fs::read_dir(format!("/proc/{}/fd", scratch.pid("mnt"))).unwrap();
    let held =
        open.filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to == lock));
    assert_eq!(held.count(), 0);
}

#[test]
fn writes_are_cached_then_flushed_and_both_are_told() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--size", "64M"];
    scratch.succeed(&[&mount[..], &["--policy", "always", "--rebuild=false"]].concat());
    let content: Vec<u8> = (0..64 << 10).map(|byte: u32| byte.to_le_bytes()[1] ^ 0x5a).collect();
    fs::write(scratch.path("mnt/new"), &content).unwrap();
    assert_eq!(scratch.status("mnt")["dirty_bytes"], content.len());
    let process = scratch.pid("mnt").as_raw_nonzero();
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
    assert_eq!(name.trim(), "halocline", "what lists of processes call it");
    let extents = scratch.succeed(&["where", "mnt/new", "--json"]);
    let extents: serde_json::Value = serde_json::from_str(&extents).unwrap();
    let extents = extents.as_array().unwrap();
    assert!(extents.iter().all(|extent| extent["side"] == "cache" && extent["dirty"] == true));
    let dry = scratch.succeed(&["flush", "mnt", "--dry-run"]);
    assert!(dry.contains("64.0 KiB in 1 file would be flushed"), "{dry}");
    assert_eq!(scratch.status("mnt")["dirty_bytes"], content.len(), "a dry run moves nothing");
    scratch.succeed(&["flush", "mnt"]);
    assert_eq!(scratch.status("mnt")["dirty_bytes"], 0);
    assert_eq!(fs::read(scratch.path("origin/new")).unwrap(), content);
    let output = scratch.halocline(&["demote", "mnt/new"]);
    let message = said(&output);
    assert_eq!(output.status.code(), Some(2), "a cache has no lower tier: {message}");
    assert!(message.contains("is a cache") && message.contains("halocline evict"), "{message}");
    assert_ne!(scratch.status("mnt")["mapped_bytes"], 0, "nothing was moved");
    scratch.succeed(&["evict", "mnt/new"]);
    assert_eq!(scratch.status("mnt")["mapped_bytes"], 0);
    let told = scratch.succeed(&["explain", "mnt/new", "0", "8K", "--processes", "4", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["processes"], &told["decision"]), (&4.into(), &"cache".into()));
    scratch.succeed(&["warm", "mnt/new"]);
    assert_eq!(scratch.status("mnt")["mapped_bytes"], content.len());
    assert_eq!(fs::read(scratch.path("mnt/new")).unwrap(), content);
    scratch.succeed(&["umount", "mnt"]);
    scratch.succeed(&["fsck", "cache"]);
}

#[test]
fn dirty_data_that_is_kept_is_there_at_the_next_mount() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "origin", "mnt", "--cache", "cache", "--policy", "always"];
    scratch.succeed(&[&mount[..], &["--rebuild=false"]].concat());
    fs::write(scratch.path("mnt/new"), "kept").unwrap();
    let output = scratch.once_unused(&["umount", "mnt", "--keep-dirty"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_ne!(fs::read(scratch.path("origin/new")).unwrap(), b"kept");
    let other = scratch.halocline(&[&mount[..], &["--emulate", "2xhdd+2xssd"]].concat());
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    assert!(said(&other).contains("another shape"), "{}", said(&other));
    mount_here(&scratch);
    assert_eq!(fs::read(scratch.path("mnt/new")).unwrap(), b"kept");
    scratch.succeed(&["umount", "mnt"]);
    assert_eq!(fs::read(scratch.path("origin/new")).unwrap(), b"kept");
}

#[test]
fn a_mount_in_use_stays() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    mount_here(&scratch);
    let open = fs::File::open(scratch.path("mnt/data")).unwrap();
    let output = scratch.halocline(&["umount", "mnt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--force"), "{}", said(&output));
    assert_eq!(fs::read(scratch.path("mnt/data")).unwrap(), b"precious");
    drop(open);
    scratch.succeed(&["umount", "mnt"]);
}

/// A namespace that was made while the mount was up, as of a container, kept the mount alive: the
/// unmount waited for ever, and before the flush.
#[test]
fn a_mount_ends_although_another_namespace_has_a_copy() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a mount namespace alone");
    }
    mount_here(&scratch);
    fs::write(scratch.path("mnt/new"), "precious, too").unwrap();
    let process = scratch.pid("mnt");
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let script = "exec 3< mnt/data; echo open; read _; exec 3<&-; echo closed; read _";
    let mut unshare = Command::new("unshare");
    let unshare = unshare.args(["-m", "--propagation", "private", "sh", "-c", script]);
    let unshare = unshare.current_dir(scratch.path("")).stdin(Stdio::piped());
    let mut other = unshare.stdout(Stdio::piped()).spawn().unwrap();
    let mut go = other.stdin.take().unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "open");
    let mut umount = scratch.command(&["umount", "mnt"]).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(end_of(&mut umount).code(), Some(1), "a program there has a file open");
    let refused = umount.wait_with_output().unwrap();
    assert!(said(&refused).contains("programs use the mount"), "{}", said(&refused));
    assert_eq!(fs::read(scratch.path("mnt/data")).unwrap(), b"precious", "nothing has changed");
    go.write_all(b"go\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "closed");
    closes::all_are_told(&scratch.path("mnt"));
    let mut umount = scratch.command(&["umount", "mnt"]).stderr(Stdio::piped()).spawn().unwrap();
    let status = end_of(&mut umount);
    let ended = umount.wait_with_output().unwrap();
    assert!(status.success(), "{}", said(&ended));
    let pid = other.id().to_string();
    assert!(said(&ended).contains(&pid), "who has the copy: {}", said(&ended));
    assert_eq!(fs::read(scratch.path("origin/new")).unwrap(), b"precious, too");
    let timeout = Timespec::try_from(WAIT_LIMIT).unwrap();
    let gone = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(gone, 1, "the mount process has ended");
    drop(go);
    end_of(&mut other);
}

/// The same of a mount that is somewhere else, too, where the process sees it itself.
#[test]
fn a_mount_ends_although_it_is_bound_elsewhere() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can bind a mount");
    }
    mount_here(&scratch);
    fs::create_dir(scratch.path("bound")).unwrap();
    rustix::mount::mount_bind(scratch.path("mnt"), scratch.path("bound")).unwrap();
    fs::write(scratch.path("bound/new"), "there").unwrap();
    let mut umount = scratch.command(&["umount", "mnt"]).spawn().unwrap();
    let status = end_of(&mut umount);
    let flags = rustix::mount::UnmountFlags::DETACH;
    rustix::mount::unmount(scratch.path("bound"), flags).unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(fs::read(scratch.path("origin/new")).unwrap(), b"there");
}

#[test]
fn a_cache_has_one_owner() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    mount_here(&scratch);
    fs::create_dir(scratch.path("other")).unwrap();
    let output = scratch.halocline(&["mount", "origin", "other", "--cache", "cache"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("cache"), "{}", said(&output));
    assert_eq!(fs::read(scratch.path("mnt/data")).unwrap(), b"precious", "the owner goes on");
    assert!(scratch.status("mnt")["pid"].is_number(), "its socket is still its own");
}

#[test]
fn signals_end_a_mount_after_a_flush() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    mount_here(&scratch);
    fs::write(scratch.path("mnt/new"), "new").unwrap();
    kill_process(scratch.pid("mnt"), Signal::TERM).unwrap();
    eventually("the unmount", || !scratch.path("mnt/data").exists());
    eventually("the flush", || fs::read(scratch.path("origin/new")).is_ok_and(|new| new == b"new"));
}

#[test]
fn a_dead_mount_is_told_and_can_be_mounted_again() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    mount_here(&scratch);
    fs::write(scratch.path("mnt/new"), "acknowledged").unwrap();
    kill_mount_process(&scratch);
    // The kernel ends the connection some milliseconds after the process.
    eventually("the end of answers", || fs::read_dir(scratch.path("mnt")).is_err());
    let again = scratch.halocline(&["mount", "origin", "mnt", "--cache", "cache"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(said(&again).contains("halocline umount"), "{}", said(&again));
    let freed = scratch.halocline(&["umount", "mnt"]);
    assert_eq!(freed.status.code(), Some(3), "{}", said(&freed));
    mount_here(&scratch);
    assert_eq!(fs::read(scratch.path("mnt/new")).unwrap(), b"acknowledged");
}

#[test]
fn a_foreground_mount_ends_with_its_mount_point() {
    let Some(scratch) = Scratch::new(program!()) else {
        return;
    };
    let args = ["mount", "--foreground", "origin", "mnt", "--cache", "cache"];
    let mut child = scratch.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    // Before it says so it may itself have a look at the mount, which is busy then.
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    // A process that another test starts has our open files for a moment.
    let umount = || Command::new("umount").arg(scratch.path("mnt")).status().unwrap().success();
    eventually("the unmount", umount);
    assert_eq!(end_of(&mut child).code(), Some(0));
}
