//! This program started once more, for a mount in the background and for what a benchmark runs.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What processes of this program are called in lists of processes.
const NAME: &str = "halocline";

/// This very program, also where its file was replaced meanwhile; arguments are the caller's.
pub(crate) fn command() -> Command {
    let mut again = Command::new("/proc/self/exe");
    again.arg0(NAME);
    again
}

/// Gives this process its name, which the kernel took from the file that was executed: "exe" where
/// that was [`command`]. Called before there are threads, which inherit it.
pub(crate) fn name_this_process() {
    // A name is for people: nothing depends on it.
    let _ = rustix::thread::set_name(c"halocline");
}

/// Keeps what this process was given by its caller, beside the standard streams, from the processes that it
/// starts: one that stays for days must not hold a script's lock, a pipe that somebody reads to its end, or
/// a file system that shall be unmounted.
///
/// # Errors
/// `/proc` is not there, on a kernel before 5.11.
pub(crate) fn keep_descriptors() -> io::Result<()> {
    let first = libc::STDERR_FILENO + 1;
    // SAFETY: takes plain numbers, and closes nothing in this process.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|number| number.parse::<RawFd>().ok());
        for fd in number.into_iter().filter(|fd| *fd >= first) {
            // SAFETY: takes plain numbers; what is no descriptor any more is an error that says so.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Closes what this process was given by its caller, beside the standard streams, except `kept`: a mount that waits
/// until another is used by nobody must not be its last user.
///
/// No other file may be open in this process.
pub(crate) fn let_go_of_descriptors(kept: &impl AsRawFd) {
    let kept = kept.as_raw_fd();
    let first = libc::STDERR_FILENO + 1;
    for (from, to) in [(first, kept - 1), (kept + 1, RawFd::MAX)] {
        if from <= to {
            // SAFETY: takes plain numbers; nobody in this process owns what they stand for. Kernels before 5.9
            // refuse, and then it stays open.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
}
