//! The program whose request this thread serves, and whether it was killed meanwhile.
//!
//! A system call that was sent to a FUSE file system ends with the answer, also for a program that was killed: the
//! kernel cannot take the request back. It would say so in a request of its own, which the FUSE library answers as
//! unsupported. So whoever waits long for others asks here from time to time, and gives up for a program that is dying:
//! it sees no answer any more.
//!
//! What must hold: only a program that certainly dies is given up. One that handles a signal would see an error that no
//! system call on a regular file has; so its call goes on, as on NFS.

use std::cell::Cell;

use crate::process_status::ProcessStatus;

/// `SIGKILL` in a set of signals. The kernel adds it for each thread of a process that ends, whatever ends it.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

thread_local! {
    /// The thread of the program, as the kernel reports it; 0 if there is none, or it cannot be seen from here.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// As long as it lives, this thread serves a program.
#[derive(Debug)]
#[must_use = "the thread serves nobody once it is dropped"]
pub struct Serving {
    before: u32,
}

/// Notes that this thread serves a request of the program's thread `thread`.
pub fn serving(thread: u32) -> Serving {
    Serving { before: THREAD.replace(thread) }
}

impl Drop for Serving {
    fn drop(&mut self) {
        THREAD.set(self.before);
    }
}

/// Whether the program that this thread serves was killed, by `SIGKILL` or any signal that ends it at once. Reads a file
/// of `/proc`: not for every request.
#[must_use]
pub fn is_killed() -> bool {
    let thread = THREAD.get();
    if thread == 0 {
        return false;
    }
    ProcessStatus::of(thread).is_ok_and(|status| is_dying(&status))
}

fn is_dying(status: &ProcessStatus) -> bool {
    status.signals("SigPnd") & KILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_dying_has_a_kill_pending_for_its_own_thread() {
        let is_dying = |text: &str| is_dying(&ProcessStatus::parse(text.as_bytes()));
        let status = |own: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t0000000000000100\n");
        assert!(is_dying(&status("0000000000000100")));
        assert!(is_dying(&status("0000000000004302")));
        assert!(!is_dying(&status("0000000000004202")), "a signal that may have a handler");
        assert!(!is_dying(&status("nonsense")));
        assert!(!is_dying(""));
    }

    #[test]
    fn a_thread_serves_one_program_after_the_other() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(!is_killed(), "it serves nobody");
        let outer = serving(own);
        {
            let _inner = serving(u32::MAX);
            assert!(!is_killed(), "who cannot be seen");
        }
        assert_eq!(THREAD.get(), own);
        assert!(!is_killed());
        drop(outer);
        assert_eq!(THREAD.get(), 0);
    }
}
