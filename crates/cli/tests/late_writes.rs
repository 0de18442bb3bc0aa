//! Writes of ours that an origin's server does long after the process that asked for them was killed, or told to end:
//! they are not changes of others (I9).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use halocline_testkit::closes;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::stalling_server::{Stalled, StallingServer};
use halocline_testkit::waiting::eventually;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

const MOUNT: [&str; 8] = [
    "mount",
    "served",
    "mnt",
    "--cache",
    "cache",
    "--policy=always",
    "--rebuild=false",
    "--size=64M",
];
static BEFORE: [u8; 1 << 20] = [1; 1 << 20];
/// Far longer than the lease lasts after a kill.
const LATE: Duration = Duration::from_secs(4);

/// A mount whose flush waits for a write that its origin's server has taken.
struct Late {
    /// First: else it is removed while it is served.
    server: StallingServer,
    scratch: Scratch,
    pid: Pid,
    flush: Child,
    /// What programs wrote.
    written: Vec<u8>,
}

impl Late {
    fn new(scratch: Scratch) -> Self {
        fs::create_dir(scratch.path("data")).unwrap();
        fs::write(scratch.path("data/file"), &BEFORE[..]).unwrap();
        let server = StallingServer::mount(&scratch.path("data"), &scratch.path("served"));
        scratch.succeed(&MOUNT);
        let mut written = BEFORE.to_vec();
        for part in written.chunks_mut(64 << 10) {
            part[..8 << 10].fill(2);
        }
        let file = fs::File::options().write(true).open(scratch.path("mnt/file")).unwrap();
        for at in (0..written.len()).step_by(64 << 10) {
            let part = &written[at..at + (8 << 10)];
            std::os::unix::fs::FileExt::write_all_at(&file, part, at as u64).unwrap();
        }
        drop(file);
        let pid = scratch.pid("mnt");
        server.stall(Stalled::Write);
        let mut flush = scratch.command(&["flush", "mnt"]);
        let flush = flush.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("a write that waits", || server.waiting() > 0);
        Self { server, scratch, pid, flush, written }
    }

    /// The server goes on, late; then the process ends.
    fn go_on(&mut self) {
        thread::sleep(LATE);
        self.server.go_on();
        let _gone = rustix::mount::unmount(self.scratch.path("mnt"), UnmountFlags::DETACH);
        let process = format!("/proc/{}", self.pid.as_raw_nonzero());
        eventually("the end of the mount's process", || {
            let stat = fs::read_to_string(Path::new(&process).join("stat"));
            stat.is_ok_and(|stat| stat.contains(") Z ")) || !Path::new(&process).exists()
        });
        self.flush.kill().unwrap();
        self.flush.wait().unwrap();
    }

    /// What programs wrote is in the file, on the mount and then on the origin, and nobody is told of changes of
    /// others.
    fn check_nothing_is_lost(&self) {
        self.scratch.succeed(&MOUNT);
        assert!(fs::read(self.scratch.path("mnt/file")).unwrap() == self.written);
        let ended = self.scratch.once_unused(&["umount", "mnt"]);
        assert_eq!(ended.status.code(), Some(0), "{}", said(&ended));
        assert!(fs::read(self.scratch.path("data/file")).unwrap() == self.written);
        assert!(!self.scratch.path("cache/conflicts").exists());
    }
}

/// The server did it after the end of the lease: the next mount took it for a change of others, and programs read what
/// they had overwritten.
#[test]
fn i9_a_write_that_is_done_long_after_a_kill_is_ours() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mut late = Late::new(scratch);
    kill_process(late.pid, Signal::KILL).unwrap();
    late.go_on();
    late.check_nothing_is_lost();
}

#[test]
fn i9_a_write_that_is_done_long_after_a_forced_unmount_is_ours() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mut late = Late::new(scratch);
    let forced = late.scratch.halocline(&["umount", "mnt", "--force"]);
    assert_eq!(forced.status.code(), Some(3), "{}", said(&forced));
    late.go_on();
    late.check_nothing_is_lost();
}

/// What comes after the end of the process is not excused by what it was doing.
#[test]
fn i9_a_change_after_the_end_of_a_killed_process_is_one_of_others() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let mut late = Late::new(scratch);
    kill_process(late.pid, Signal::KILL).unwrap();
    late.go_on();
    // The kernel tells the end of a process to the second.
    thread::sleep(Duration::from_millis(2100));
    fs::write(late.scratch.path("data/file"), vec![3; 1 << 20]).unwrap();
    late.scratch.succeed(&MOUNT);
    assert!(fs::read(late.scratch.path("mnt/file")).unwrap() == vec![3; 1 << 20]);
    let ended = late.scratch.once_unused(&["umount", "mnt"]);
    assert_eq!(ended.status.code(), Some(4), "{}", said(&ended));
    assert!(late.scratch.path("cache/conflicts").exists());
}

/// Nothing was said, and no signal but SIGKILL ended it.
#[test]
fn i4_a_run_whose_last_flush_hangs_says_so_and_is_ended_by_a_signal() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::create_dir(scratch.path("data")).unwrap();
    fs::write(scratch.path("data/file"), &BEFORE[..]).unwrap();
    let server = StallingServer::mount(&scratch.path("data"), &scratch.path("served"));
    server.stall(Stalled::Write);
    let write = "printf new | dd of=served/file conv=notrunc status=none";
    let options = ["--policy=always", "--rebuild=false", "--size=64M"];
    let run = [&["run", "--origin", "served", "--cache", "cache"], &options[..]].concat();
    let mut run = scratch.command(&[&run[..], &["--", "sh", "-c", write]].concat());
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("the flush waits for the origin")).unwrap();
    assert!(server.waiting() > 0);
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    lines.find(|line| line.contains("stay on the cache")).unwrap();
    server.go_on();
    assert_eq!(run.wait().unwrap().code(), Some(3));
    scratch.succeed(&MOUNT);
    assert!(fs::read(scratch.path("mnt/file")).unwrap().starts_with(b"new"));
    scratch.succeed(&["umount", "mnt"]);
    assert!(fs::read(scratch.path("data/file")).unwrap().starts_with(b"new"));
}

/// The bytes that were saved apart were told of by no command.
#[test]
fn i9_who_keeps_dirty_data_is_told_of_conflicts() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    fs::write(scratch.path("origin/file"), &BEFORE[..]).unwrap();
    let options = ["--policy=always", "--rebuild=false", "--size=64M"];
    scratch.succeed(&[&["mount", "origin", "mnt", "--cache", "cache"], &options[..]].concat());
    let file = fs::File::options().write(true).open(scratch.path("mnt/file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"ours", 4096).unwrap();
    drop(file);
    // Its record says how it looked, once the close is told.
    closes::all_are_told(&scratch.path("mnt"));
    fs::write(scratch.path("origin/file"), "theirs").unwrap();
    assert_eq!(fs::read(scratch.path("mnt/file")).unwrap(), b"theirs");
    let ended = scratch.once_unused(&["umount", "mnt", "--keep-dirty"]);
    assert_eq!(ended.status.code(), Some(4), "{}", said(&ended));
    let told = written(&ended) + &said(&ended);
    assert!(told.contains("conflicts"), "{told}");
}
