//! Starts this program again, for a mount in the background and for what a benchmark runs.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The name of this program's processes in process lists.
const NAME: &str = "halocline";

/// This very program, even if its file was replaced meanwhile; the caller adds arguments.
pub(crate) fn command() -> Command {
    let mut again = Command::new("/proc/self/exe");
    again.arg0(NAME);
    again
}

/// Gives this process its name: the kernel took it from the file that was executed, which is "exe" after [`command`].
/// Called before there are threads, which inherit it.
pub(crate) fn name_this_process() {
    // A name is only for people: nothing depends on it.
    let _ = rustix::thread::set_name(c"halocline");
}

/// Keeps descriptors that this process got from its caller, other than the standard streams, from the processes that it
/// starts: one that stays for days must not hold a script's lock, a pipe that someone reads to its end, or a file
/// system that is to be unmounted.
///
/// # Errors
/// `/proc` is missing, on a kernel before 5.11.
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
            // SAFETY: takes plain numbers; a number that is no longer a descriptor only gives an error.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Closes descriptors that this process got from its caller, other than the standard streams and `kept`: a mount that
/// waits until another one is unused must not be its last user.
///
/// No other file may be open in this process.
pub(crate) fn let_go_of_descriptors(kept: &impl AsRawFd) {
    let kept = kept.as_raw_fd();
    let first = libc::STDERR_FILENO + 1;
    for (from, to) in [(first, kept - 1), (kept + 1, RawFd::MAX)] {
        if from <= to {
            // SAFETY: takes plain numbers; nothing in this process owns these descriptors. Kernels before 5.9 refuse,
            // and then they stay open.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
}
