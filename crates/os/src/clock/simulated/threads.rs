//! What the kernel reports about this process's threads.

use std::path::Path;

use crate::bounded;

/// A thread's id in the system.
pub(super) type Thread = i32;

/// A sleeping thread, and how often it has slept before.
pub(super) type Sleep = (Thread, u64);

/// Limit for reading the status of a thread, in bytes; the kernel writes about a thousand.
const STATUS_BYTES_MAX: u64 = 16 << 10;

/// The calling thread.
pub(super) fn own() -> Thread {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether a thread of this process sleeps until another one wakes it. Waiting for a disk does not count, because that
/// ends by itself.
pub(super) fn sleep_of(thread: Thread) -> Option<Sleep> {
    let path = format!("/proc/self/task/{thread}/status");
    let status = bounded::read(Path::new(&path), STATUS_BYTES_MAX).ok()?;
    let status = String::from_utf8_lossy(&status);
    // The name can contain anything, but no line of its own: line breaks in it are escaped.
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if !of("State:")?.starts_with('S') {
        return None;
    }
    Some((thread, of("voluntary_ctxt_switches:")?.parse().ok()?))
}
