//! Mounts that several end at once, and that somebody detached while programs use them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::skipping::skip;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
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
    let wait_limit = Timespec::try_from(WAIT_LIMIT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait_limit)), Ok(1));
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
    let told = told(&mut mount, "umount --force");
    assert!(told.contains(&program), "{told}");
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

/// Reads what a command says until it contains `wanted`.
#[track_caller]
fn told(by: &mut Child, wanted: &str) -> String {
    let stderr = by.stderr.as_mut().unwrap();
    let (mut all, mut part) = (String::new(), vec![0; 4096]);
    while !all.contains(wanted) {
        let len = stderr.read(&mut part).unwrap();
        assert!(len > 0, "it ended without {wanted:?}: {all}");
        all.push_str(&String::from_utf8_lossy(&part[..len]));
    }
    all
}

/// A child of ours that waits for the end of another mount, and the process in the background that it started.
#[track_caller]
fn waiting_mount(scratch: &Scratch) -> (Child, Pid) {
    let mut mount = asked(scratch, &MOUNT);
    told(&mut mount, "waiting for process");
    let children = format!("/proc/{0}/task/{0}/children", mount.id());
    let children = fs::read_to_string(children).unwrap();
    let background = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    (mount, background.and_then(Pid::from_raw).unwrap())
}

/// The process in the background went on waiting, and mounted in the end although nobody wanted that any more.
#[test]
fn a_mount_that_waits_is_given_up_by_a_signal_and_with_who_asked_for_it() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let Detached { scratch, pid, mut user } = Detached::new(scratch);
    let (mount, background) = waiting_mount(&scratch);
    kill_process(background, Signal::TERM).unwrap();
    let refused = answered(mount);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("nothing was mounted"), "{}", said(&refused));
    let (mut mount, background) = waiting_mount(&scratch);
    mount.kill().unwrap();
    mount.wait().unwrap();
    ends(background);
    user.kill().unwrap();
    user.wait().unwrap();
    ends(pid);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(scratch.path("mnt").to_str().unwrap()), "{mounts}");
    assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
}

/// It waited for itself: its caller's shell had handed it a file of the mount that was to end.
#[test]
fn a_mount_that_waits_is_no_user_of_what_it_waits_for() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let pid = mounted(&scratch);
    let file = File::open(scratch.path("mnt/new")).unwrap();
    rustix::mount::unmount(scratch.path("mnt"), UnmountFlags::DETACH).unwrap();
    let mut command = scratch.command(&MOUNT);
    // Handed on beyond the standard streams, as a shell's `3<file` does.
    let handed = rustix::io::fcntl_dupfd_cloexec(&file, 10).unwrap();
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::fcntl_setfd(&handed, FdFlags::empty())?));
    }
    let mount = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // What was handed on is ours no more.
    drop((command, file));
    let mounted = answered(mount);
    assert!(mounted.status.success(), "{}", said(&mounted));
    ends(pid);
    scratch.succeed(&["umount", "mnt"]);
}

/// What was dirty stayed so for as long as the other namespace lived, and the next mount waited for that.
#[test]
fn a_mount_that_somebody_unmounted_ends_although_another_namespace_has_a_copy() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a mount namespace alone");
    }
    let pid = mounted(&scratch);
    let mut unshare = Command::new("unshare");
    let script = "echo made; exec sleep 100000";
    let unshare = unshare.args(["-m", "--propagation", "private", "sh", "-c", script]);
    let mut other = unshare.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = [0; 5];
    other.stdout.take().unwrap().read_exact(&mut told).unwrap();
    rustix::mount::unmount(scratch.path("mnt"), UnmountFlags::empty()).unwrap();
    ends(pid);
    assert!(fs::read(scratch.path("origin/new")).unwrap() == DATA[..]);
    scratch.succeed(&MOUNT);
    scratch.succeed(&["umount", "mnt"]);
    other.kill().unwrap();
    other.wait().unwrap();
}
