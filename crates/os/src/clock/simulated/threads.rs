//! What the kernel reports about this process's threads.

use crate::process_status::ProcessStatus;

/// A thread's id in the system.
pub(super) type Thread = i32;

/// A sleeping thread, and how often it has slept before.
pub(super) type Sleep = (Thread, u64);

/// The calling thread.
pub(super) fn own() -> Thread {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether a thread of this process sleeps until another one wakes it. Waiting for a disk does not count, because that
/// ends by itself.
pub(super) fn sleep_of(thread: Thread) -> Option<Sleep> {
    let status = ProcessStatus::of_thread(std::process::id(), thread.unsigned_abs()).ok()?;
    if !status.field("State").starts_with('S') {
        return None;
    }
    Some((thread, status.field("voluntary_ctxt_switches").parse().ok()?))
}
