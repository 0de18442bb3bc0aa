//! Processes that serve mounts and end with the benchmark, however that ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use halocline_os::bound_process::bind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// How long a process that serves a mount may take to unmount and end.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// A process that serves a mount. It unmounts and ends when this is dropped or the benchmark is killed.
#[derive(Debug)]
pub(super) struct MountProcess(Child);

impl MountProcess {
    /// Starts `command`. It does not receive the terminal's Ctrl-C, because programs use its mount until they have
    /// ended.
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        bind(command, Signal::TERM).process_group(0).spawn().map(Self)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Tells the process to end, and waits for it for a while.
    fn tell_to_end(&self) -> io::Result<()> {
        let pid = Pid::from_child(&self.0);
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        kill_process(pid, Signal::TERM)?;
        let timeout = Timespec::try_from(WAIT_LIMIT).ok();
        // The first process that ends sends us a signal, and so may an impatient person.
        retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref()))?;
        Ok(())
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        if !self.has_ended().unwrap_or(false) {
            let _ = self.tell_to_end();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;
    use std::{fs, thread};

    use super::*;

    /// Regression: a process that is killed before it has unmounted leaves a mount that nobody serves.
    #[test]
    fn a_signal_that_we_get_does_not_cut_the_wait_short() {
        let dir = tempfile::tempdir().unwrap();
        let (up, down) = (dir.path().join("up"), dir.path().join("down"));
        let script = "trap 'sleep 0.3; : > down; exit' TERM; : > up; while :; do sleep 0.01; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir.path());
        let signal = signal_hook::consts::SIGUSR2;
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).unwrap();
        // Whoever starts a process must outlive it.
        let ending = thread::spawn(move || {
            let process = MountProcess::start(&mut command).unwrap();
            while !up.exists() {
                thread::sleep(Duration::from_millis(1));
            }
            drop(process);
        });
        let begun = Instant::now();
        while !ending.is_finished() && begun.elapsed() < WAIT_LIMIT {
            // SAFETY: the thread is not joined yet, so its handle is valid; the signal is caught.
            unsafe { libc::pthread_kill(ending.as_pthread_t(), signal) };
            thread::sleep(Duration::from_millis(10));
        }
        ending.join().unwrap();
        assert!(fs::exists(down).unwrap(), "it was killed before it had ended");
    }
}
