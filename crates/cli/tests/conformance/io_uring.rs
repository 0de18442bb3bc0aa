//! What must hold of requests through `io_uring` alone: a processor's queue is served by several
//! threads, so calls that sleep hold up no other program of that processor.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::mount::{self, IO_URING, Mount};
use crate::programs;
use crate::waiting::PATIENCE;

/// Programs that wait for the device that stands still; fewer than a queue has threads.
const WAITING: usize = 8;
/// How long those that wait have to reach the device, at least once.
const BEGIN: Duration = Duration::from_millis(300);

/// A process that stands still until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).expect("stop");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::CONT);
    }
}

/// Starts a program on the first processor alone, whose requests all meet in one queue.
fn on_one_processor(program: &str, file: &std::path::Path) -> Child {
    let mut command = Command::new("taskset");
    command.args(["-c", "0", program]).arg(file).stdout(Stdio::null());
    programs::bind(&mut command, Signal::KILL).spawn().expect("taskset starts")
}

#[test]
fn calls_that_sleep_hold_up_no_other_program_of_their_processor() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    // The slow device is a mount whose process does not run.
    let below = Mount::new(&["--policy", "never", "--direct=true"]);
    let slow = Mount::new(&["--policy", "never", "--direct=true", IO_URING]);
    assert_eq!(slow.status()["transport"], "io_uring");
    fs::create_dir(slow.origin().join("below")).expect("directory");
    mount_bind(below.path(), slow.origin().join("below")).expect("bind");
    for number in 0..WAITING {
        fs::write(slow.path().join(format!("below/{number}")), "bytes").expect("write");
    }
    fs::write(slow.path().join("beside"), "bytes").expect("write");

    let pid = below.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let stopped = Stopped::new(pid.and_then(Pid::from_raw).expect("a pid"));
    let waiting: Vec<Child> = (0..WAITING)
        .map(|number| on_one_processor("cat", &slow.path().join(format!("below/{number}"))))
        .collect();
    thread::sleep(BEGIN);
    let (tell, told) = channel();
    let beside = slow.path().join("beside");
    thread::spawn(move || tell.send(on_one_processor("cat", &beside).wait()));
    let answered = told.recv_timeout(PATIENCE);
    drop(stopped);
    for mut child in waiting {
        assert!(child.wait().expect("wait").success(), "it goes on when the device does");
    }
    unmount(slow.origin().join("below"), UnmountFlags::DETACH).expect("unmount");
    assert!(answered.expect("it had to wait for the others").expect("wait").success());
}
