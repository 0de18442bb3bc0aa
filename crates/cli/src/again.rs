//! This program started once more, for a mount in the background and for what a benchmark runs.

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
