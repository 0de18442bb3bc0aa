//! Processes that stand still (SIGSTOP), as on a machine that pages or is suspended.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::waiting::eventually;

/// Sends a signal; after one that stops the process it stands still.
#[track_caller]
pub(crate) fn send(pid: Pid, signal: Signal) {
    if signal == Signal::STOP { stop(pid) } else { kill_process(pid, signal).unwrap() }
}

/// Stops a process. The signal alone returns while threads on other processors may still answer a request.
#[track_caller]
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
    eventually("the standstill", || {
        fs::read_dir(&threads).unwrap().all(|it| is_stopped(&it.unwrap()))
    });
}

/// Whether a thread is stopped, or gone, or will stop before it runs again, because the kernel waits for a device.
fn is_stopped(thread: &fs::DirEntry) -> bool {
    let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
    // The state follows the name, which stands in brackets and may contain some.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'D', 'Z', 'X']))
}

/// Lets a process go on that was stopped.
pub fn go_on(pid: Pid) {
    kill_process(pid, Signal::CONT).unwrap();
}

/// A process that stands still until this is dropped.
#[derive(Debug)]
pub struct Standstill(Pid);

impl Standstill {
    /// Stops the process.
    #[track_caller]
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        // Made first, so that the process goes on if it is never seen to stand still.
        let still = Self(pid);
        stop(pid);
        still
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _gone = kill_process(self.0, Signal::CONT);
    }
}
