//! Processes that end with the one that started them, however that ends.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Lets the process that `command` starts get `signal` when the thread that starts it ends.
pub fn bind(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
    // SAFETY: between fork and exec the closure only makes two system calls; it touches no lock and
    // no heap.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // Who ended before that sends nothing.
            if getppid() == parent { Ok(()) } else { Err(Errno::SRCH.into()) }
        })
    }
}
