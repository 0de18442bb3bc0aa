//! Mounts that several end at once, and that somebody detached while programs use them.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};

use halocline_testkit::place::said;
use halocline_testkit::program;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::{PATIENCE, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

static DATA: [u8; 3 << 20] = [7; 3 << 20];
const MOUNT: [&str; 9] = [
    "mount",
    "origin",
    "mnt",
    "--cache",
    "cache",
    "--policy",
    "always",
    "--rebuild=false",
    "--size=64M",
];

/// Mounts and writes something that is flushed at the end.
fn mounted(scratch: &Scratch) -> Pid {
    scratch.succeed(&MOUNT);
    fs::write(scratch.path("mnt/new"), &DATA[..]).unwrap();
    scratch.pid("mnt")
}

fn asked(scratch: &Scratch, args: &[&str]) -> Child {
    scratch.command(args).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn answered(mut child: Child) -> Output {
    eventually("the end of the command", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn ends(pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let patience = Timespec::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)), Ok(1));
}

/// The second one was never answered, the control socket waited for its answer, and the process for that.
#[test]
fn two_unmounts_at_once_end_the_mount() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for round in 0..5 {
        let pid = mounted(&scratch);
        let asked: Vec<_> = (0..3).map(|_| asked(&scratch, &["umount", "mnt"])).collect();
        let answers: Vec<_> = asked.into_iter().map(answered).collect();
        let done = answers.iter().filter(|answer| answer.status.success()).count();
        assert!(done > 0, "round {round}: {}", said(&answers[0]));
        ends(pid);
        assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
    }
}

#[test]
fn an_unmount_beside_a_signal_ends_the_mount() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    for _ in 0..3 {
        let pid = mounted(&scratch);
        let umount = asked(&scratch, &["umount", "mnt"]);
        kill_process(pid, Signal::TERM).unwrap();
        answered(umount);
        ends(pid);
        assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
    }
}

/// A mount that was detached while a program has a file of it open.
struct Detached {
    scratch: Scratch,
    pid: Pid,
    user: Child,
}

impl Detached {
    fn new(scratch: Scratch) -> Self {
        let pid = mounted(&scratch);
        let file = File::open(scratch.path("mnt/new")).unwrap();
        let user = Command::new("sleep").arg("100000").stdin(file).spawn().unwrap();
        rustix::mount::unmount(scratch.path("mnt"), UnmountFlags::DETACH).unwrap();
        Self { scratch, pid, user }
    }
}

#[test]
fn a_detached_mount_in_use_says_who_uses_it_and_is_ended_by_force() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let Detached { scratch, pid, mut user } = Detached::new(scratch);
    let program = format!("process {} (", user.id());
    let status = scratch.succeed(&["status", "cache"]);
    assert!(status.contains("detached") && status.contains(&program), "{status}");
    let refused = answered(asked(&scratch, &["umount", "cache"]));
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains(&program), "{}", said(&refused));
    let mut mount = asked(&scratch, &MOUNT);
    let mut told = vec![0; 4096];
    let len = mount.stderr.as_mut().unwrap().read(&mut told).unwrap();
    let told = String::from_utf8_lossy(&told[..len]);
    assert!(told.contains(&program) && told.contains("umount --force"), "{told}");
    let done = answered(asked(&scratch, &["umount", "--force", "cache"]));
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    ends(pid);
    assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
    assert!(answered(mount).status.success(), "what waited for the end goes on");
    user.kill().unwrap();
    user.wait().unwrap();
    scratch.succeed(&["umount", "mnt"]);
}

/// Each command that was interrupted kept the process for good.
#[test]
fn interrupted_unmounts_do_not_keep_a_detached_mount_after_its_last_user() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let Detached { scratch, pid, mut user } = Detached::new(scratch);
    for _ in 0..2 {
        let mut umount = asked(&scratch, &["umount", "cache"]);
        std::thread::sleep(std::time::Duration::from_millis(300));
        umount.kill().unwrap();
        umount.wait().unwrap();
    }
    user.kill().unwrap();
    user.wait().unwrap();
    ends(pid);
    assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
    scratch.succeed(&MOUNT);
    scratch.succeed(&["umount", "mnt"]);
}
