//! Programs that are killed while they wait for other nodes, or for the store.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::signals::by_default;
use halocline_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// Each transport has its own threads for requests.
const TRANSPORTS: [&str; 2] = ["--io-uring=false", "--io-uring=true"];
/// Half of how long a request waits before it gets an error by itself.
const SOON: Duration = Duration::from_mins(1);

/// Programs of one request each: to read, to write, to change the size.
fn programs(path: &PathBuf) -> [Child; 3] {
    let spawn = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
        by_default(&mut command).spawn().unwrap()
    };
    let mut tee = Command::new("tee");
    tee.arg("-a").arg(path).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut tee = by_default(&mut tee).spawn().unwrap();
    std::io::Write::write_all(&mut tee.stdin.take().unwrap(), b"more").unwrap();
    [spawn("head", &["-c", "1"]), spawn("truncate", &["-s", "10"]), tee]
}

/// A process that stands still until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Kills programs that wait on `other`, half of them as `Ctrl-C` does.
fn end_those_that_wait(nodes: &Nodes, transport: &str) {
    let path = nodes.path("other/file");
    let mut children: Vec<Child> = programs(&path).into_iter().chain(programs(&path)).collect();
    let counts = || nodes.status("other")["report"]["cluster"].clone();
    // Those that change the file wait for each other in the kernel.
    eventually("they wait", || counts()["waiting"].as_u64() >= Some(3));
    let refused = counts()["refused"].clone();
    let begun = Instant::now();
    for (number, child) in children.iter_mut().enumerate() {
        let signal = if number % 2 == 0 { Signal::KILL } else { Signal::INT };
        let pid = Pid::from_child(child);
        kill_process(pid, signal).unwrap();
    }
    for (number, child) in children.iter_mut().enumerate() {
        let signal = child.wait().unwrap().signal();
        assert!(signal.is_some(), "{transport}: program {number}");
    }
    assert!(begun.elapsed() < SOON, "{transport}: {:?}", begun.elapsed());
    assert_eq!(counts()["refused"], refused, "{transport}: no wait was over by itself");
    eventually("nobody waits", || counts()["waiting"].as_u64() == Some(0));
}

/// A killed program hung until the wait's limit of two minutes, and so did whoever waited for it.
#[test]
fn a_program_that_is_killed_ends_though_it_waits_for_another_node() {
    let is_ring_offered = fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|offer| offer.trim_end() == "Y");
    for transport in TRANSPORTS.into_iter().take(1 + usize::from(is_ring_offered)) {
        let Some(nodes) = Nodes::new(program!(), &[transport]) else { return };
        fs::write(nodes.path("one/file"), [7; 10_000]).unwrap();
        let stopped = Stopped::stop(nodes.pid("one"));
        end_those_that_wait(&nodes, transport);
        drop(stopped);
        // What they wanted was not done.
        assert!(fs::read(nodes.path("other/file")).unwrap() == [7; 10_000], "{transport}");
        fs::write(nodes.path("other/file"), "other").unwrap();
        assert_eq!(fs::read(nodes.path("one/file")).unwrap(), b"other", "{transport}");
    }
}

#[test]
fn a_program_that_is_killed_ends_though_it_waits_for_the_store() {
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    fs::write(nodes.path("origin/file"), [7; 10_000]).unwrap();
    nodes.store.signal(Signal::STOP);
    end_those_that_wait(&nodes, "store");
    nodes.store.signal(Signal::CONT);
    eventually("the file is read", || {
        fs::read(nodes.path("other/file")).is_ok_and(|found| found == [7; 10_000])
    });
}
