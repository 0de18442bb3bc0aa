//! Processes that end with the process that started them, however that ends.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Makes the process that `command` starts get `signal` when the thread that starts it ends.
pub fn bind(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
    // SAFETY: between fork and exec the closure only makes two system calls; it uses no lock and no heap.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // A parent that ended before this call sends no signal.
            if getppid() == parent { Ok(()) } else { Err(Errno::SRCH.into()) }
        })
    }
}
