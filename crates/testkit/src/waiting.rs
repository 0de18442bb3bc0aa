//! Waiting for what other processes do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time that anything may take; generous, for slow machines.
pub const WAIT_LIMIT: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until something holds; panics where it does not within [`WAIT_LIMIT`].
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(WAIT_LIMIT, what, holds);
}

/// Waits until something holds; panics where it does not within `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "{what} did not come true");
        sleep(PAUSE);
    }
}

/// Sets a flag when it is dropped, also by a panic: threads of a scope that wait for the flag then end, and the test
/// fails instead of waiting for them for ever.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
