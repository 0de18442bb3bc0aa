//! Signals that were ignored when a command started, as `nohup` and jobs in the background have it: they stay
//! ignored, by the command that `run` starts, too.

use std::fs;
use std::process::{Command, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::signals::{self, INHERITED};
use halocline_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// The bits of [`INHERITED`] in the line `SigIgn` of `/proc/PID/status`.
fn ignored_of(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let all = u64::from_str_radix(line.trim(), 16).unwrap();
    INHERITED.iter().map(|signal| all & 1 << (signal - 1)).sum()
}

fn all_ignored() -> u64 {
    INHERITED.iter().map(|signal| 1_u64 << (signal - 1)).sum()
}

/// A mount that was started by `nohup` ended at logout.
#[test]
fn a_mount_goes_on_where_signals_were_ignored_at_its_start() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mount = ["mount", "--foreground", "origin", "mnt", "--cache", "cache"];
    let mut command = scratch.command(&mount);
    let mut child = signals::ignored(&mut command).stderr(Stdio::null()).spawn().unwrap();
    eventually("the mount", || scratch.halocline(&["status", "mnt"]).status.success());
    let pid = Pid::from_child(&child);
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    assert_eq!(ignored_of(&status), all_ignored(), "{status}");
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        kill_process(pid, signal).unwrap();
        scratch.succeed(&["status", "mnt"]);
    }
    kill_process(pid, Signal::TERM).unwrap();
    eventually("the end of the mount", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

/// `nohup halocline run` took from the command what `nohup` had given it.
#[test]
fn a_command_of_run_ignores_what_was_ignored_at_its_start() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let run = ["run", "--origin", "origin", "--cache", "cache", "--", "cat", "/proc/self/status"];
    let ignored = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        ignored_of(&written(&output))
    };
    assert_eq!(ignored(signals::ignored(&mut scratch.command(&run))), all_ignored());
    assert_eq!(ignored(signals::by_default(&mut scratch.command(&run))), 0);
}
