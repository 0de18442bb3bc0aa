//! Processes that serve mounts and end with the benchmark, however that ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::bind::bind;

/// How long a process that serves a mount may take to unmount and end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that serves a mount. When this is dropped, or the benchmark killed, it unmounts and
/// ends.
#[derive(Debug)]
pub(super) struct Attached(Child);

impl Attached {
    /// Starts `command`. It hears nothing of the terminal's Ctrl-C: programs use its mount until
    /// they are gone.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        bind(command, Signal::TERM).process_group(0).spawn().map(Self)
    }

    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Tells the process to end, and waits for it a while.
    fn tell_to_end(&self) -> io::Result<()> {
        let pid = Pid::from_child(&self.0);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        kill_process(pid, Signal::TERM)?;
        let timeout = Timespec::try_from(PATIENCE).ok();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref())?;
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.has_ended().unwrap_or(false) {
            let _ = self.tell_to_end();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
