//! What the kernel reports of this process's threads.

use std::path::Path;

use crate::bounded;

/// A thread's number in the system.
pub(super) type Thread = i32;

/// A thread that sleeps, and how often it did before.
pub(super) type Sleep = (Thread, u64);

/// Longest status of a thread; the kernel's are about a thousand bytes.
const STATUS_BYTES_MAX: u64 = 16 << 10;

/// The calling thread.
pub(super) fn own() -> Thread {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether a thread of this process sleeps until another one wakes it. Not while it waits for a disk: that ends by
/// itself.
pub(super) fn sleep_of(thread: Thread) -> Option<Sleep> {
    let path = format!("/proc/self/task/{thread}/status");
    let status = bounded::read(Path::new(&path), STATUS_BYTES_MAX).ok()?;
    let status = String::from_utf8_lossy(&status);
    // The name, which may have anything in it, has no line of its own: breaks in it are escaped.
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if !of("State:")?.starts_with('S') {
        return None;
    }
    Some((thread, of("voluntary_ctxt_switches:")?.parse().ok()?))
}
