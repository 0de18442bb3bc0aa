//! What a child process does on signals when it starts. Children inherit what this process ignores, and the tests
//! may have been started with SIGINT and SIGHUP ignored: by `nohup`, or as a job in the background.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that a session without job control, or `nohup`, makes its children ignore.
pub const INHERITED: [i32; 3] = [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Has a command start with the default action for [`INHERITED`].
pub fn by_default(command: &mut Command) -> &mut Command {
    dispose(command, libc::SIG_DFL)
}

/// Has a command start with [`INHERITED`] ignored.
pub fn ignored(command: &mut Command) -> &mut Command {
    dispose(command, libc::SIG_IGN)
}

fn dispose(command: &mut Command, action: libc::sighandler_t) -> &mut Command {
    let set = move || {
        for signal in INHERITED {
            // SAFETY: `signal` is async-signal-safe, and neither action is a handler.
            if unsafe { libc::signal(signal, action) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only.
    unsafe { command.pre_exec(set) }
}
