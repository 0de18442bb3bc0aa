//! What must hold of requests through `io_uring` alone: a processor's queue is served by several
//! threads, so calls that sleep hold up no other program of that processor; threads of a file tier
//! stay on the processor of their queue, and no other thread of a mount is bound.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::WAIT_LIMIT;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal};
use rustix::thread::sched_getaffinity;

use crate::mount::{self, IO_URING, Mount};
use crate::programs;

/// Programs that wait for the device that stands still; fewer than a queue has threads.
const WAITING: usize = 8;
/// How long those that wait have to reach the device, at least once.
const BEGIN: Duration = Duration::from_millis(300);

/// Starts a program on the first processor alone, whose requests all meet in one queue.
fn on_one_processor(program: &str, file: &Path) -> Child {
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
    let stopped = Standstill::of(pid.and_then(Pid::from_raw).expect("a pid"));
    let waiting: Vec<Child> = (0..WAITING)
        .map(|number| on_one_processor("cat", &slow.path().join(format!("below/{number}"))))
        .collect();
    thread::sleep(BEGIN);
    let (tell, told) = channel();
    let beside = slow.path().join("beside");
    thread::spawn(move || tell.send(on_one_processor("cat", &beside).wait()));
    let answered = told.recv_timeout(WAIT_LIMIT);
    drop(stopped);
    for mut child in waiting {
        assert!(child.wait().expect("wait").success(), "it goes on when the device does");
    }
    unmount(slow.origin().join("below"), UnmountFlags::DETACH).expect("unmount");
    assert!(answered.expect("it had to wait for the others").expect("wait").success());
}

/// The fields of a thread below `/proc` that tell its name and the processors that it may use;
/// `None` if it has ended, as the one does that has just answered `halocline status`.
fn name_and_processors(task: &Path) -> Option<[String; 2]> {
    let text = fs::read_to_string(task.join("status")).ok()?;
    Some(["Name:", "Cpus_allowed_list:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.expect("a field").trim().to_owned()
    }))
}

#[test]
fn threads_of_a_tier_stay_on_the_processor_of_their_queue() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    let usable = sched_getaffinity(None).expect("processors");
    let [_, all] = name_and_processors(Path::new("/proc/thread-self")).expect("this thread");
    for (mount, bound) in [(Mount::tier(&[IO_URING]), true), (Mount::new(&[IO_URING]), false)] {
        // For threads that it starts only when it is used.
        fs::write(mount.path().join("file"), "bytes").expect("write");
        let tasks = format!("/proc/{}/task", mount.status()["pid"]);
        let mut rings = 0;
        for task in fs::read_dir(tasks).expect("threads") {
            let task = task.expect("thread").path();
            let Some([name, processors]) = name_and_processors(&task) else { continue };
            let queue = name.strip_prefix("ring-").and_then(|rest| rest.split('-').next());
            rings += usize::from(queue.is_some());
            let stays = queue.filter(|queue| bound && usable.is_set(queue.parse().expect("one")));
            assert_eq!(processors, stays.unwrap_or(&all), "{name}");
        }
        assert!(rings > 1, "{rings}");
    }
}
